//! `seldon.mlops.scheduler.Scheduler`: models and servers.

use super::{Stream, WINDOW, deliver, within_deadline};
use crate::{convert, engine::Handle, outbox::Audience, status};
use gantry_core::scheduling::Command;
use gantry_proto::{chainer, scheduler as pb};
use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

pub(crate) struct Models {
    pub(crate) engine: Handle,
}

fn not_yet<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("{what} are not supported yet by this version of gantry")))
}

/// What a subscription sends for a name, or nothing.
type Describe<T> = fn(&Handle, &Arc<str>) -> Option<T>;

impl Models {
    /// The current state of everything, then every change.
    fn subscribe<T: Send + 'static>(
        &self,
        audience: &Audience,
        everything: fn(&Handle) -> BTreeSet<Arc<str>>,
        describe: Describe<T>,
    ) -> Response<Stream<T>> {
        let outbox = audience.join();
        let engine = self.engine.clone();
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            let mut names = everything(&engine);
            loop {
                for name in names {
                    // The answer is made when it is sent: a slow subscriber gets the newest, not the oldest.
                    let message = describe(&engine, &name);
                    if let Some(message) = message
                        && !deliver(&sender, message).await
                    {
                        return;
                    }
                }
                tokio::select! {
                    biased;
                    more = outbox.changed() => names = more,
                    () = sender.closed() => return,
                }
            }
        });
        Response::new(Stream::new(receiver))
    }

    /// Sends what is there, then ends.
    fn snapshot<T: Send + 'static>(
        &self,
        names: BTreeSet<Arc<str>>,
        describe: impl Fn(&Handle, &Arc<str>) -> Option<T> + Send + 'static,
    ) -> Response<Stream<T>> {
        let engine = self.engine.clone();
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            for name in names {
                let message = describe(&engine, &name);
                if let Some(message) = message
                    && !deliver(&sender, message).await
                {
                    return;
                }
            }
        });
        Response::new(Stream::new(receiver))
    }
}

fn all_models(engine: &Handle) -> BTreeSet<Arc<str>> {
    engine.state().models().keys().cloned().collect()
}

fn all_servers(engine: &Handle) -> BTreeSet<Arc<str>> {
    engine.state().servers().keys().cloned().collect()
}

fn describe_model(engine: &Handle, name: &Arc<str>) -> Option<pb::ModelStatusResponse> {
    engine.state().models().get(name).map(|m| status::model(name, m, false))
}

fn describe_server(engine: &Handle, name: &Arc<str>) -> Option<pb::ServerStatusResponse> {
    let state = engine.state();
    state.servers().get(name).map(|s| status::server(name, s, &state))
}

#[tonic::async_trait]
impl pb::scheduler_server::Scheduler for Models {
    type ModelStatusStream = Stream<pb::ModelStatusResponse>;
    type ServerStatusStream = Stream<pb::ServerStatusResponse>;
    type SubscribeModelStatusStream = Stream<pb::ModelStatusResponse>;
    type SubscribeServerStatusStream = Stream<pb::ServerStatusResponse>;
    type PipelineStatusStream = Stream<pb::PipelineStatusResponse>;
    type SubscribePipelineStatusStream = Stream<pb::PipelineStatusResponse>;
    type ExperimentStatusStream = Stream<pb::ExperimentStatusResponse>;
    type SubscribeExperimentStatusStream = Stream<pb::ExperimentStatusResponse>;
    type SubscribeControlPlaneStream = Stream<pb::ControlPlaneResponse>;

    async fn load_model(
        &self,
        request: Request<pb::LoadModelRequest>,
    ) -> Result<Response<pb::LoadModelResponse>, Status> {
        let Some(model) = request.into_inner().model else {
            return Err(Status::failed_precondition("model is missing from the request"));
        };
        let definition = convert::definition(model)?;
        let (name, uri) = (definition.name.clone(), convert::message(&definition));
        within_deadline(self.engine.command(Command::LoadModel(Box::new(definition)))).await?;
        let uri = uri.model_spec.map(|s| s.uri).unwrap_or_default();
        tracing::info!(model = %name, uri = %redacted(&uri), "model asked for");
        Ok(Response::new(pb::LoadModelResponse {}))
    }

    async fn unload_model(
        &self,
        request: Request<pb::UnloadModelRequest>,
    ) -> Result<Response<pb::UnloadModelResponse>, Status> {
        let name = request.into_inner().model.map(|m| m.name).unwrap_or_default();
        if name.is_empty() {
            return Err(Status::failed_precondition("model.name is missing from the request"));
        }
        within_deadline(self.engine.command(Command::UnloadModel { name: name.as_str().into() })).await?;
        tracing::info!(model = %name, "model to be unloaded");
        Ok(Response::new(pb::UnloadModelResponse {}))
    }

    async fn server_notify(
        &self,
        request: Request<pb::ServerNotifyRequest>,
    ) -> Result<Response<pb::ServerNotifyResponse>, Status> {
        let servers = request.into_inner().servers;
        // All or nothing: check every one before the first is carried out.
        let mut commands = Vec::with_capacity(servers.len());
        for server in servers {
            let expected = convert::expectation(&server)?;
            commands.push(Command::ExpectServer {
                name: server.name.into(),
                expected,
                shared: server.shared,
                namespace: server.kubernetes_meta.map(|k| k.namespace),
            });
        }
        for command in commands {
            within_deadline(self.engine.command(command)).await?;
        }
        Ok(Response::new(pb::ServerNotifyResponse {}))
    }

