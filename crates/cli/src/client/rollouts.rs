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
use std::collections::BTreeMap;
use tonic::{Code, Status, Streaming};

impl Scheduler {
    /// The error has the scheduler's reason if the command has no effect.
    pub(crate) async fn steer_rollout(&self, object: &ObjectRef, action: Action) -> Result<(), CommandError> {
        let mut client = self.rollouts_client();
        let (model, pipeline) = match object.kind {
            Kind::Pipeline => (String::new(), object.name.clone()),
            _ => (object.name.clone(), String::new()),
        };
        let request = SteerRolloutRequest { model, action: action.into(), pipeline };
        match self.call(client.steer_rollout(as_cli(request))).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Err(self.not_found(object).await),
            Err(status) => Err(self.unsupported("rollouts", &status)),
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

/// The model or pipeline that is rolled out.
pub(crate) fn rolled_out(status: &RolloutStatus) -> ObjectRef {
    if status.pipeline.is_empty() {
        ObjectRef { kind: Kind::Model, name: status.model.clone() }
    } else {
        ObjectRef { kind: Kind::Pipeline, name: status.pipeline.clone() }
    }
}

/// The rollouts of a scheduler, kept up to date.
pub(crate) struct RolloutStream {
    scheduler: Scheduler,
    stream: Streaming<RolloutEvent>,
    synced: bool,
    rollouts: BTreeMap<ObjectRef, RolloutStatus>,
}

impl RolloutStream {
    /// The rollouts after the next change, without a deadline; the first call returns all that exist.
    pub(crate) async fn next(&mut self) -> Result<&BTreeMap<ObjectRef, RolloutStatus>, CommandError> {
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
                self.rollouts.insert(rolled_out(&status), status);
            }
            Some(Event::Delete(name)) => _ = self.rollouts.remove(&ObjectRef { kind: Kind::Model, name }),
            Some(Event::DeletePipeline(name)) => {
                self.rollouts.remove(&ObjectRef { kind: Kind::Pipeline, name });
            }
            Some(Event::Synced(_)) => self.synced = true,
            None => {}
        }
        Ok(())
    }
}
