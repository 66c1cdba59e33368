//! The actual state of the cluster, which invariants compare with the reported one.

use crate::scenario::{DesiredExperiment, DesiredModel, DesiredPipeline, DesiredService};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The outcome of a request to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Acknowledged,
    /// Nothing changed.
    Rejected,
    /// The request may or may not have taken effect.
    Unknown,
}

/// The possible desired states of an object, the latest last; `None` is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Possible<T>(pub(crate) Vec<Option<T>>);

impl<T> Default for Possible<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Possible<T> {
    /// Records a request before it is sent.
    pub(crate) fn request(&mut self, wanted: Option<T>) {
        if self.0.is_empty() {
            self.0.push(None);
        }
        self.0.push(wanted);
    }

    /// Records the response to the latest request.
    pub(crate) fn respond(&mut self, response: Response) {
        match response {
            Response::Acknowledged => {
                self.0.drain(..self.0.len().saturating_sub(1));
            }
            Response::Rejected => {
                self.0.pop();
            }
            Response::Unknown => {}
        }
    }

    /// The desired state, if it is certain.
    pub(crate) const fn certain(&self) -> Option<&Option<T>> {
        match self.0.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The latest request.
    pub(crate) fn latest(&self) -> Option<T> {
        self.0.last().cloned().flatten()
    }

    /// The scheduler may have forgotten the object.
    pub(crate) fn lose(&mut self) {
        if !self.0.is_empty() {
            self.0.insert(0, None);
        }
    }
}

/// A model as its clients know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelTruth {
    pub(crate) possible: Possible<DesiredModel>,
    /// Start of the current period in which it has to be served.
    pub(crate) available_since: Option<u64>,
    /// The content of each version ever loaded.
    pub(crate) contents: BTreeMap<u32, String>,
}

impl ModelTruth {
    /// Records a request before it is sent.
    pub(crate) fn request(&mut self, wanted: Option<DesiredModel>) {
        if wanted.as_ref().is_none_or(|desired| desired.replicas == 0) {
            self.available_since = None;
        }
        self.possible.request(wanted);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) models: BTreeMap<String, ModelTruth>,
    pub(crate) pipelines: BTreeMap<String, Possible<DesiredPipeline>>,
    pub(crate) experiments: BTreeMap<String, Possible<DesiredExperiment>>,
    pub(crate) services: BTreeMap<String, Possible<DesiredService>>,
    /// Until when the scheduler may have expired a host.
    expired: BTreeMap<String, u64>,
    /// Until when a host may be disconnected.
    disconnected: BTreeMap<String, u64>,
    /// Number of losses of the scheduler's state.
    pub(crate) state_losses: u64,
    /// Whether the scheduler may crash between rejecting a failed write and rolling it back.
    pub(crate) scheduler_crashes: bool,
    /// Nothing that must be served without a break is, until everything has come to rest.
    pub(crate) outages_allowed: bool,
}

/// The facts; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroundTruth(Arc<Mutex<Truth>>);

impl GroundTruth {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Truth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The scheduler has forgotten every object; requests in flight may still take effect.
    pub(crate) fn lose_state(&self) {
        let mut truth = self.lock();
        truth.state_losses += 1;
        truth.pipelines.values_mut().for_each(Possible::lose);
        truth.experiments.values_mut().for_each(Possible::lose);
        truth.services.values_mut().for_each(Possible::lose);
        for model in truth.models.values_mut().filter(|m| !m.possible.0.is_empty()) {
            model.possible.lose();
            model.available_since = None;
            model.contents.clear();
        }
    }

    /// The scheduler may have expired the host until then.
    pub(crate) fn mark_expired(&self, host: &str, until: u64) {
        extend(&mut self.lock().expired, host, until);
    }

    pub(crate) fn is_expired(&self, host: &str, now: u64) -> bool {
        self.lock().expired.get(host).is_some_and(|until| now <= *until)
    }

    /// The host may be disconnected until then.
    pub(crate) fn mark_disconnected(&self, host: &str, until: u64) {
        extend(&mut self.lock().disconnected, host, until);
    }

    pub(crate) fn is_disconnected(&self, host: &str, now: u64) -> bool {
        self.lock().disconnected.get(host).is_some_and(|until| now <= *until)
    }
}

fn extend(times: &mut BTreeMap<String, u64>, host: &str, until: u64) {
    let known = times.entry(host.to_owned()).or_default();
    *known = (*known).max(until);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Artifact;

    fn desired(content: u32) -> DesiredModel {
        let artifact = Artifact::Good;
        DesiredModel {
            content,
            artifact,
            memory: 1,
            requirement: "onnx".into(),
            replicas: 1,
            min: 0,
            server: None,
        }
    }

    #[test]
    fn acknowledged_state_is_certain_and_lost_response_is_not() {
        let mut model = Possible::default();
        model.request(Some(desired(1)));
        model.respond(Response::Acknowledged);
        assert_eq!(model.certain(), Some(&Some(desired(1))));
        model.request(Some(desired(2)));
        model.respond(Response::Unknown);
        assert_eq!(model.0, [Some(desired(1)), Some(desired(2))]);
        model.request(None);
        model.respond(Response::Rejected);
        assert_eq!(model.0, [Some(desired(1)), Some(desired(2))]);
        model.request(Some(desired(3)));
        model.respond(Response::Acknowledged);
        assert_eq!(model.certain(), Some(&Some(desired(3))));
    }
}
