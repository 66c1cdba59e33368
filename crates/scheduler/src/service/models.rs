//! `seldon.mlops.scheduler.Scheduler`: models and servers. Pipelines and experiments are in modules of their own.

use super::{
    Stream, WINDOW, deliver, experiments, identity, pipelines,
    subscribe::{snapshot, subscribe},
    within_deadline,
};
use crate::{access::Caller, audit::Object, convert, engine::Handle, status};
use gantry_core::scheduling::{Command, Owner};
use gantry_proto::{chainer, redacted_uri, scheduler as pb};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status};

/// How long a control plane may take to send its servers before models are requested.
const FIRST_SYNC_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Models {
    pub(crate) engine: Handle,
    /// Completed first syncs of servers.
    pub(crate) first_syncs: Arc<watch::Sender<u64>>,
}

impl Models {
    /// A gateway names a model and never defines one: statuses are redacted, and its owner may have changed it since.
    async fn reload(&self, name: String) -> Result<Response<pb::LoadModelResponse>, Status> {
        within_deadline(self.engine.command(Command::ReloadModel { name: name.as_str().into() })).await?;
        tracing::info!(model = %name, "model load requested by a gateway");
        Ok(Response::new(pb::LoadModelResponse {}))
    }
}

fn describe_model(engine: &Handle, name: &Arc<str>) -> Vec<pb::ModelStatusResponse> {
    engine.read_model.model(name).map(|v| status::model(name, &v, false)).into_iter().collect()
}

