#![allow(clippy::needless_pass_by_value, reason = "json!() literals as arguments")]

mod rotation;
mod rotation_policy;
mod validate;
mod wire;

use super::{review::decode, *};
use crate::{
    caches::Caches,
    cluster::{CustomKind as _, OwnedObject, ResourceKind},
    settings::Settings,
};
use serde_json::{Value, json};

/// The operator's namespace.
const OWN: &str = "ops";

fn settings() -> Settings {
    Settings { namespace: OWN.into(), ..Settings::default() }
}

/// Caches with these objects.
fn caches(objects: &[Value]) -> Caches {
    let caches = Caches::new(settings());
    macro_rules! fill {
        ($($kind:ident),*) => {$(
            let list = objects.iter().filter(|o| o["kind"] == crate::cluster::$kind::KIND).cloned();
            caches.of::<crate::cluster::$kind>().replace("", list.map(|o| serde_json::from_value(o).unwrap()).collect());
        )*};
    }
    fill!(Model, Server, ServerConfig, SeldonRuntime, SeldonConfig, Pipeline, Experiment, RolloutPolicy);
    let sets = objects.iter().filter(|o| o["kind"] == "StatefulSet").cloned();
    let sets: Vec<OwnedObject> = sets.map(|o| serde_json::from_value(o).unwrap()).collect();
    caches.owned(ResourceKind::STATEFUL_SET).replace("", sets);
    caches
}

fn object(kind: &str, place: &str, spec: Value) -> Value {
    let (namespace, name) = place.split_once('/').unwrap();
    json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "spec": spec,
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{kind}-{name}"), "generation": 1 },
    })
}

fn admission_request(operation: &str, object: Value, old: Value) -> AdmissionRequest {
    let about = if object.is_null() { &old } else { &object };
    let kind = about["kind"].as_str().unwrap_or_default();
    let resource = gantry_api::resources().into_iter().find(|r| r.kind == kind);
    let plural = resource.map_or("", |r| r.plural);
    let (group, version) =
        resource.map_or(gantry_api::API_VERSION, |r| r.api_version).split_once('/').unwrap();
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "q1", "operation": operation, "userInfo": {},
            "kind": { "group": group, "version": version, "kind": kind },
            "resource": { "group": group, "version": version, "resource": plural },
            "name": about["metadata"]["name"], "namespace": about["metadata"]["namespace"],
            "object": object, "oldObject": old,
        },
    });
    decode(review.to_string().as_bytes()).unwrap()
}
