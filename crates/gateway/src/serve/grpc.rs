//! gRPC: inference service, health and reflection.

use super::{
    Worker, access,
    client::Exchange,
    destination::{Destination, Name, Wanted},
    forward::{Call, Head, Target, version_number},
    headers, local_response,
    mirror::Original,
    pipelines::PipelineRequest,
    pods::PodRequest,
    request_body::{self, BodyLimits},
    sequence,
    service::Named,
};
use crate::{body::ResponseBody, routes::Service};
use bytes::Bytes;
use gantry_auth::{Action, Target as Object};
use gantry_oip::{
    Code, Error, ServerMetadata,
    grpc::{PREFIX, RequestFields, SERVICE, decode_frame, frame_start, peek_request, peek_start},
    rest::Encoding,
    server,
};
use gantry_proto::inference as pb;
use gantry_transport::{Protocol, body::Payload, deadline};
use http::{HeaderValue, Response, request::Parts};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::time::Instant;

/// Unary methods whose message names a model.
const MODEL_METHODS: [&str; 4] = ["ModelInfer", "ModelMetadata", "ModelStatistics", "ModelReady"];

impl Worker {
    pub(super) async fn grpc(
        self: &Arc<Self>,
        parts: Parts,
        body: Incoming,
        request_id: HeaderValue,
        exchange: &mut Exchange,
    ) -> Response<ResponseBody> {
        if let Ok(Some(Named::Service(service, role))) = self.host(&parts) {
            let request = PodRequest { service, role, request_id, exchange };
            let answered = self.grpc_pods(request, parts, body).await;
            return answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Grpc));
        }
        if let Some(rejection) = unknown_encoding(&parts) {
            return rejection;
        }
        let Some(method) = parts.uri.path().strip_prefix(SERVICE) else {
            return self.builtin_service(parts, body).await;
        };
        let answered = match method {
            method if MODEL_METHODS.contains(&method) => {
                self.read_and_call(parts, body, request_id, exchange).await
            }
            "ModelStreamInfer" => access::authorize_grpc_head(&exchange.access, &parts, method)
                .map(|()| self.stream(parts, body, request_id, exchange)),
            "ServerLive" => Ok(reply(&pb::ServerLiveResponse { live: true })),
            "ServerReady" => Ok(reply(&pb::ServerReadyResponse { ready: self.shared.routes.is_synced() })),
            "ServerMetadata" => Ok(reply(&pb::ServerMetadataResponse::from(&ServerMetadata::gantry()))),
            "RepositoryIndex" => self.grpc_index(&parts, body, exchange).await,
            "RepositoryModelLoad" => self.grpc_load(&parts, body, exchange).await,
            "RepositoryModelUnload" => self.grpc_unload(&parts, body, exchange).await,
            _ => Err(Error::new(Code::Unimplemented, format!("there is no method {method:?}"))),
        };
        answered.unwrap_or_else(|error| local_response::error(&error, Protocol::Grpc))
    }

    async fn read_and_call(
        self: &Arc<Self>,
        parts: Parts,
        mut body: Incoming,
        request_id: HeaderValue,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let method = parts.uri.path().strip_prefix(SERVICE).unwrap_or_default();
        access::authorize_grpc_head(&exchange.access, &parts, method)?;
        let started = Instant::now();
        let deadline = deadline(started, self.timeout(&parts));
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Grpc,
            max: self.shared.config.max_body,
            deadline,
        };
        let framed = self.read_body(&mut body, &limits).await?;
        self.call_model(parts, framed, (started, deadline), request_id, None, exchange).await
    }

    /// One of [`MODEL_METHODS`]. A model without ready replicas, or an unknown one, is reported as `ready: false`: clients
    /// poll it.
    pub(super) async fn call_model(
        self: &Arc<Self>,
        parts: Parts,
        framed: Bytes,
        times: (Instant, Instant),
        request_id: HeaderValue,
        owner: Option<&Service>,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let is_poll = parts.uri.path().strip_prefix(SERVICE) == Some("ModelReady");
        match self.call(parts, framed, times, request_id, owner, exchange).await {
            Err(error)
                if is_poll
                    && matches!(error.code, Code::Unavailable | Code::Unimplemented | Code::NotFound) =>
            {
                Ok(reply(&pb::ModelReadyResponse { ready: false }))
            }
            answered => answered,
        }
    }

    /// A unary call forwarded to the model's server.
    async fn call(
        self: &Arc<Self>,
        mut parts: Parts,
        framed: Bytes,
        (started, deadline): (Instant, Instant),
        request_id: HeaderValue,
        owner: Option<&Service>,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Error> {
        let method = parts.uri.path().strip_prefix(SERVICE).unwrap_or_default();
        if method == "ModelStatistics"
            && message_length(&framed) == Some(0)
            && !parts.headers.contains_key(headers::MODEL)
        {
            exchange.access.authorize(Action::Metadata, Object::AllModels)?;
            return self.grpc_all_statistics().await;
        }
        exchange.admitted = Some(self.admit(&exchange.client, Protocol::Grpc)?);
        let sticky = headers::sticky(&parts.headers);
        let wanted = match Name::of(&parts.headers, "")? {
            Name::Model(_) => None,
            name => {
                access::authorize_message(&exchange.access, owner, method, name)?;
                match self.destination(name, sticky.as_ref(), Protocol::Grpc)? {
                    Destination::Model(wanted) => Some(wanted),
                    Destination::Pipeline(wanted) => {
                        let request = PipelineRequest { wanted: *wanted, sticky, request_id, exchange };
                        return self.grpc_pipeline(request, method, &parts, framed, deadline).await;
                    }
                }
            }
        };
        let RoutingFields { name, version, sequence } = Self::routing_fields(&parts, &framed)?;
        if wanted.is_none() {
            access::authorize_message(&exchange.access, owner, method, Name::Model(&name))?;
        }
        let infer = method == "ModelInfer";
        let wanted = wanted.unwrap_or_else(|| Wanted::new(&name)).with_version(version.is_some());
        let mut in_flight = if infer {
            self.acquire_or_wake(wanted, sticky.as_ref(), Protocol::Grpc, deadline).await?
        } else {
            self.acquire(wanted, sticky.as_ref(), Protocol::Grpc)?
        };
        if infer {
            let (headers, protocol) = (&parts.headers, Protocol::Grpc);
            let original = Original { protocol, headers, request_id: &request_id, body: &framed };
            self.mirror_all(&mut in_flight, &original);
        }
        let call = Call {
            model: Arc::clone(&in_flight.version.model),
            sticky,
            version,
            sequence,
            protocol: Protocol::Grpc,
            infer,
            started,
            deadline,
            trace: self.shared.config.tracer.context(&parts.headers),
            step: None,
            is_component: false,
        };
        let head = Head { method: parts.method, headers: std::mem::take(&mut parts.headers), request_id };
        self.forward(&call, in_flight, &Target::Grpc(&parts.uri), head, Payload::Whole(framed)).await
    }

    pub(super) fn timeout(&self, parts: &Parts) -> std::time::Duration {
        let config = &self.shared.config;
        headers::grpc_timeout(&parts.headers)
            .unwrap_or(config.request_timeout)
            .min(config.max_request_timeout)
    }

    /// Whether the message names a model that the scheduler serves for this service.
    pub(super) fn is_of_scheduler(service: &Service, parts: &Parts, framed: &Bytes) -> bool {
        let method = parts.uri.path().strip_prefix(SERVICE);
        method.is_some_and(|method| MODEL_METHODS.contains(&method))
            && service.has_models()
            && Self::routing_fields(parts, framed).is_ok_and(|fields| service.has_model(&fields.name))
    }

    /// Reads the routing fields from the start of a message.
    fn routing_fields(parts: &Parts, framed: &Bytes) -> Result<RoutingFields, Error> {
        let header = match parts.headers.get(headers::MODEL).map(HeaderValue::to_str) {
            Some(Ok(name)) => Some(name),
            Some(Err(_)) => return Err(Error::invalid("header seldon-model: invalid model name")),
            None => None,
        };
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let (start, is_whole) = frame_start(framed, encoding, request_body::SMALL)?;
        let fields = if is_whole { peek_request(&start) } else { peek_start(&start) };
        let fields = fields.ok_or_else(|| Error::invalid("the message is not valid protobuf"))?;
        let name = header.unwrap_or(fields.name);
        if name.is_empty() {
            return Err(Error::invalid(if is_whole {
                "the message has no model name"
            } else {
                "the model name must precede the tensors, or be set in the header seldon-model"
            }));
        }
        RoutingFields::new(name, &fields)
    }

    /// Reads a unary request of a built-in endpoint.
    pub(super) async fn message<M: prost::Message + Default>(
        &self,
        parts: &Parts,
        mut body: Incoming,
        exchange: &Exchange,
    ) -> Result<M, Error> {
        let limits = BodyLimits {
            client: &exchange.client,
            protocol: Protocol::Grpc,
            max: request_body::SMALL,
            deadline: deadline(Instant::now(), self.timeout(parts)),
        };
        let framed = self.read_body(&mut body, &limits).await?;
        let encoding = parts.headers.get("grpc-encoding").map(HeaderValue::as_bytes);
        let message = decode_frame(&framed, encoding, request_body::SMALL)?;
        M::decode(message).map_err(|e| Error::invalid(format!("the message is not valid protobuf: {e}")))
    }
}