/// The status, and a scaling request if there is one.
fn describe_server(engine: &Handle, name: &Arc<str>) -> Vec<pb::ServerStatusResponse> {
    let Some(view) = engine.read_model.server(name) else { return Vec::new() };
    let requested = view.requested.map(|requested| status::scaling_request(&view.status, requested));
    std::iter::once(view.status.clone()).chain(requested).collect()
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
        let (metadata, extensions, request) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let Some(model) = request.model else {
            return Err(Status::failed_precondition("model is missing from the request"));
        };
        let kubernetes = model.meta.as_ref().and_then(|m| m.kubernetes_meta.as_ref());
        let name = model.meta.as_ref().map_or("", |meta| &meta.name);
        caller.change().add(Object::new("model", name).in_kubernetes(kubernetes));
        let by = identity::owner(&caller, &metadata, kubernetes)?;
        if by == Owner::Gateway {
            return self.reload(model.meta.map(|meta| meta.name).unwrap_or_default()).await;
        }
        let uri = redacted_uri(model.model_spec.as_ref().map_or("", |s| &s.uri));
        let mut encoded = convert::definition(model)?;
        encoded.definition.replaces = identity::replaced_generation(&metadata);
        let name = encoded.definition.name.clone();
        within_deadline(self.engine.load_model(encoded, by)).await?;
        tracing::info!(model = %name, %uri, "model accepted");
        Ok(Response::new(pb::LoadModelResponse {}))
    }

    async fn unload_model(
        &self,
        request: Request<pb::UnloadModelRequest>,
    ) -> Result<Response<pb::UnloadModelResponse>, Status> {
        let (metadata, extensions, request) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let kubernetes = request.kubernetes_meta.as_ref();
        let name = request.model.map(|m| m.name).unwrap_or_default();
        caller.change().add(Object::new("model", &name).in_kubernetes(kubernetes));
        let by = identity::owner(&caller, &metadata, kubernetes)?;
        if name.is_empty() {
            return Err(Status::failed_precondition("model.name is missing from the request"));
        }
        let command = Command::UnloadModel { name: name.as_str().into(), by };
        within_deadline(self.engine.command(command)).await?;
        tracing::info!(model = %name, "model unload requested");
        Ok(Response::new(pb::UnloadModelResponse {}))
    }

    async fn server_notify(
        &self,
        request: Request<pb::ServerNotifyRequest>,
    ) -> Result<Response<pb::ServerNotifyResponse>, Status> {
        let (metadata, extensions, pb::ServerNotifyRequest { servers, is_first_sync }) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        // All or nothing: validate every server before applying the first.
        let mut commands = Vec::with_capacity(servers.len());
        for server in servers {
            let kubernetes = server.kubernetes_meta.as_ref();
            caller.change().add(Object::new("server", &server.name).in_kubernetes(kubernetes));
            let by = identity::owner(&caller, &metadata, kubernetes)?;
            commands.push(convert::upsert_server(server, by)?);
        }
        // Sent concurrently, so that they share a commit.
        let commands = commands.into_iter().map(|command| within_deadline(self.engine.command(command)));
        for result in futures::future::join_all(commands).await {
            result?;
        }
        if is_first_sync {
            self.first_syncs.send_modify(|count| *count += 1);
        }
        Ok(Response::new(pb::ServerNotifyResponse {}))
    }

    async fn model_status(
        &self,
        request: Request<pb::ModelStatusRequest>,
    ) -> Result<Response<Self::ModelStatusStream>, Status> {
        let pb::ModelStatusRequest { model, all_versions, .. } = request.into_inner();
        let names = match model {
            None => self.engine.read_model.models(),
            Some(model) if self.engine.read_model.model(&model.name).is_some() => vec![model.name.into()],
            Some(model) => {
                return Err(Status::failed_precondition(format!("model {} not found", model.name)));
            }
        };
        Ok(snapshot(&self.engine, names, move |engine, name| {
            engine.read_model.model(name).map(|v| status::model(name, &v, all_versions))
        }))
    }

    async fn server_status(
        &self,
        request: Request<pb::ServerStatusRequest>,
    ) -> Result<Response<Self::ServerStatusStream>, Status> {
        let names = match request.into_inner().name {
            None => self.engine.read_model.servers(),
            Some(name) if self.engine.read_model.server(&name).is_some() => vec![name.into()],
            Some(name) => {
                return Err(Status::failed_precondition(format!("server {name} not found")));
            }
        };
        Ok(snapshot(&self.engine, names, |engine, name| {
            engine.read_model.server(name).map(|v| v.status.clone())
        }))
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
        Ok(subscribe(&self.engine, "model", &self.engine.models, |e| e.read_model.models(), describe_model))
    }

    async fn subscribe_server_status(
        &self,
        _: Request<pb::ServerSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeServerStatusStream>, Status> {
        Ok(subscribe(
            &self.engine,
            "server",
            &self.engine.servers,
            |e| e.read_model.servers(),
            describe_server,
        ))
    }

    async fn subscribe_control_plane(
        &self,
        _: Request<pb::ControlPlaneSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeControlPlaneStream>, Status> {
        use pb::control_plane_response::Event;
        let mut first_syncs = self.first_syncs.subscribe();
        let engine = self.engine.clone();
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            let _counted = engine.metrics.subscribed("control_plane");
            let send = |event: Event| deliver(&sender, pb::ControlPlaneResponse { event: event as i32 });
            if !send(Event::SendServers).await {
                return;
            }
            // Servers first, so that models can be placed; bounded, because there may be none.
            tokio::select! {
                biased;
                () = sender.closed() => return,
                () = engine.stop.cancelled() => return,
                _ = first_syncs.changed() => {}
                () = tokio::time::sleep(FIRST_SYNC_TIMEOUT) => {}
            }
            for event in [Event::SendExperiments, Event::SendModels, Event::SendPipelines] {
                if !send(event).await {
                    return;
                }
            }
            tokio::select! {
                biased;
                () = sender.closed() => {}
                () = engine.stop.cancelled() => {}
            }
        });
        Ok(Response::new(Stream::new(receiver)))
    }

    async fn model_status_event(
        &self,
        _: Request<pb::ModelUpdateStatusMessage>,
    ) -> Result<Response<pb::ModelUpdateStatusResponse>, Status> {
        // Gantry's gateways acknowledge routes instead; reports of others are ignored.
        Ok(Response::new(pb::ModelUpdateStatusResponse {}))
    }

    async fn load_pipeline(
        &self,
        request: Request<pb::LoadPipelineRequest>,
    ) -> Result<Response<pb::LoadPipelineResponse>, Status> {
        pipelines::load(&self.engine, request).await
    }

    async fn unload_pipeline(
        &self,
        request: Request<pb::UnloadPipelineRequest>,
    ) -> Result<Response<pb::UnloadPipelineResponse>, Status> {
        pipelines::unload(&self.engine, request).await
    }

    async fn pipeline_status(
        &self,
        request: Request<pb::PipelineStatusRequest>,
    ) -> Result<Response<Self::PipelineStatusStream>, Status> {
        pipelines::status(&self.engine, request.into_inner())
    }

    async fn subscribe_pipeline_status(
        &self,
        _: Request<pb::PipelineSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribePipelineStatusStream>, Status> {
        Ok(pipelines::subscribe(&self.engine))
    }

    async fn pipeline_status_event(
        &self,
        request: Request<chainer::PipelineUpdateStatusMessage>,
    ) -> Result<Response<chainer::PipelineUpdateStatusResponse>, Status> {
        pipelines::report(&self.engine, request.into_inner()).await
    }

    async fn start_experiment(
        &self,
        request: Request<pb::StartExperimentRequest>,
    ) -> Result<Response<pb::StartExperimentResponse>, Status> {
        experiments::start(&self.engine, request).await
    }

    async fn stop_experiment(
        &self,
        request: Request<pb::StopExperimentRequest>,
    ) -> Result<Response<pb::StopExperimentResponse>, Status> {
        experiments::stop(&self.engine, request).await
    }

    async fn experiment_status(
        &self,
        request: Request<pb::ExperimentStatusRequest>,
    ) -> Result<Response<Self::ExperimentStatusStream>, Status> {
        experiments::status(&self.engine, request.into_inner())
    }

    async fn subscribe_experiment_status(
        &self,
        _: Request<pb::ExperimentSubscriptionRequest>,
    ) -> Result<Response<Self::SubscribeExperimentStatusStream>, Status> {
        Ok(experiments::subscribe(&self.engine))
    }
}
