//! Endpoints served by the gateway itself: metadata, health, repository, aggregated statistics, reflection.

use super::{
    Worker,
    client::Exchange,
    grpc, local_response,
    request_body::{self, BodyLimits},
    rest::json_response,
};
use crate::{body::ResponseBody, control::Control};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use gantry_auth::{Action, Target};
use gantry_oip::{
    Code, Error, ServerMetadata,
    grpc::{SERVICE, decode_frame, encode_frame},
    rest, server,
};
use gantry_proto::inference as pb;
use gantry_transport::{Protocol, deadline};
use http::{Method, Request, Response, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use prost::Message as _;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::Instant;
use tonic_health::{ServingStatus, pb::health_server::HealthServer, server::HealthReporter};
use tower_service::Service;

type GrpcHandler =
    Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<tonic::body::Body>> + Send + Sync>;

/// Health and reflection services of tonic.
pub(super) struct GrpcServices {
    reporter: HealthReporter,
    health: GrpcHandler,
    reflection: Option<GrpcHandler>,
    reflection_alpha: Option<GrpcHandler>,
}

impl GrpcServices {
    pub(super) fn new() -> Self {
        use tonic_reflection::server::Builder;
        let reporter = HealthReporter::new();
        let health = tonic_health::server::HealthService::from_health_reporter(reporter.clone());
        let builder = || Builder::configure().register_encoded_file_descriptor_set(gantry_proto::DESCRIPTORS);
        Self {
            reporter,
            health: boxed(HealthServer::new(health)),
            reflection: builder().build_v1().ok().map(boxed),
            reflection_alpha: builder().build_v1alpha().ok().map(boxed),
        }
    }

    /// Publishes readiness to gRPC health watchers.
    pub(super) async fn report(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", "inference.GRPCInferenceService"] {
            self.reporter.set_service_status(service, status).await;
        }
    }
}

fn boxed<S>(service: S) -> GrpcHandler
where
    S: Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await.unwrap_or_else(|never| match never {}) })
    })
}

impl Worker {
    pub(super) async fn builtin_service(&self, parts: Parts, body: Incoming) -> Response<ResponseBody> {
        let path = parts.uri.path().to_owned();
        let handler = if path.starts_with("/grpc.health.v1.Health/") {
            self.grpc_services.report(self.shared.routes.is_synced()).await;
            Some(&self.grpc_services.health)
        } else if path.starts_with("/grpc.reflection.v1.ServerReflection/") {
            self.grpc_services.reflection.as_ref()
        } else if path.starts_with("/grpc.reflection.v1alpha.ServerReflection/") {
            self.grpc_services.reflection_alpha.as_ref()
        } else {
            None
        };
        if let Some(handler) = handler {
            let answering = handler(Request::from_parts(parts, body));
            let Ok(response) = tokio::time::timeout(self.shared.config.request_timeout, answering).await
            else {
                let error = Error::new(Code::DeadlineExceeded, "the message did not arrive in time");
                return local_response::error(&error, Protocol::Grpc);
            };
            return response.map(ResponseBody::Tonic);
        }
        let shown: String = path.chars().take(100).collect();
        let error =
            Error::new(Code::Unimplemented, format!("there is no method {shown}: the service is {SERVICE}"));
        local_response::error(&error, Protocol::Grpc)
    }

    pub(super) fn server_metadata_response() -> Response<ResponseBody> {
        local_response::from_reply(server::json(
            StatusCode::OK,
            rest::encode_server_metadata(&ServerMetadata::gantry()),
        ))
    }

    pub(super) fn server_ready(&self) -> Result<Response<ResponseBody>, Error> {
        if self.shared.stopping.is_cancelled() {
            return Err(Error::unavailable("the gateway is stopping", 1));
        }
        if self.shared.routes.is_synced() {
            return Ok(json_response("{\"ready\":true}"));
        }
        Err(Error::unavailable("no routes received from the scheduler yet", 1))
    }

