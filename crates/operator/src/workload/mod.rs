//! Workloads of Servers and runtimes: pod templates, owned objects, rollout progress, failed applies.

mod apply_failures;
mod auto_update;
mod builder;
pub mod certificates;
mod configmap_refs;
mod hpa;
mod inherited;
mod owned_objects;
mod pod_spec_merge;
mod rollout;

pub use apply_failures::{ApplyActions, ApplyFailure, FailureCause, apply_actions};
pub use auto_update::ConfigRevision;
pub use builder::{Workload, pod_disruption_budget, with_default_image};
pub use configmap_refs::{configmap_annotation, desired_configmap_digest, live_configmap_digest};
pub use hpa::autoscalers;
pub(crate) use hpa::{ScaleTarget, retargeted, strip_autoscaler};
pub use inherited::Inherited;
pub use owned_objects::{OwnedObjects, Owner};
pub use pod_spec_merge::merge;
pub use rollout::Rollout;
