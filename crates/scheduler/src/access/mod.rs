//! Who may do what: the role of a caller, the table of roles and RPCs, and the layer that applies both to each call.
//!
//! ```text
//! connection (gantry-tls) ─▶ role: identity and rights ─▶ table: role × RPC ─▶ layer: deny, or call the service
//!                                                                               └─▶ service: caller × owner, replica, name
//! ```
//!
//! `role` and `table` are pure. Denied calls and changes are audited ([`crate::AuditLog`]).

mod caller;
mod layer;
mod role;
mod table;

#[cfg(test)]
mod attack_tests;
#[cfg(test)]
mod tests;

pub(crate) use caller::Caller;
pub(crate) use layer::guarded;
pub(crate) use table::Port;

pub use role::{Grant, Identity, Role, Trust, UnmarkedCertificates};

use crate::{audit::AuditLog, limited::Limited};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

/// Applies the rights of callers on a listener. Clones share the audit log and the metrics.
#[derive(Clone, Debug)]
pub struct Guard {
    trust: Trust,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    audit: Option<AuditLog>,
    denied: Family<RoleLabel, Counter>,
    /// Log events of denied calls.
    logged: Limited,
    /// Audited denials.
    audited: Limited,
}

impl Default for Guard {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Guard {
    /// Grants every caller all rights; changes are written to the audit log if there is one.
    pub fn new(audit: Option<AuditLog>) -> Self {
        let shared = Shared {
            audit,
            denied: Family::default(),
            logged: Limited::new(1),
            // A flood of denied calls must not push the changes out of the bounded log.
            audited: Limited::new(20),
        };
        Self { trust: Trust::Everyone, shared: Arc::new(shared) }
    }

    /// The same for a listener whose callers are identified in another way.
    #[must_use]
    pub fn with_trust(&self, trust: Trust) -> Self {
        Self { trust, shared: self.shared.clone() }
    }

    /// Registers `gantry_scheduler_calls_denied_total`, and the metrics of the audit log.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let own = registry.sub_registry_with_prefix("gantry_scheduler");
        own.register(
            "calls_denied",
            "Calls that the caller's role does not allow",
            self.shared.denied.clone(),
        );
        if let Some(audit) = &self.shared.audit {
            audit.register_metrics(own);
        }
    }
}
