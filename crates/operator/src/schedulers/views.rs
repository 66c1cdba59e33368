//! Objects as their scheduler reports them.

use crate::cluster::{CustomKind, Experiment, InferenceService, Model, Pipeline, RolloutPolicy, Server};
use gantry_proto::{
    gantry::{self as own, ServiceRoute, ServiceState},
    scheduler::{self as pb, pipeline_version_state::PipelineStatus},
};
use std::{any::Any, fmt};

/// An object of a kind as reported by its scheduler.
pub trait SchedulerView: Any + Clone + fmt::Debug + PartialEq + Send + Sync {
    type Kind: CustomKind;

    /// Whether the operator put it there for this namespace: without its object it is an orphan.
    fn is_owned_by(&self, namespace: &str) -> bool;
}

/// An object that ends some time after the request to unload it.
pub trait LoadedView: SchedulerView {
    /// The owner, such as `operator:ml`; empty when the scheduler does not report owners.
    fn manager(&self) -> &str;

    /// Namespace and generation of the object that it was loaded for.
    fn kubernetes_meta(&self) -> Option<&pb::KubernetesMeta>;

    /// Unload requested; it may still be ending.
    fn is_deleted(&self) -> bool;

    /// Whether nothing of it is left to unload.
    fn has_ended(&self) -> bool;

    /// Whether the operator loaded it for this namespace.
    fn is_from(&self, namespace: &str) -> bool {
        is_managed_by(self.manager(), namespace)
            && self.kubernetes_meta().is_some_and(|meta| meta.namespace == namespace)
    }
}

fn is_managed_by(manager: &str, namespace: &str) -> bool {
    manager.is_empty() || manager == owner(namespace)
}

/// The operator of a namespace as an owner.
pub(super) fn owner(namespace: &str) -> String {
    format!("operator:{namespace}")
}

/// A server as reported by its scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    /// Connected replicas.
    pub available: i32,
    /// Announced replicas.
    pub expected: i32,
    /// Loaded model replicas.
    pub loaded_models: i32,
    /// The announced generation.
    pub generation: Option<i64>,
    /// The namespace that announced it.
    pub namespace: Option<String>,
    /// The owner, such as `operator:ml`; empty when the scheduler does not report owners.
    pub manager: String,
    /// Replicas of a pending scaling request.
    pub requested_replicas: Option<i32>,
}

impl SchedulerView for ServerView {
    type Kind = Server;

    fn is_owned_by(&self, namespace: &str) -> bool {
        self.is_expected_for(namespace)
    }
}

impl ServerView {
    /// Whether the operator announced replicas for this namespace.
    pub fn is_expected_for(&self, namespace: &str) -> bool {
        self.expected > 0
            && is_managed_by(&self.manager, namespace)
            && self.namespace.as_deref() == Some(namespace)
    }
}

/// A model as reported by its scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelView {
    /// Unload requested; the model may still be terminating.
    pub deleted: bool,
    pub manager: String,
    pub latest: Option<pb::ModelVersionStatus>,
    /// With a rollout policy.
    pub serving: Option<ServingVersion>,
}

/// The version that was promoted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingVersion {
    pub version: u32,
    pub available: u32,
}

impl ModelView {
    pub fn state(&self) -> pb::model_status::ModelState {
        let report = self.latest.as_ref().and_then(|latest| latest.state.as_ref());
        report.map_or_else(Default::default, pb::ModelStatus::state)
    }
}

/// The latest version of a pipeline as reported by its scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineView {
    pub manager: String,
    pub pipeline: pb::Pipeline,
    pub state: pb::PipelineVersionState,
}

/// An experiment as reported by its scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentView(pub pb::ExperimentStatusResponse);

/// A rollout policy as reported by its scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyView {
    pub policy: own::RolloutPolicy,
    meta: pb::KubernetesMeta,
}

