//! InferenceServices of KServe: a Deployment and a Service per component, and the route to them.

mod adoption;
mod agent;
mod art;
mod component;
pub mod config;
mod credentials;
mod delivery;
mod keda;
mod knative;
mod model_mesh;
mod model_status;
mod multi_node;
mod objects;
mod plan;
mod pod;
mod pods;
mod route;
pub mod runtime;
mod scale_to_zero;
mod snapshot;
mod status;
mod storage;
mod template;
#[cfg(test)]
mod tests;

pub use adoption::{AdoptionInput, preview};
pub(super) use config::Config;
pub use credentials::Credentials;
pub(super) use delivery::POLICY_ACCEPTED;
pub use delivery::Policy;
pub(super) use model_mesh::{MODELS, model_condition};
pub(super) use plan::{is_ours, is_stopped};
pub(super) use pods::is_ready as is_pod_ready;
pub use pods::strip_pod;
pub(super) use route::{Admission, admission, service_host};
pub(super) use snapshot::config_key;
pub use snapshot::{RouteScheduler, Snapshot};

use crate::{
    caches::Caches,
    cluster::{
        Change, ClusterServingRuntime, ClusterStorageContainer, Custom, InferenceService, Key, OwnedObject,
        ResourceKind, RolloutPolicy, ServingRuntime, TrainedModel,
    },
    controller::Controller,
    controllers::{rollout_policy, trained_model::services_of},
    inputs::InputRef,
    plan::Plan,
    triggers::Relation,
};
use gantry_api::{TargetKind, kserve::InferenceServiceStatus};
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// The label of all objects and pods of an `InferenceService`, with its name.
pub const LABEL: &str = "serving.kserve.io/inferenceservice";

#[derive(Clone, Copy, Debug)]
pub struct InferenceServiceController;

impl InferenceServiceController {
    /// Pods of all InferenceServices.
    pub const PODS: ResourceKind = ResourceKind::new("", "v1", "Pod", "pods").with_label(LABEL);
}

impl Controller for InferenceServiceController {
    type Kind = InferenceService;
    type Snapshot = Snapshot;
    const NAME: &'static str = "inferenceservice";
    const OWNS: &'static [ResourceKind] = &[
        ResourceKind::DEPLOYMENT,
        ResourceKind::SERVICE,
        ResourceKind::HORIZONTAL_POD_AUTOSCALER,
        ResourceKind::POD_DISRUPTION_BUDGET,
        ResourceKind::INGRESS,
        ResourceKind::HTTP_ROUTE,
        model_mesh::MODELS,
        ResourceKind::VIRTUAL_SERVICE,
        ResourceKind::SCALED_OBJECT,
        ResourceKind::KNATIVE_SERVICE,
    ];
    const READS: &'static [ResourceKind] = &[Self::PODS, ResourceKind::HORIZONTAL_POD_AUTOSCALER];
    const INPUTS: &'static [ResourceKind] =
        &[ResourceKind::CONFIG_MAP, ResourceKind::SERVICE_ACCOUNT, ResourceKind::SECRET];
    const MANY: bool = true;
    const PACED: bool = true;

    fn relations() -> Vec<Relation> {
        vec![
            Relation::to::<ServingRuntime>(|caches, change| {
                let services = caches.of::<InferenceService>().in_namespace(&change.key.namespace);
                users_of_runtime(&services, &change.key.name, false)
            }),
            Relation::to::<ClusterServingRuntime>(|caches, change| {
                users_of_runtime(&caches.of::<InferenceService>().all(), &change.key.name, true)
            }),
            Relation::to::<ClusterStorageContainer>(|caches, _: &Change<Custom<ClusterStorageContainer>>| {
                caches.of::<InferenceService>().all().iter().map(|service| service.key()).collect()
            }),
            Relation::to_read_kind(Self::PODS, service_of_pod),
            Relation::to::<TrainedModel>(|_, change| services_of(change)),
            Relation::to::<RolloutPolicy>(|caches, change: &Change<Custom<RolloutPolicy>>| {
                let services = caches.of::<InferenceService>().in_namespace(&change.key.namespace);
                let of_services = rollout_policy::concerns(change, TargetKind::InferenceService);
                services.iter().filter(|_| of_services).map(|service| service.key()).collect()
            }),
        ]
    }

    fn inputs(caches: &Caches, key: &Key) -> Vec<InputRef> {
        let mut inputs = vec![(ResourceKind::CONFIG_MAP, snapshot::config_key(caches))];
        inputs.extend(snapshot::credential_references(caches, key));
        inputs
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<InferenceServiceStatus> {
        plan::plan(snapshot, now)
    }
}

/// InferenceServices that use a runtime, and those that have none yet.
fn users_of_runtime(
    services: &[Arc<Custom<InferenceService>>],
    name: &str,
    is_cluster_wide: bool,
) -> Vec<Key> {
    let uses = |service: &&Arc<Custom<InferenceService>>| {
        let status = service.status.as_ref();
        let namespaced = status.and_then(|s| s.serving_runtime_name.as_deref());
        let cluster_wide = status.and_then(|s| s.cluster_serving_runtime_name.as_deref());
        let used = if is_cluster_wide { cluster_wide } else { namespaced };
        used == Some(name) || (namespaced.is_none() && cluster_wide.is_none())
    };
    services.iter().filter(uses).map(|service| service.key()).collect()
}

fn service_of_pod(_: &Caches, change: &Change<OwnedObject>) -> Vec<Key> {
    let label = |pod: &Arc<OwnedObject>| pod.metadata.labels.as_ref()?.get(LABEL).cloned();
    let names = change.before.iter().chain(&change.after).filter_map(label);
    names.map(|name| Key::new(change.key.namespace.clone(), name)).collect()
}
