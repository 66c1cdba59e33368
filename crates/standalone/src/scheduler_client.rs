//! Scheduler calls on behalf of manifest files, and call helpers that the command line shares.

use gantry_api::{Kind, Object};
use gantry_oip::grpc::percent_encode;
use gantry_proto::{
    gantry::{
        AdoptRequest, DeletePolicyRequest, control_client::ControlClient, rollouts_client::RolloutsClient,
    },
    scheduler::{
        ExperimentStatusRequest, LoadModelRequest, LoadPipelineRequest, ModelReference, ModelStatusRequest,
        PipelineStatusRequest, ServerNotify, ServerNotifyRequest, ServerStatusRequest,
        StartExperimentRequest, StopExperimentRequest, UnloadModelRequest, UnloadPipelineRequest,
        scheduler_client::SchedulerClient,
    },
};
use std::time::Duration;
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue, transport::Channel};

/// Request header with the owner of the objects that a call changes.
const MANAGER_HEADER: &str = "gantry-manager";
/// Prefix of an owner that is a manifest; the path follows.
pub(crate) const FILE_OWNER_PREFIX: &str = "file:";
const SUBSCRIBER: &str = "gantry up";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A request that changes objects of an owner, such as `file:/srv/models/iris.yaml`.
pub fn with_manager<T>(message: T, manager: &str) -> Request<T> {
    let mut request = Request::new(message);
    // A path may contain bytes that a header cannot: those are percent-encoded.
    let plain = MetadataValue::try_from(manager);
    let value = plain.or_else(|_| MetadataValue::try_from(percent_encode(manager)));
    if let Ok(value) = value {
        request.metadata_mut().insert(MANAGER_HEADER, value);
    }
    request
}

/// The message of a call rejected because the object has another owner, with the remedy on a line of its own.
pub fn ownership_refusal(status: &Status) -> Option<String> {
    const REMEDY: &str = "To take it over";
    if status.code() != Code::FailedPrecondition || !status.message().contains("gantry adopt ") {
        return None;
    }
    Some(match status.message().split_once(REMEDY) {
        Some((owner, remedy)) => format!("{}\n{REMEDY}{remedy}", owner.trim_end()),
        None => status.message().to_owned(),
    })
}

/// All messages of a finite stream.
pub async fn collect<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut all = Vec::new();
    while let Some(message) = stream.message().await? {
        all.push(message);
    }
    Ok(all)
}

/// Applies and removes objects, each call with a deadline and an owner.
#[derive(Clone, Debug)]
pub(crate) struct FileClient {
    scheduler: SchedulerClient<Channel>,
    control: ControlClient<Channel>,
    rollouts: RolloutsClient<Channel>,
}

