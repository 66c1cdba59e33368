//! Who serves external metrics in the cluster: this operator, another provider, or none.

use crate::{
    caches::Caches,
    cluster::{Algorithm, Key, OwnedObject, ResourceKind},
    external_metrics::API_SERVICE,
    inputs::InputRef,
    plan::Known,
};
use gantry_api::AlgorithmSpec;
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetricsApi {
    /// No autoscaler follows the latency.
    #[default]
    NotNeeded,
    /// The reason why it could not be read.
    Unknown(String),
    Missing,
    Registered {
        /// The Service that serves it, as `namespace/name`.
        service: String,
        /// Whether it was installed with Gantry.
        is_gantry: bool,
        /// Why the API server does not use it.
        unavailable: Option<String>,
    },
}

/// Whether an autoscaler follows the latency.
fn is_needed(spec: &AlgorithmSpec) -> bool {
    spec.is_autoscaled() && spec.target_latency_ms().is_some()
}

fn input() -> InputRef {
    (ResourceKind::API_SERVICE, Key::new("", API_SERVICE))
}

/// The registration of the API, for Algorithms whose autoscaler follows the latency.
pub(super) fn inputs(caches: &Caches, key: &Key) -> Vec<InputRef> {
    let object = caches.of::<Algorithm>().get(key);
    let is_needed = object.is_some_and(|object| object.spec.as_ref().is_ok_and(is_needed));
    is_needed.then(input).into_iter().collect()
}

impl MetricsApi {
    pub(super) fn of(caches: &Caches, spec: Option<&AlgorithmSpec>) -> Self {
        if !spec.is_some_and(is_needed) {
            return Self::NotNeeded;
        }
        let (kind, key) = input();
        match caches.inputs.get(kind, &key) {
            Known::Unknown(why) => Self::Unknown(caches.inputs.failure(kind, &key).unwrap_or(why)),
            Known::Absent => Self::Missing,
            Known::Present(object) => Self::registered(&object),
        }
    }

    fn registered(object: &OwnedObject) -> Self {
        let text = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let labels = object.metadata.labels.as_ref();
        let name = labels.and_then(|labels| labels.get("app.kubernetes.io/name"));
        let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
        let available = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Available"));
        let field =
            |name: &str| available.and_then(|c| c.get(name)).and_then(Value::as_str).unwrap_or_default();
        let unavailable = (field("status") != "True").then(|| match field("message") {
            "" => "it is not available yet".to_owned(),
            message => message.to_owned(),
        });
        Self::Registered {
            service: format!("{}/{}", text("/spec/service/namespace"), text("/spec/service/name")),
            is_gantry: name.is_some_and(|name| name == "gantry"),
            unavailable,
        }
    }
}
