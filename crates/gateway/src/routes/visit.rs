//! The table seen from outside: kept without a port, asked where a request would go.

use super::{Entered, Refused, Routes};
use crate::metrics::Metrics;
use std::{collections::BTreeSet, sync::Arc};

/// A request that is counted at its target until this is dropped.
pub struct Visit(Entered);

impl Visit {
    /// The version of the model that answers.
    pub fn version(&self) -> u32 {
        self.0.version.number
    }

    /// The server and the replica that answer.
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
    /// Sends a request of this model on its way, or says why it cannot go. `ticket` is any number: over many of them
    /// versions get their shares and replicas their turns.
    pub fn visit(&self, model: &str, ticket: u64) -> Result<Visit, String> {
        self.enter(model, None, ticket, &[], usize::MAX).map(Visit).map_err(|refused| match refused {
            Refused::Unknown => format!("there is no model {model:?}"),
            Refused::NoReplica { reason, .. } => reason,
            Refused::AllOpen { .. } | Refused::Full { .. } => "no replica takes more requests".into(),
        })
    }

    /// Where requests of this model go now: version, server, replica.
    pub fn routed(&self, model: &str) -> BTreeSet<(u32, String, u32)> {
        let found = self.inner.table.find(model);
        let route = found.as_ref().and_then(|f| f.cell(model)).and_then(|cell| cell.route.load_full());
        let Some(route) = route else { return BTreeSet::new() };
        let place =
            |t: &Arc<super::Target>| (t.version.number, t.endpoint.server.clone(), t.endpoint.replica);
        let weighted = route.versions.iter().filter(|v| v.weight > 0);
        weighted.flat_map(|v| v.targets.iter().map(place)).collect()
    }
}
