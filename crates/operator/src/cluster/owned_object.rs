//! Objects of other kinds that the operator creates: live state, desired state, digest.

use super::{custom_resource::Key, resource_kind::ResourceKind};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// The label that says an object is ours. Watches select by it: what others make costs nothing.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "gantry");
/// The annotation that holds the digest of what was applied.
pub const APPLIED: &str = "gantry.dev/applied";

/// An object of one of these kinds as the API server has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OwnedObject {
    /// Name, labels, owners.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The rest: spec, status, data.
    #[serde(flatten)]
    pub data: Value,
}

impl OwnedObject {
    /// The object that an owner controls: its identity.
    pub fn controller(&self) -> Option<(&str, &str)> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.filter(|o| o.controller == Some(true)).map(|o| (o.kind.as_str(), o.uid.as_str())).next()
    }

    /// A number at a path, such as `/status/readyReplicas`; what Kubernetes leaves out is 0.
    pub fn number(&self, pointer: &str) -> i64 {
        self.data.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    /// The whole object as JSON, to hold what is wanted against it.
    pub fn whole(&self) -> Value {
        let mut whole = self.data.clone();
        if let (Value::Object(fields), Ok(metadata)) = (&mut whole, serde_json::to_value(&self.metadata)) {
            fields.insert("metadata".into(), metadata);
        }
        whole
    }

    /// The digest of what was applied to it last.
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

/// An object as it is to be: only the fields that are ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Its kind.
    pub kind: ResourceKind,
    /// Where it is to be.
    pub key: Key,
    /// The object as it is applied; `metadata.name` and `.namespace` are filled in from the key.
    pub body: Value,
    /// The pods of a workload without what this operator adds to them of its own accord; see
    /// [`adopting`](Self::adopting).
    pub bare: Option<Arc<Value>>,
}

impl Desired {
    /// An object with a body: labels and the like in `metadata`, and its own fields.
    pub const fn new(kind: ResourceKind, key: Key, body: Value) -> Self {
        Self { kind, key, body, bare: None }
    }

    /// The same, of pods that would be these without what this operator adds to them of its own accord.
    #[must_use]
    pub fn with_bare(self, bare: Value) -> Self {
        Self { bare: Some(Arc::new(bare)), ..self }
    }

    /// What is sent: the body with its names, the label that it is ours, and its digest.
    pub fn manifest(&self) -> Value {
        let mut whole = self.named();
        let digest = digest(&whole);
        set(&mut whole, &["metadata", "annotations", APPLIED], Value::String(digest));
        whole
    }

    /// The digest of what is wanted: a field that is taken out changes it, which a comparison with what is there would
    /// not see.
    pub fn digest(&self) -> String {
        digest(&self.named())
    }

    /// Whether the object is there as it is wanted. An object from a list does not say of which kind it is.
    pub fn is_there(&self, live: &OwnedObject) -> bool {
        let mut wanted = self.manifest();
        if let Value::Object(fields) = &mut wanted {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        live.applied() == Some(self.digest().as_str())
            && super::drift::holds(&wanted, &live.whole())
    }

    fn named(&self) -> Value {
        let mut whole = self.body.clone();
        set(&mut whole, &["apiVersion"], Value::String(self.kind.api_version()));
        set(&mut whole, &["kind"], Value::String(self.kind.kind.into()));
        set(&mut whole, &["metadata", "name"], Value::String(self.key.name.clone()));
        set(&mut whole, &["metadata", "namespace"], Value::String(self.key.namespace.clone()));
        set(&mut whole, &["metadata", "labels", MANAGED_BY.0], Value::String(MANAGED_BY.1.into()));
        whole
    }
}

/// Puts a value at a path of names, making the maps on the way.
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

/// 64 bits of FNV-1a over the text of the JSON, whose fields are in order. It is not a secret and not a defence: it
/// only has to differ when what is wanted differs, also between one version of the operator and the next.
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
    fn the_digest_is_of_what_is_wanted_and_of_nothing_else() {
        let key = Key::new("ns", "a");
        let one = Desired::new(ResourceKind::CONFIG_MAP, key.clone(), json!({"data": {"a": "1", "b": "2"}}));
        let same = Desired::new(ResourceKind::CONFIG_MAP, key.clone(), json!({"data": {"b": "2", "a": "1"}}));
        let fewer = Desired::new(ResourceKind::CONFIG_MAP, key, json!({"data": {"a": "1"}}));
        assert_eq!(one.digest(), same.digest());
        assert_ne!(one.digest(), fewer.digest());
        // Objects that an older operator applied must not be written again by a newer one.
        assert_eq!(one.digest(), "78b7ed418b88cc16");
        let manifest = one.manifest();
        assert_eq!(manifest.pointer("/metadata/annotations/gantry.dev~1applied"), Some(&json!(one.digest())));
        assert_eq!(manifest.pointer("/metadata/name"), Some(&json!("a")));
    }

    #[test]
    fn what_is_there_is_recognised_in_a_list_too() {
        let wanted = Desired::new(ResourceKind::CONFIG_MAP, Key::new("ns", "a"), json!({"data": {"a": "1"}}));
        let mut item = wanted.manifest();
        let answer: OwnedObject = serde_json::from_value(item.clone()).unwrap();
        assert!(wanted.is_there(&answer));
        item.as_object_mut().unwrap().remove("kind");
        item.as_object_mut().unwrap().remove("apiVersion");
        let listed: OwnedObject = serde_json::from_value(item.clone()).unwrap();
        assert!(wanted.is_there(&listed));
        item["data"]["a"] = json!("2");
        let drifted: OwnedObject = serde_json::from_value(item).unwrap();
        assert!(!wanted.is_there(&drifted));
    }
}
