//! `kube::Client` against the simulator, on virtual time.

mod controllers;
mod faults;
mod objects;

use super::*;
use ::kube::{
    Api, Client, Error,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use std::time::Duration;

pub(super) fn registry() -> Registry {
    let mut registry = Registry::built_in();
    registry.add_custom("mlops.seldon.io", "v1alpha1", "models", "Model", true);
    registry
}

pub(super) fn server() -> Server {
    Server::new(registry(), 7, "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap())
}

pub(super) fn models(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("mlops.seldon.io", "v1alpha1", "Model");
    Api::namespaced_with(client.clone(), "default", &ApiResource::from_gvk_with_plural(&kind, "models"))
}

pub(super) fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

pub(super) fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"value": value}}, "data": {"value": value},
    }))
    .unwrap()
}

pub(super) fn stateful_set(replicas: i64, image: &str) -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": image}]},
            },
        },
    })
}

pub(super) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result.unwrap_err() {
        Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// Waits for a condition in virtual time.
pub(super) async fn until<T>(mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..10_000 {
        if let Some(found) = holds().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the condition never held");
}