impl FileClient {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            scheduler: SchedulerClient::new(channel.clone()),
            control: ControlClient::new(channel.clone()),
            rollouts: RolloutsClient::new(channel),
        }
    }

    /// Applies an object. An object of another file is adopted: one process watches all files, so the owner is an
    /// earlier run of this one, before the object moved between files.
    pub(crate) async fn apply(&self, object: &Object, manager: &str) -> Result<(), Status> {
        let refused = match self.try_apply(object, manager).await {
            Err(error) if ownership_refusal(&error).is_some() => error,
            other => return other,
        };
        let (kind, name) = (object.kind(), object.name());
        let owner = self.owner(kind, name).await.unwrap_or_default();
        if !owner.starts_with(FILE_OWNER_PREFIX) {
            return Err(refused);
        }
        let adopt = AdoptRequest { kind: kind.name().to_lowercase(), name: name.to_owned() };
        self.control.clone().adopt(request(adopt, manager)).await?;
        self.try_apply(object, manager).await
    }

    async fn try_apply(&self, object: &Object, manager: &str) -> Result<(), Status> {
        match object {
            Object::Model(model) => {
                let message = LoadModelRequest { model: Some(model.to_proto()) };
                self.scheduler.clone().load_model(request(message, manager)).await.map(drop)
            }
            Object::Server(server) => self.notify(server.to_proto(), manager).await,
            Object::Pipeline(pipeline) => {
                let message = LoadPipelineRequest { pipeline: Some(pipeline.to_proto()) };
                self.scheduler.clone().load_pipeline(request(message, manager)).await.map(drop)
            }
            Object::Experiment(experiment) => {
                let message = StartExperimentRequest { experiment: Some(experiment.to_proto()) };
                self.scheduler.clone().start_experiment(request(message, manager)).await.map(drop)
            }
            Object::RolloutPolicy(policy) => {
                self.rollouts.clone().put_policy(request(policy.to_proto(), manager)).await.map(drop)
            }
        }
    }

    /// Removes an object, unless it has an owner other than a file by now.
    pub(crate) async fn remove(&self, kind: Kind, name: &str, default_owner: &str) -> Result<(), Status> {
        let owner = self.owner(kind, name).await.filter(|o| o.starts_with(FILE_OWNER_PREFIX));
        let manager = owner.as_deref().unwrap_or(default_owner);
        let removed = match kind {
            Kind::Model => {
                let model = Some(ModelReference { name: name.to_owned(), version: None });
                let message = UnloadModelRequest { model, kubernetes_meta: None };
                self.scheduler.clone().unload_model(request(message, manager)).await.map(drop)
            }
            Kind::Server => {
                let absent = ServerNotify { name: name.to_owned(), shared: true, ..ServerNotify::default() };
                self.notify(absent, manager).await
            }
            Kind::Pipeline => {
                let message = UnloadPipelineRequest { name: name.to_owned() };
                self.scheduler.clone().unload_pipeline(request(message, manager)).await.map(drop)
            }
            Kind::Experiment => {
                let message = StopExperimentRequest { name: name.to_owned() };
                self.scheduler.clone().stop_experiment(request(message, manager)).await.map(drop)
            }
            Kind::RolloutPolicy => {
                let message = DeletePolicyRequest { name: name.to_owned() };
                self.rollouts.clone().delete_policy(request(message, manager)).await.map(drop)
            }
        };
        match removed {
            // Already gone, or not ours: nothing is left to do.
            Err(error) if error.code() == Code::FailedPrecondition => Ok(()),
            other => other,
        }
    }

    /// Announces the new replica count of a server, on behalf of its owner.
    pub(crate) async fn announce(&self, server: ServerNotify) -> Result<(), Status> {
        let owner = self.owner(Kind::Server, &server.name).await.filter(|o| !o.is_empty());
        self.notify(server, owner.as_deref().unwrap_or("owner")).await
    }

    async fn notify(&self, server: ServerNotify, manager: &str) -> Result<(), Status> {
        let message = ServerNotifyRequest { servers: vec![server], is_first_sync: false };
        self.scheduler.clone().server_notify(request(message, manager)).await.map(drop)
    }

    async fn owner(&self, kind: Kind, name: &str) -> Option<String> {
        let mut scheduler = self.scheduler.clone();
        let subscriber_name = SUBSCRIBER.to_owned();
        let status = async {
            Ok::<_, Status>(match kind {
                Kind::Model => {
                    let model = Some(ModelReference { name: name.to_owned(), version: None });
                    let request = ModelStatusRequest { subscriber_name, model, all_versions: false };
                    let found = collect(scheduler.model_status(request).await?.into_inner()).await?;
                    found.into_iter().next().filter(|m| !m.deleted).map(|m| m.manager)
                }
                Kind::Server => {
                    let request = ServerStatusRequest { subscriber_name, name: Some(name.to_owned()) };
                    let found = collect(scheduler.server_status(request).await?.into_inner()).await?;
                    found.into_iter().next().map(|s| s.manager)
                }
                Kind::Pipeline => {
                    let name = Some(name.to_owned());
                    let request = PipelineStatusRequest { subscriber_name, name, all_versions: false };
                    let found = collect(scheduler.pipeline_status(request).await?.into_inner()).await?;
                    found.into_iter().next().map(|p| p.manager)
                }
                Kind::Experiment => {
                    let request = ExperimentStatusRequest { subscriber_name, name: Some(name.to_owned()) };
                    let found = collect(scheduler.experiment_status(request).await?.into_inner()).await?;
                    found.into_iter().next().map(|e| e.manager)
                }
                // Policies have no owner.
                Kind::RolloutPolicy => None,
            })
        };
        tokio::time::timeout(CALL_TIMEOUT, status).await.ok()?.ok()?
    }
}

fn request<T>(message: T, manager: &str) -> Request<T> {
    let mut request = with_manager(message, manager);
    request.set_timeout(CALL_TIMEOUT);
    request
}
