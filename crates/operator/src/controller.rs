//! The contract of a controller.

use crate::{
    admission::{AdmissionRequest, Decision},
    caches::Caches,
    cluster::{CustomKind, Key, ResourceKind},
    inputs::InputRef,
    plan::Plan,
    triggers::Relation,
};
use k8s_openapi::jiff::Timestamp;

/// The controller of one custom kind: a snapshot of the caches and a pure plan, and the facts that the operator needs
/// to run it. [`Registry`](crate::controllers::Registry) turns the facts into a cache, a work queue, watches, triggers,
/// RBAC rules and admission.
pub trait Controller: Send + Sync + Sized + 'static {
    type Kind: CustomKind;
    type Snapshot: Send + Sync;
    /// Label in metrics, and the suffix of the field manager `gantry/<name>`.
    const NAME: &'static str;
    /// Kinds of the objects that it creates. A change of one enqueues its owner.
    const OWNS: &'static [ResourceKind] = &[];
    /// Kinds that it reads, no matter which manager their objects have.
    const READS: &'static [ResourceKind] = &[];
    /// Kinds of the objects in [`inputs`](Self::inputs).
    const INPUTS: &'static [ResourceKind] = &[];
    /// Whether only objects in the operator's namespace are used. With a list of namespaces, others are not watched.
    const OPERATOR_NAMESPACE_ONLY: bool = false;
    /// Whether its CRD may be missing, as after an upgrade. Start-up does not wait for it; it is discovered later.
    const OPTIONAL: bool = false;
    const SCHEDULER: SchedulerRole = SchedulerRole::None;
    /// Whether it patches its objects outside their status: finalizers, replicas.
    const PATCHES: bool = false;
    /// Whether many objects are expected, so that it gets all workers of the settings.
    const MANY: bool = false;
    /// Whether its plans depend on the time of the last status write.
    const PACED: bool = false;

    /// Changes of other kinds that enqueue objects of this kind.
    fn relations() -> Vec<Relation> {
        Vec::new()
    }

    /// Objects of other owners that the snapshot reads by name from [`Caches::inputs`]: Secrets, for example.
    fn inputs(_caches: &Caches, _key: &Key) -> Vec<InputRef> {
        Vec::new()
    }

    /// Reads caches only.
    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot;

    /// Pure and total.
    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<<Self::Kind as CustomKind>::Status>;

    /// The webhook's verdict on a change of an object of this kind; allows by default.
    fn admit(_request: &AdmissionRequest, _caches: &Caches) -> Decision {
        Decision::default()
    }
}

/// How the objects of a kind relate to the scheduler of their namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerRole {
    None,
    /// They need a scheduler.
    Client,
    /// They deploy one.
    Provider,
}
