//! Input of an `InferenceService`'s plan.

use super::{InferenceServiceController, LABEL, config::CONFIG_MAP, runtime::Runtime};
use crate::{
    caches::Caches,
    cluster::{
        ClusterServingRuntime, ClusterStorageContainer, Custom, CustomKind, InferenceService, Key,
        OwnedObject, ResourceKind, ServingRuntime,
    },
    controller::Controller as _,
    plan::Known,
    workload::{ApplyFailure, OwnedObjects},
};
use gantry_api::kserve::{ClusterStorageContainerSpec, ServingRuntimeSpec};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<InferenceService>>>,
    /// The `ConfigMap` `inferenceservice-config`.
    pub config: Known<Arc<OwnedObject>>,
    pub config_namespace: String,
    /// Runtimes of the namespace and of the cluster.
    pub runtimes: Vec<Runtime>,
    pub storage_containers: Vec<ClusterStorageContainerSpec>,
    /// Our own image, which downloads artifacts.
    pub image: String,
    pub owned: OwnedObjects,
    /// Pods of its components.
    pub pods: Vec<Arc<OwnedObject>>,
    /// Whether the cluster has `HTTPRoutes`.
    pub has_http_routes: bool,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
    /// Time since the last status write.
    pub status_age: Option<Duration>,
}

/// Key of the `ConfigMap`.
pub(super) fn config_key(caches: &Caches) -> Key {
    Key::new(caches.settings.namespace.clone(), CONFIG_MAP)
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let object = caches.of::<InferenceService>().get(key);
        let uid = object.as_ref().map_or("", |o| o.uid());
        let namespaced = caches.of::<ServingRuntime>().in_namespace(&key.namespace);
        let cluster_wide = caches.of::<ClusterServingRuntime>().all();
        let runtimes = namespaced
            .iter()
            .filter_map(|runtime| runtime_of(runtime, false))
            .chain(cluster_wide.iter().filter_map(|runtime| runtime_of(runtime, true)));
        let storage_containers = caches.of::<ClusterStorageContainer>().all();
        let is_of = |pod: &Arc<OwnedObject>| {
            pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)) == Some(&key.name)
        };
        let pods = caches.read(InferenceServiceController::PODS).in_namespace(&key.namespace);
        Self {
            key: key.clone(),
            config: caches.inputs.get(ResourceKind::CONFIG_MAP, &config_key(caches)),
            config_namespace: caches.settings.namespace.clone(),
            runtimes: runtimes.collect(),
            storage_containers: storage_containers
                .iter()
                .filter(|container| !container.is_disabled)
                .filter_map(|container| container.spec.clone().ok())
                .collect(),
            image: caches.settings.image.clone(),
            owned: OwnedObjects::of(caches, InferenceServiceController::OWNS, &key.namespace, uid),
            pods: pods.into_iter().filter(is_of).collect(),
            has_http_routes: caches.is_served(ResourceKind::HTTP_ROUTE),
            failures: caches.recent_failures.of::<InferenceService>(key),
            status_age: caches.recent_failures.status_age::<InferenceService>(key),
            object,
        }
    }
}

/// A runtime whose spec can be read.
fn runtime_of<K>(runtime: &Custom<K>, is_cluster_wide: bool) -> Option<Runtime>
where
    K: CustomKind<Spec = ServingRuntimeSpec>,
{
    Some(Runtime {
        name: runtime.metadata.name.clone()?,
        is_cluster_wide,
        created: runtime.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        annotations: runtime.metadata.annotations.clone().unwrap_or_default(),
        spec: runtime.spec.clone().ok()?,
    })
}
