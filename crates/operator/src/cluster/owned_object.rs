//! Objects of other kinds that the operator creates: live state, desired state, digest.

use super::{custom_resource::Key, resource_kind::ResourceKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The label of owned objects; watches select by it.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "gantry");
/// The annotation with the digest of the applied manifest.
pub const APPLIED: &str = "gantry.dev/applied";

/// A live object of another kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OwnedObject {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Everything else: spec, status, data.
    #[serde(flatten)]
    pub data: Value,
}

impl OwnedObject {
    /// Kind and UID of the controlling owner.
    pub fn controller(&self) -> Option<(&str, &str)> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.filter(|o| o.controller == Some(true)).map(|o| (o.kind.as_str(), o.uid.as_str())).next()
    }

    /// A number such as `/status/readyReplicas`; Kubernetes omits zeros.
    pub fn number(&self, pointer: &str) -> i64 {
        self.data.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    pub fn to_json(&self) -> Value {
        let mut whole = self.data.clone();
        if let (Value::Object(fields), Ok(metadata)) = (&mut whole, serde_json::to_value(&self.metadata)) {
            fields.insert("metadata".into(), metadata);
        }
        whole
    }

    /// The digest of the last applied manifest.
    pub fn applied(&self) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(APPLIED).map(String::as_str)
    }
}

impl kube::Resource for OwnedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Desired state of an owned object: only the fields that are ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    pub kind: ResourceKind,
    pub key: Key,
    /// The manifest without kind and name, which follow from the key.
    pub body: Value,
    /// The pod template of a workload without our own defaults; see [`adopted_from`](Self::adopted_from).
    pub base_pod: Option<Arc<Value>>,
}

impl Desired {
    pub const fn new(kind: ResourceKind, key: Key, body: Value) -> Self {
        Self { kind, key, body, base_pod: None }
    }

    #[must_use]
    pub fn with_base_pod(self, base_pod: Value) -> Self {
        Self { base_pod: Some(Arc::new(base_pod)), ..self }
    }

    /// The applied manifest, with our label and its digest.
    pub fn manifest(&self) -> Value {
        let mut whole = self.with_identity();
        let digest = digest(&whole);
        set(&mut whole, &["metadata", "annotations", APPLIED], Value::String(digest));
        whole
    }

    /// The digest changes also when a field is removed, which a comparison with the live object does not show.
    pub fn digest(&self) -> String {
        digest(&self.with_identity())
    }

    /// Whether the live object has no drift. Objects of a list have no `kind`.
    pub fn matches(&self, live: &OwnedObject) -> bool {
        let mut desired = self.manifest();
        if let Value::Object(fields) = &mut desired {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        live.applied() == Some(self.digest().as_str()) && super::drift::is_subset(&desired, &live.to_json())
    }

    fn with_identity(&self) -> Value {
        let mut whole = self.body.clone();
        set(&mut whole, &["apiVersion"], Value::String(self.kind.api_version()));
        set(&mut whole, &["kind"], Value::String(self.kind.kind.into()));
        set(&mut whole, &["metadata", "name"], Value::String(self.key.name.clone()));
        set(&mut whole, &["metadata", "namespace"], Value::String(self.key.namespace.clone()));
        set(&mut whole, &["metadata", "labels", MANAGED_BY.0], Value::String(MANAGED_BY.1.into()));
        whole
    }
}

/// Sets a value at a path, creating maps on the way.
fn set(at: &mut Value, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        *at = value;
        return;
    };
    if !at.is_object() {
        *at = Value::Object(serde_json::Map::new());
    }
    if let Value::Object(fields) = at {
        set(fields.entry((*first).to_owned()).or_insert(Value::Null), rest, value);
    }
}

/// 64 bits of FNV-1a over sorted JSON. Not cryptographic, but stable across versions of the operator.
pub(crate) fn digest(value: &Value) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in value.to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn digest_depends_on_content_only() {
        let key = Key::new("ns", "a");
        let one = Desired::new(ResourceKind::CONFIG_MAP, key.clone(), json!({"data": {"a": "1", "b": "2"}}));
        let same = Desired::new(ResourceKind::CONFIG_MAP, key.clone(), json!({"data": {"b": "2", "a": "1"}}));
        let fewer = Desired::new(ResourceKind::CONFIG_MAP, key, json!({"data": {"a": "1"}}));
        assert_eq!(one.digest(), same.digest());
        assert_ne!(one.digest(), fewer.digest());
        // Objects that an older version applied must not be written again.
        assert_eq!(one.digest(), "78b7ed418b88cc16");
        let manifest = one.manifest();
        assert_eq!(manifest.pointer("/metadata/annotations/gantry.dev~1applied"), Some(&json!(one.digest())));
        assert_eq!(manifest.pointer("/metadata/name"), Some(&json!("a")));
    }

    #[test]
    fn listed_object_without_kind_matches() {
        let desired =
            Desired::new(ResourceKind::CONFIG_MAP, Key::new("ns", "a"), json!({"data": {"a": "1"}}));
        let mut item = desired.manifest();
        let answer: OwnedObject = serde_json::from_value(item.clone()).unwrap();
        assert!(desired.matches(&answer));
        item.as_object_mut().unwrap().remove("kind");
        item.as_object_mut().unwrap().remove("apiVersion");
        let listed: OwnedObject = serde_json::from_value(item.clone()).unwrap();
        assert!(desired.matches(&listed));
        item["data"]["a"] = json!("2");
        let drifted: OwnedObject = serde_json::from_value(item).unwrap();
        assert!(!desired.matches(&drifted));
    }
}