impl From<own::RolloutPolicy> for PolicyView {
    fn from(policy: own::RolloutPolicy) -> Self {
        let meta = pb::KubernetesMeta { namespace: policy.namespace.clone(), generation: policy.generation };
        Self { policy, meta }
    }
}

/// The route of an `InferenceService` or an `InferenceGraph` as reported by a scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceView {
    pub route: ServiceRoute,
    /// Every gateway serves it.
    pub admitted: bool,
    /// Why it is not admitted.
    pub reason: String,
    /// Requests wait for a component that is scaled to zero.
    pub waiting: bool,
    /// No request for the time that the route gives.
    pub idle: bool,
}

impl From<ServiceState> for ServiceView {
    fn from(ServiceState { route, admitted, reason, waiting, idle }: ServiceState) -> Self {
        Self { route: route.unwrap_or_default(), admitted, reason, waiting, idle }
    }
}

impl SchedulerView for ServiceView {
    type Kind = InferenceService;

    fn is_owned_by(&self, _: &str) -> bool {
        true
    }
}

macro_rules! loaded_views {
    ($($view:ty: $kind:ty;)*) => {$(
        impl SchedulerView for $view {
            type Kind = $kind;

            fn is_owned_by(&self, namespace: &str) -> bool {
                !self.is_deleted() && self.is_from(namespace)
            }
        }
    )*};
}

loaded_views! {
    ModelView: Model;
    PipelineView: Pipeline;
    ExperimentView: Experiment;
    PolicyView: RolloutPolicy;
}

/// Schedulers delete a policy at once.
impl LoadedView for PolicyView {
    fn manager(&self) -> &str {
        &self.policy.manager
    }

    fn kubernetes_meta(&self) -> Option<&pb::KubernetesMeta> {
        Some(&self.meta)
    }

    fn is_deleted(&self) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        true
    }
}

impl LoadedView for ModelView {
    fn manager(&self) -> &str {
        &self.manager
    }

    fn kubernetes_meta(&self) -> Option<&pb::KubernetesMeta> {
        self.latest.as_ref()?.kubernetes_meta.as_ref()
    }

    fn is_deleted(&self) -> bool {
        self.deleted
    }

    fn has_ended(&self) -> bool {
        use pb::model_status::ModelState;
        matches!(
            self.state(),
            ModelState::ModelTerminated
                | ModelState::ModelTerminateFailed
                | ModelState::ModelFailed
                | ModelState::ScheduleFailed
                | ModelState::Unknown
        )
    }
}

impl LoadedView for PipelineView {
    fn manager(&self) -> &str {
        &self.manager
    }

    fn kubernetes_meta(&self) -> Option<&pb::KubernetesMeta> {
        self.pipeline.kubernetes_meta.as_ref()
    }

    fn is_deleted(&self) -> bool {
        matches!(
            self.state.status(),
            PipelineStatus::PipelineTerminate
                | PipelineStatus::PipelineTerminating
                | PipelineStatus::PipelineTerminated
                | PipelineStatus::PipelineFailedTerminating
        )
    }

    fn has_ended(&self) -> bool {
        let ends = |status| {
            matches!(status, PipelineStatus::PipelineTerminate | PipelineStatus::PipelineTerminating)
        };
        !ends(self.state.status()) && !ends(self.state.pipeline_gw_status())
    }
}

impl LoadedView for ExperimentView {
    fn manager(&self) -> &str {
        &self.0.manager
    }

    fn kubernetes_meta(&self) -> Option<&pb::KubernetesMeta> {
        self.0.kubernetes_meta.as_ref()
    }

    /// Seldon's scheduler does not mark a stopped experiment; an experiment whose candidates and mirror are ready is
    /// inactive for no other reason there.
    fn is_deleted(&self) -> bool {
        let status = &self.0;
        let stopped = !status.active && status.candidates_ready && status.mirror_ready;
        status.deleted || (status.manager.is_empty() && stopped)
    }

    fn has_ended(&self) -> bool {
        !self.0.active
    }
}