/// The gRPC specification asks for UNIMPLEMENTED and the supported encodings.
fn unknown_encoding(parts: &Parts) -> Option<Response<ResponseBody>> {
    let encoding = parts.headers.get("grpc-encoding")?;
    Encoding::parse(Some(encoding.as_bytes())).err()?;
    let shown: String = String::from_utf8_lossy(encoding.as_bytes()).chars().take(100).collect();
    let error = Error::new(Code::Unimplemented, format!("grpc-encoding {shown:?} is not supported"));
    let mut response = local_response::error(&error, Protocol::Grpc);
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity,gzip,deflate"));
    Some(response)
}

pub(super) fn reply(message: &impl prost::Message) -> Response<ResponseBody> {
    local_response::from_reply(server::grpc_reply(message))
}

pub(super) fn message_length(body: &[u8]) -> Option<usize> {
    let (&[_, a, b, c, d], _) = body.split_first_chunk::<PREFIX>()?;
    Some(u32::from_be_bytes([a, b, c, d]) as usize)
}

/// Routing fields of a message.
struct RoutingFields {
    name: String,
    version: Option<u32>,
    sequence: Option<u64>,
}

impl RoutingFields {
    fn new(name: &str, fields: &RequestFields<'_>) -> Result<Self, Error> {
        Ok(Self {
            name: name.to_owned(),
            version: version_of(name, fields)?,
            sequence: fields.sequence.map(|id| sequence::grpc_key(name, id)),
        })
    }
}

pub(super) fn version_of(model: &str, fields: &RequestFields<'_>) -> Result<Option<u32>, Error> {
    (!fields.version.is_empty()).then(|| version_number(model, fields.version)).transpose()
}