    async fn model_status(
        &self,
        request: Request<pb::ModelStatusRequest>,
    ) -> Result<Response<Self::ModelStatusStream>, Status> {
        let request = request.into_inner();
        let all_versions = request.all_versions;
        let names = match request.model {
            None => all_models(&self.engine),
            Some(model) => {
                let state = self.engine.state();
                let Some((name, _)) = state.models().get_key_value(model.name.as_str()) else {
                    return Err(Status::failed_precondition(format!("model {} is not known", model.name)));
                };
                BTreeSet::from([name.clone()])
            }
        };
        Ok(self.snapshot(names, move |engine, name| {
            engine.state().models().get(name).map(|m| status::model(name, m, all_versions))
        }))
    }

    async fn server_status(
        &self,
        request: Request<pb::ServerStatusRequest>,
    ) -> Result<Response<Self::ServerStatusStream>, Status> {
        let names = match request.into_inner().name {
            None => all_servers(&self.engine),
            Some(wanted) => {
                let state = self.engine.state();
                let Some((name, _)) = state.servers().get_key_value(wanted.as_str()) else {
                    return Err(Status::failed_precondition(format!("server {wanted} is not known")));
                };
                BTreeSet::from([name.clone()])
            }
        };
        Ok(self.snapshot(names, describe_server))
    }

    async fn scheduler_status(
        &self,
        _: Request<pb::SchedulerStatusRequest>,
    ) -> Result<Response<pb::SchedulerStatusResponse>, Status> {
        let application_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(pb::SchedulerStatusResponse { application_version }))
    }

    async fn subscribe_model_status(
        &self,
        _: Request<pb::ModelSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeModelStatusStream>, Status> {
        Ok(self.subscribe(&self.engine.models, all_models, describe_model))
    }

    async fn subscribe_server_status(
        &self,
        _: Request<pb::ServerSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeServerStatusStream>, Status> {
        Ok(self.subscribe(&self.engine.servers, all_servers, describe_server))
    }

    async fn subscribe_control_plane(
        &self,
        _: Request<pb::ControlPlaneSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeControlPlaneStream>, Status> {
        use pb::control_plane_response::Event;
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            for event in [Event::SendServers, Event::SendExperiments, Event::SendModels, Event::SendPipelines]
            {
                if !deliver(&sender, pb::ControlPlaneResponse { event: event as i32 }).await {
                    return;
                }
            }
            sender.closed().await;
        });
        Ok(Response::new(Stream::new(receiver)))
    }

    async fn model_status_event(
        &self,
        _: Request<pb::ModelUpdateStatusMessage>,
    ) -> Result<Response<pb::ModelUpdateStatusResponse>, Status> {
        // Gateways of ours acknowledge routes instead; one of another make may report, and nothing waits for it.
        Ok(Response::new(pb::ModelUpdateStatusResponse {}))
    }

    async fn load_pipeline(
        &self,
        _: Request<pb::LoadPipelineRequest>,
    ) -> Result<Response<pb::LoadPipelineResponse>, Status> {
        not_yet("pipelines")
    }

    async fn unload_pipeline(
        &self,
        _: Request<pb::UnloadPipelineRequest>,
    ) -> Result<Response<pb::UnloadPipelineResponse>, Status> {
        not_yet("pipelines")
    }

    async fn pipeline_status(
        &self,
        _: Request<pb::PipelineStatusRequest>,
    ) -> Result<Response<Self::PipelineStatusStream>, Status> {
        not_yet("pipelines")
    }

    async fn subscribe_pipeline_status(
        &self,
        _: Request<pb::PipelineSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribePipelineStatusStream>, Status> {
        not_yet("pipelines")
    }

    async fn pipeline_status_event(
        &self,
        _: Request<chainer::PipelineUpdateStatusMessage>,
    ) -> Result<Response<chainer::PipelineUpdateStatusResponse>, Status> {
        not_yet("pipelines")
    }

    async fn start_experiment(
        &self,
        _: Request<pb::StartExperimentRequest>,
    ) -> Result<Response<pb::StartExperimentResponse>, Status> {
        not_yet("experiments")
    }

    async fn stop_experiment(
        &self,
        _: Request<pb::StopExperimentRequest>,
    ) -> Result<Response<pb::StopExperimentResponse>, Status> {
        not_yet("experiments")
    }

    async fn experiment_status(
        &self,
        _: Request<pb::ExperimentStatusRequest>,
    ) -> Result<Response<Self::ExperimentStatusStream>, Status> {
        not_yet("experiments")
    }

    async fn subscribe_experiment_status(
        &self,
        _: Request<pb::ExperimentSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeExperimentStatusStream>, Status> {
        not_yet("experiments")
    }
}

/// A place without what may be a secret in it: user and password, and the query.
fn redacted(uri: &str) -> String {
    let without_query = uri.split(['?', '#']).next().unwrap_or_default();
    match without_query.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => without_query.to_owned(),
    }
}
