//! Routing table access for simulations and tests, without a listener.

use super::{InFlightRequest, Routes, SelectError, Selector};
use crate::{metrics::Metrics, policy::result_class::ResultClass};
use std::{collections::BTreeSet, sync::Arc};
use tokio::time::Instant;

/// A request counted on its target until dropped.
pub struct TestRequest(InFlightRequest);

impl TestRequest {
    /// The model that the request is sent to: an experiment may have taken over the name.
    pub fn model(&self) -> &str {
        &self.0.version.model
    }

    pub fn version(&self) -> u32 {
        self.0.version.number
    }

    pub fn replica(&self) -> (&str, u32) {
        (&self.0.endpoint.server, self.0.endpoint.replica)
    }

    /// Counts the request as answered, if the model has a rollout.
    pub fn succeed(self) {
        if let Some(attribution) = &self.0.attribution {
            attribution.record(ResultClass::Success, Instant::now());
        }
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new(Arc::new(Metrics::new()))
    }
}

impl Routes {
    /// Starts a request for this model; `random` selects version and replica.
    pub fn start_test_request(&self, model: &str, random: u64) -> Result<TestRequest, String> {
        let selector = Selector { random, max_in_flight: usize::MAX, ..Selector::default() };
        let acquired = match self.acquire(model, &selector) {
            Err(SelectError::TakenOver(experiment)) => {
                let candidate = experiment.pick(None, random.rotate_left(32));
                let candidate = candidate.ok_or_else(|| format!("{experiment:?} has no candidate"))?;
                self.acquire(&candidate.name, &Selector { is_chosen: true, ..selector })
            }
            acquired => acquired,
        };
        acquired.map(TestRequest).map_err(|error| match error {
            SelectError::UnknownModel
            | SelectError::UnknownComponent
            | SelectError::UnknownVersion { .. } => {
                format!("there is no model {model:?}")
            }
            SelectError::TakenOver(experiment) => format!("{experiment:?} chooses the model"),
            SelectError::NoReplica { reason, .. } => reason,
            SelectError::CircuitOpen { .. } | SelectError::AtCapacity { .. } => {
                "no replica accepts more requests".into()
            }
        })
    }

    /// Current targets of a model: version, server, replica.
    pub fn routed(&self, model: &str) -> BTreeSet<(u32, String, u32)> {
        let found = self.inner.table.find(model);
        let route = found.as_ref().and_then(|f| f.slot(model)).and_then(|slot| slot.route.load_full());
        let Some(route) = route else { return BTreeSet::new() };
        let target =
            |t: &Arc<super::Target>| (t.version.number, t.endpoint.server.clone(), t.endpoint.replica);
        let weighted = route.versions.iter().filter(|v| v.weight > 0);
        weighted.flat_map(|v| v.targets.iter().map(target)).collect()
    }

    /// The UID of the version of a pipeline that requests run on, and whether it is ready.
    pub fn executed(&self, pipeline: &str) -> Option<(String, bool)> {
        self.pipeline(pipeline).map(|pipeline| (pipeline.uid.clone(), pipeline.ready))
    }

    /// Whether the experiment splits traffic.
    pub fn is_active(&self, experiment: &str) -> bool {
        self.experiment(experiment).is_some_and(|experiment| experiment.active)
    }
}
