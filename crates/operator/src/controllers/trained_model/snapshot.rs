//! Input of a `TrainedModel`'s plan.

use super::{TrainedModelController, models_of, service_of};
use crate::{
    caches::Caches,
    cluster::{Custom, InferenceService, Key, TrainedModel},
    controller::Controller as _,
    controllers::inference_service::RouteScheduler,
    plan::Known,
    schedulers::ServiceView,
    workload::{ApplyFailure, OwnedObjects},
};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<TrainedModel>>>,
    /// Its `InferenceService`.
    pub service: Option<Arc<Custom<InferenceService>>>,
    /// All models of that service, itself included.
    pub models: Vec<Arc<Custom<TrainedModel>>>,
    /// The route of the service in Gantry's gateways, if these are its ingress.
    pub route: Known<ServiceView>,
    pub owned: OwnedObjects,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
    /// Time since the last status write.
    pub status_age: Option<Duration>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let object = caches.of::<TrainedModel>().get(key);
        let uid = object.as_ref().map_or("", |o| o.uid());
        let parent = object.as_deref().and_then(service_of).map(|name| Key::new(key.namespace.clone(), name));
        let route = |parent: &Key| Some(RouteScheduler::of::<InferenceService>(caches, parent)?.service);
        Self {
            key: key.clone(),
            service: parent.as_ref().and_then(|parent| caches.of::<InferenceService>().get(parent)),
            models: parent.iter().flat_map(|p| models_of(caches, &p.namespace, &p.name)).collect(),
            route: parent.as_ref().and_then(route).unwrap_or(Known::Absent),
            owned: OwnedObjects::of(caches, TrainedModelController::OWNS, &key.namespace, uid),
            failures: caches.recent_failures.of::<TrainedModel>(key),
            status_age: caches.recent_failures.status_age::<TrainedModel>(key),
            object,
        }
    }
}
