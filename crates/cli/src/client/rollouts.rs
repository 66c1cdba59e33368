//! Rollouts of the scheduler.

use super::{
    Scheduler,
    scheduler::{SUBSCRIBER, as_cli},
};
use crate::{error::CommandError, object_ref::ObjectRef};
use gantry_api::Kind;
use gantry_proto::gantry::{
    RolloutEvent, RolloutStatus, SteerRolloutRequest, WatchRolloutsRequest, rollout_event::Event,
    steer_rollout_request::Action,
};
use std::{collections::BTreeMap, fmt};
use tonic::{Code, Status, Streaming};

impl Scheduler {
    /// The error has the scheduler's reason if the command has no effect.
    pub(crate) async fn steer_rollout(&self, object: &RolledOut, action: Action) -> Result<(), CommandError> {
        let mut client = self.rollouts_client();
        let mut request = SteerRolloutRequest { action: action.into(), ..SteerRolloutRequest::default() };
        match object {
            RolledOut::Service(name) => request.service.clone_from(name),
            RolledOut::Object(ObjectRef { kind: Kind::Pipeline, name }) => request.pipeline.clone_from(name),
            RolledOut::Object(ObjectRef { name, .. }) => request.model.clone_from(name),
        }
        match (self.call(client.steer_rollout(as_cli(request))).await, object) {
            (Ok(_), _) => Ok(()),
            (Err(status), RolledOut::Object(object)) if status.code() == Code::NotFound => {
                Err(self.not_found(object).await)
            }
            (Err(status), _) => Err(self.unsupported("rollouts", &status)),
        }
    }

    /// All rollouts.
    pub(crate) async fn rollouts(&self) -> Result<Vec<RolloutStatus>, CommandError> {
        let mut stream = self.watch_rollouts().await?;
        let synced = async {
            while !stream.synced {
                stream.apply_next().await?;
            }
            Ok(())
        };
        self.call(synced).await.map_err(|status| self.unsupported("rollouts", &status))?;
        Ok(stream.rollouts.into_values().collect())
    }

    pub(crate) async fn watch_rollouts(&self) -> Result<RolloutStream, CommandError> {
        let mut client = self.rollouts_client();
        let request = WatchRolloutsRequest { subscriber: SUBSCRIBER.to_owned() };
        let stream = self.call(client.watch_rollouts(request)).await;
        let stream = stream.map_err(|status| self.unsupported("rollouts", &status))?.into_inner();
        Ok(RolloutStream { scheduler: self.clone(), stream, synced: false, rollouts: BTreeMap::new() })
    }
}

/// An object whose versions are rolled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RolledOut {
    /// A model or a pipeline.
    Object(ObjectRef),
    /// An InferenceService in pods of its own, by `namespace/name`.
    Service(String),
}

impl RolledOut {
    pub(crate) fn of(status: &RolloutStatus) -> Self {
        match (status.pipeline.as_str(), status.service.as_str()) {
            ("", "") => Self::Object(ObjectRef { kind: Kind::Model, name: status.model.clone() }),
            (pipeline, "") => Self::Object(ObjectRef { kind: Kind::Pipeline, name: pipeline.to_owned() }),
            (_, service) => Self::Service(service.to_owned()),
        }
    }

    /// That of a service with its namespace.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Object(object) => &object.name,
            Self::Service(name) => name,
        }
    }

    /// As in manifests.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Object(ObjectRef { kind: Kind::Pipeline, .. }) => "Pipeline",
            Self::Object(_) => "Model",
            Self::Service(_) => "InferenceService",
        }
    }

    /// As commands name it: a model by its name, others with their kind.
    pub(crate) fn reference(&self) -> String {
        match self {
            Self::Object(ObjectRef { kind: Kind::Model, name }) => name.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for RolledOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(object) => object.fmt(f),
            Self::Service(name) => write!(f, "isvc/{name}"),
        }
    }
}

/// The rollouts of a scheduler, kept up to date.
pub(crate) struct RolloutStream {
    scheduler: Scheduler,
    stream: Streaming<RolloutEvent>,
    synced: bool,
    rollouts: BTreeMap<RolledOut, RolloutStatus>,
}

impl RolloutStream {
    /// The rollouts after the next change, without a deadline; the first call returns all that exist.
    pub(crate) async fn next(&mut self) -> Result<&BTreeMap<RolledOut, RolloutStatus>, CommandError> {
        loop {
            let result = self.apply_next().await;
            result.map_err(|status| self.scheduler.unsupported("rollouts", &status))?;
            if self.synced {
                return Ok(&self.rollouts);
            }
        }
    }

    async fn apply_next(&mut self) -> Result<(), Status> {
        let ended = || Status::unavailable("it is shutting down");
        match self.stream.message().await?.ok_or_else(ended)?.event {
            Some(Event::Reset(_)) => {
                self.rollouts.clear();
                self.synced = false;
            }
            Some(Event::Upsert(status)) => {
                self.rollouts.insert(RolledOut::of(&status), status);
            }
            Some(Event::Delete(name)) => {
                self.rollouts.remove(&RolledOut::Object(ObjectRef { kind: Kind::Model, name }));
            }
            Some(Event::DeletePipeline(name)) => {
                self.rollouts.remove(&RolledOut::Object(ObjectRef { kind: Kind::Pipeline, name }));
            }
            Some(Event::DeleteService(name)) => _ = self.rollouts.remove(&RolledOut::Service(name)),
            Some(Event::Synced(_)) => self.synced = true,
            None => {}
        }
        Ok(())
    }
}
