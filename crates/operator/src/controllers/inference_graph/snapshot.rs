//! Input of an `InferenceGraph`'s plan.

use super::plan::services;
use crate::{
    caches::Caches,
    cluster::{Custom, InferenceGraph, InferenceService, Key, OwnedObject, ResourceKind},
    conditions::{ConditionStatus, READY, condition_status},
    controllers::inference_service::{RouteScheduler, config_key},
    plan::Known,
    schedulers::RouteKind,
};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<InferenceGraph>>>,
    /// The `ConfigMap` `inferenceservice-config`.
    pub config: Known<Arc<OwnedObject>>,
    /// Whether the services of its steps are ready in their latest generation; missing ones are absent.
    pub services: BTreeMap<String, bool>,
    /// Whether an `InferenceService` has its name, and with it its hosts.
    pub is_name_taken: bool,
    /// The scheduler of the gateways that execute it.
    pub scheduler: Option<RouteScheduler>,
    /// Schedulers that have its route.
    pub routed_by: Vec<String>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let object = caches.of::<InferenceGraph>().get(key);
        let all = caches.of::<InferenceService>();
        let at = |name: &str| Key::new(key.namespace.clone(), name);
        let spec = object.as_ref().and_then(|object| object.spec.as_ref().ok());
        let found = spec.map(services).unwrap_or_default().into_iter().filter_map(|name| {
            let service = all.get(&at(name))?;
            Some((name.to_owned(), is_ready(&service)))
        });
        Self {
            key: key.clone(),
            config: caches.inputs.get(ResourceKind::CONFIG_MAP, &config_key(caches)),
            services: found.collect(),
            is_name_taken: all.get(key).is_some(),
            scheduler: RouteScheduler::of::<InferenceGraph>(caches, key),
            routed_by: caches.schedulers.routed_by(key, RouteKind::Graph),
            object,
        }
    }
}

fn is_ready(service: &Custom<InferenceService>) -> bool {
    let Some(status) = &service.status else { return false };
    status.observed_generation == Some(service.generation())
        && condition_status(&status.conditions, READY) == Some(ConditionStatus::True)
}