    fn control(&self) -> Result<Arc<Arc<dyn Control>>, Error> {
        let missing = || Error::new(Code::Unimplemented, "no scheduler is configured");
        self.shared.control.load_full().ok_or_else(missing)
    }

    pub(super) async fn index(
        &self,
        body: &mut Incoming,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Rest,
            max: request_body::SMALL,
            deadline: deadline(Instant::now(), self.shared.config.request_timeout),
        };
        let body = self.read_body(body, &limits).await?;
        let ready_only = match body.trim_ascii() {
            [] => false,
            json => match serde_json::from_slice::<serde_json::Value>(json) {
                Ok(serde_json::Value::Object(fields)) => fields.get("ready").is_some_and(|r| r == true),
                _ => {
                    return Err(Error::invalid(
                        "the body must be empty or a JSON object like {\"ready\":true}",
                    ));
                }
            },
        };
        let mut entries = self.control()?.index(ready_only).await?;
        entries.retain(|entry| exchange.access.sees(&entry.name));
        Ok(local_response::from_reply(server::json(StatusCode::OK, rest::encode_index(&entries))))
    }

    /// Loads and unloads affect all clients: without authentication, only a flag permits them. With it, the right of the
    /// client's credential, which has been checked.
    fn repository_changes(&self) -> Result<Arc<Arc<dyn Control>>, Error> {
        let config = &self.shared.config;
        if config.allow_repository_changes || config.auth.is_some() {
            return self.control();
        }
        let message = "clients may not load or unload models here: use `gantry apply` and `gantry delete`, or start the \
                       gateway with --allow-repository-changes";
        Err(Error::new(Code::PermissionDenied, message))
    }

    /// Loads a model and waits until this gateway can serve it.
    async fn load_and_wait(
        &self,
        model: &str,
        timeout: Duration,
        protocol: Protocol,
        exchange: &Exchange,
    ) -> Result<(), Error> {
        let control = self.repository_changes()?;
        let _admitted = self.admit(&exchange.client, protocol)?;
        let loading = async {
            control.load(model).await?;
            self.shared.routes.served(model).await;
            Ok(())
        };
        tokio::time::timeout(timeout, loading).await.unwrap_or_else(|_| {
            let message = format!("model {model} was not loaded within {:.1} s", timeout.as_secs_f64());
            Err(Error::new(Code::DeadlineExceeded, message))
        })
    }

    pub(super) async fn load(
        &self,
        model: &str,
        body: &mut Incoming,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        self.repository_changes()?;
        let timeout = self.shared.config.request_timeout;
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Rest,
            max: request_body::SMALL,
            deadline: deadline(Instant::now(), timeout),
        };
        let body = self.read_body(body, &limits).await?;
        let parameters = match body.trim_ascii() {
            [] => false,
            json => match serde_json::from_slice::<serde_json::Value>(json) {
                Ok(serde_json::Value::Object(fields)) => fields
                    .get("parameters")
                    .is_some_and(|p| p.as_object().is_none_or(|parameters| !parameters.is_empty())),
                _ => return Err(Error::invalid("the body must be empty or a JSON object")),
            },
        };
        if parameters {
            return Err(unsupported_parameters());
        }
        self.load_and_wait(model, timeout, Protocol::Rest, exchange).await?;
        Ok(local_response::from_reply(Response::default()))
    }

    pub(super) async fn unload(&self, model: &str) -> Result<Response<ResponseBody>, Error> {
        self.repository_changes()?.unload(model).await?;
        Ok(local_response::from_reply(Response::default()))
    }

    pub(super) async fn grpc_index(
        &self,
        parts: &Parts,
        body: Incoming,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        exchange.access.authorize_right(Action::Metadata)?;
        let request: pb::RepositoryIndexRequest = self.message(parts, body, exchange).await?;
        let mut entries = self.control()?.index(request.ready).await?;
        entries.retain(|entry| exchange.access.sees(&entry.name));
        Ok(grpc::reply(&pb::RepositoryIndexResponse { models: entries.iter().map(Into::into).collect() }))
    }

    pub(super) async fn grpc_load(
        &self,
        parts: &Parts,
        body: Incoming,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        exchange.access.authorize_right(Action::Repository)?;
        self.repository_changes()?;
        let request: pb::RepositoryModelLoadRequest = self.message(parts, body, exchange).await?;
        exchange.access.authorize(Action::Repository, Target::Model(&request.model_name))?;
        if !request.parameters.is_empty() {
            return Err(unsupported_parameters());
        }
        self.load_and_wait(&request.model_name, self.timeout(parts), Protocol::Grpc, exchange).await?;
        Ok(grpc::reply(&pb::RepositoryModelLoadResponse {}))
    }

    pub(super) async fn grpc_unload(
        &self,
        parts: &Parts,
        body: Incoming,
        exchange: &Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        exchange.access.authorize_right(Action::Repository)?;
        let control = self.repository_changes()?;
        let request: pb::RepositoryModelUnloadRequest = self.message(parts, body, exchange).await?;
        exchange.access.authorize(Action::Repository, Target::Model(&request.model_name))?;
        control.unload(&request.model_name).await?;
        Ok(grpc::reply(&pb::RepositoryModelUnloadResponse {}))
    }

    /// Statistics of all models on in-process servers. Those on remote servers are available per model only.
    pub(super) async fn all_statistics(&self) -> Result<Response<ResponseBody>, Error> {
        let answers = self.call_local_servers("/v2/models/stats", Method::GET, Bytes::new()).await;
        let mut all = Vec::new();
        for answer in answers {
            if let Ok(serde_json::Value::Object(mut fields)) = serde_json::from_slice(&answer)
                && let Some(serde_json::Value::Array(models)) = fields.remove("model_stats")
            {
                all.extend(models);
            }
        }
        let body = serde_json::json!({ "model_stats": all }).to_string();
        Ok(local_response::from_reply(server::json(StatusCode::OK, body.into())))
    }

    pub(super) async fn grpc_all_statistics(&self) -> Result<Response<ResponseBody>, Error> {
        let path = "/inference.GRPCInferenceService/ModelStatistics";
        let request = encode_frame(&pb::ModelStatisticsRequest::default());
        let mut all = pb::ModelStatisticsResponse::default();
        for answer in self.call_local_servers(path, Method::POST, request).await {
            let message = decode_frame(&answer, None, self.shared.config.max_body)?;
            if let Ok(one) = pb::ModelStatisticsResponse::decode(message) {
                all.model_stats.extend(one.model_stats);
            }
        }
        Ok(grpc::reply(&all))
    }

    /// Calls all in-process servers; failed calls are skipped.
    async fn call_local_servers(&self, path: &'static str, method: Method, body: Bytes) -> Vec<Bytes> {
        let locals: Vec<_> = self.shared.routes.registry().all().iter().filter_map(|e| e.local()).collect();
        let calls = locals.iter().map(|local| {
            let mut request = Request::new(body.clone());
            *request.method_mut() = method.clone();
            *request.uri_mut() = http::Uri::from_static(path);
            if method == Method::POST {
                let grpc = http::HeaderValue::from_static("application/grpc");
                request.headers_mut().insert(header::CONTENT_TYPE, grpc);
            }
            local.0.call(request)
        });
        let timeout = self.shared.config.request_timeout;
        let answers = tokio::time::timeout(timeout, join_all(calls)).await.unwrap_or_default();
        let succeeded = |r: &Response<server::Reply>| r.status().is_success() && !r.body().data().is_empty();
        answers.into_iter().filter(succeeded).map(|r| r.into_body().into_parts().0).collect()
    }
}

fn unsupported_parameters() -> Error {
    Error::invalid("parameters are not supported: a model is loaded as it was applied")
}
