//! Inputs by name: a kind that reads a `ConfigMap` of another owner.

use crate::registered::{get, start};
use gantry_operator::{
    Caches, Controller, InputRef,
    cluster::{Custom, CustomKind, Key, ResourceKind},
    controllers::Registry,
    plan::{Known, Plan},
};
use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug)]
struct Reader;

impl CustomKind for Reader {
    const GROUP: &'static str = "reports.example.com";
    const VERSION: &'static str = "v1";
    const KIND: &'static str = "Reader";
    const PLURAL: &'static str = "readers";
    type Spec = Value;
    type Status = Value;
}

struct ReaderController;

impl Controller for ReaderController {
    type Kind = Reader;
    type Snapshot = (Option<Arc<Custom<Reader>>>, Vec<Value>);
    const NAME: &'static str = "reader";
    const INPUTS: &'static [ResourceKind] = &[ResourceKind::CONFIG_MAP];

    fn inputs(caches: &Caches, key: &Key) -> Vec<InputRef> {
        let reader = caches.of::<Reader>().get(key);
        let name = reader.and_then(|r| r.spec.as_ref().ok()?.get("configMap")?.as_str().map(str::to_owned));
        name.map(|name| (ResourceKind::CONFIG_MAP, Key::new(key.namespace.clone(), name)))
            .into_iter()
            .collect()
    }

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        let read = |(kind, key): InputRef| match caches.inputs.get(kind, &key) {
            Known::Unknown(_) => json!("unknown"),
            Known::Absent => json!("absent"),
            Known::Present(object) => object.data["data"].clone(),
        };
        (caches.of::<Reader>().get(key), Self::inputs(caches, key).into_iter().map(read).collect())
    }

    fn plan((reader, inputs): &Self::Snapshot, _: Timestamp) -> Plan<Value> {
        Plan { status: reader.as_ref().map(|_| json!({ "inputs": inputs })), ..Plan::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn input_is_watched_by_name_while_it_is_referenced() {
    let kube = start(&[("readers", "Reader", true)], Registry::built_in().with::<ReaderController>()).await;
    let client = kube.client("user", "ml");
    let readers: Api<Custom<Reader>> = Api::namespaced_with(client.clone(), "ml", &());
    let maps: Api<ConfigMap> = Api::namespaced(client, "ml");
    let seen = async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        get(&kube, "readers.reports.example.com", "ml", "a", "/status/inputs")
    };
    let reader = json!({ "metadata": { "name": "a" }, "spec": { "configMap": "colours" } });
    readers.create(&PostParams::default(), &serde_json::from_value(reader).unwrap()).await.unwrap();
    assert_eq!(seen().await, json!(["absent"]));
    let map = |colour: &str| json!({ "metadata": { "name": "colours" }, "data": { "sky": colour } });
    maps.create(&PostParams::default(), &serde_json::from_value(map("blue")).unwrap()).await.unwrap();
    assert_eq!(seen().await, json!([{ "sky": "blue" }]));
    maps.patch("colours", &PatchParams::default(), &Patch::Merge(map("grey"))).await.unwrap();
    assert_eq!(seen().await, json!([{ "sky": "grey" }]));
    maps.delete("colours", &DeleteParams::default()).await.unwrap();
    assert_eq!(seen().await, json!(["absent"]));
    let spec = json!({ "spec": { "configMap": null } });
    readers.patch("a", &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap();
    assert_eq!(seen().await, json!([]));
}
