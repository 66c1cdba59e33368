//! `TrainedModels` of KServe: further models of an `InferenceService` without one of its own, each a Model of the namespace's
//! scheduler.

mod memory;
mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

pub(super) use memory::allocated;
pub use snapshot::Snapshot;

use super::inference_service::MODELS;
use crate::{
    caches::Caches,
    cluster::{Change, Custom, InferenceService, Key, ResourceKind, TrainedModel},
    controller::Controller,
    plan::Plan,
    triggers::Relation,
};
use gantry_api::kserve::TrainedModelStatus;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
pub struct TrainedModelController;

impl Controller for TrainedModelController {
    type Kind = TrainedModel;
    type Snapshot = Snapshot;
    const NAME: &'static str = "trainedmodel";
    const OWNS: &'static [ResourceKind] = &[MODELS];
    const MANY: bool = true;
    const PACED: bool = true;

    fn relations() -> Vec<Relation> {
        vec![
            Relation::to::<InferenceService>(|caches, change| {
                keys(&models_of(caches, &change.key.namespace, &change.key.name))
            }),
            // They share the memory of their service.
            Relation::to::<TrainedModel>(|caches, change| {
                let services = services_of(change).into_iter();
                services.flat_map(|key| keys(&models_of(caches, &key.namespace, &key.name))).collect()
            }),
        ]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<TrainedModelStatus> {
        plan::plan(snapshot, now)
    }
}

fn keys(models: &[Arc<Custom<TrainedModel>>]) -> Vec<Key> {
    models.iter().map(|model| model.key()).collect()
}

fn service_of(model: &Custom<TrainedModel>) -> Option<&str> {
    model.spec.as_ref().ok().map(|spec| spec.inference_service.as_str())
}

/// The services of a model before and after a change of its spec; its status concerns no other object.
pub(super) fn services_of(change: &Change<Custom<TrainedModel>>) -> Vec<Key> {
    if let (Some(before), Some(after)) = (&change.before, &change.after)
        && before.spec == after.spec
        && before.is_deleted() == after.is_deleted()
    {
        return Vec::new();
    }
    let models = change.before.iter().chain(&change.after);
    let mut services: Vec<&str> = models.filter_map(|model| service_of(model)).collect();
    services.dedup();
    services.into_iter().map(|name| Key::new(change.key.namespace.clone(), name)).collect()
}

/// The models of a service that are not being deleted.
pub(super) fn models_of(caches: &Caches, namespace: &str, service: &str) -> Vec<Arc<Custom<TrainedModel>>> {
    let mut models = caches.of::<TrainedModel>().in_namespace(namespace);
    models.retain(|model| service_of(model) == Some(service) && !model.is_deleted());
    models
}
