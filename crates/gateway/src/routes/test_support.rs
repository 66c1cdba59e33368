//! Routing table access for simulations and tests, without a listener.

use super::{InFlightRequest, Routes, SelectError};
use crate::metrics::Metrics;
use std::{collections::BTreeSet, sync::Arc};

/// A request counted on its target until dropped.
pub struct TestRequest(InFlightRequest);

impl TestRequest {
    pub fn version(&self) -> u32 {
        self.0.version.number
    }

    pub fn replica(&self) -> (&str, u32) {
        (&self.0.endpoint.server, self.0.endpoint.replica)
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
        self.acquire(model, None, random, &[], usize::MAX).map(TestRequest).map_err(|error| match error {
            SelectError::UnknownModel => format!("there is no model {model:?}"),
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
}
