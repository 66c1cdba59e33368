//! `disableAutoUpdate`: objects that are not updated when only their configuration changes.
//!
//! Two annotations record the source of an object: the version of its configuration and a hash of the owner's spec.
//! An object with the same hash and another generation is kept; a changed spec is built from the latest configuration.

use super::inherited::Inherited;
use crate::cluster::{Desired, OwnedObject, digest};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CONFIG_GENERATION: &str = "gantry.dev/config-generation";
const SPEC_HASH: &str = "gantry.dev/spec-hash";
/// The name of [`SPEC_HASH`] on objects created by version 0.1.0.
const LEGACY_SPEC_HASH: &str = "gantry.dev/asked";

/// The source of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRevision {
    config: String,
    spec_hash: String,
}

impl ConfigRevision {
    /// `spec` is the owner's spec without replicas.
    pub fn new(config_uid: &str, config_generation: i64, spec: &impl Serialize) -> Self {
        let spec = serde_json::to_value(spec).unwrap_or_default();
        Self { config: format!("{config_uid}/{config_generation}"), spec_hash: digest(&spec) }
    }

    /// Adds inherited metadata, which has no generation. Without any, the revision is as older versions recorded it.
    #[must_use]
    pub fn with_metadata(mut self, config: &Inherited, owner: &Inherited) -> Self {
        if !config.is_empty() {
            self.config = format!("{}/{}", self.config, digest(&json!(config)));
        }
        if !owner.is_empty() {
            self.spec_hash = digest(&json!([self.spec_hash, owner]));
        }
        self
    }

    pub fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (CONFIG_GENERATION.into(), self.config.clone()),
            (SPEC_HASH.into(), self.spec_hash.clone()),
        ])
    }

    /// Whether an object is kept although its configuration has changed.
    pub fn keeps(&self, live: &OwnedObject) -> bool {
        let annotation = |name| live.metadata.annotations.as_ref().and_then(|a| a.get(name));
        annotation(SPEC_HASH).or_else(|| annotation(LEGACY_SPEC_HASH)) == Some(&self.spec_hash)
            && annotation(CONFIG_GENERATION).is_some_and(|config| *config != self.config)
    }

    /// A kept workload with the desired replicas; `None` when it has them.
    pub fn scaled(live: &OwnedObject, desired: &Desired) -> Option<Desired> {
        let replicas = desired.body.pointer("/spec/replicas")?;
        if live.data.pointer("/spec/replicas") == Some(replicas) {
            return None;
        }
        let mut body = desired.body.clone();
        for part in ["template", "volumeClaimTemplates"] {
            let kept = live.data.pointer(&format!("/spec/{part}"));
            if let Some(spec) = body.pointer_mut("/spec").and_then(Value::as_object_mut) {
                match kept {
                    Some(kept) => spec.insert(part.to_owned(), without_nulls(kept)),
                    None => spec.remove(part),
                };
            }
        }
        let names = [CONFIG_GENERATION, SPEC_HASH, LEGACY_SPEC_HASH];
        let recorded = live.metadata.annotations.iter().flatten();
        let recorded = recorded.filter(|(name, _)| names.contains(&name.as_str()));
        if let Some(annotations) = body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !names.contains(&name.as_str()));
            annotations.extend(recorded.map(|(name, value)| (name.clone(), json!(value))));
        }
        Some(Desired::new(desired.kind, desired.key.clone(), body))
    }
}

/// Keeps the old annotation name on objects that have it, so that an upgrade causes no write.
pub(super) fn keep_legacy_annotation(desired: &Desired, live: Option<&OwnedObject>) -> Desired {
    let mut desired = desired.clone();
    let annotations = live.and_then(|live| live.metadata.annotations.as_ref());
    if annotations.is_some_and(|a| a.contains_key(LEGACY_SPEC_HASH))
        && let Some(annotations) =
            desired.body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
        && let Some(hash) = annotations.remove(SPEC_HASH)
    {
        annotations.insert(LEGACY_SPEC_HASH.into(), hash);
    }
    desired
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, v)| !v.is_null());
            fields.map(|(name, v)| (name.clone(), without_nulls(v))).collect()
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Key, ResourceKind};

    fn workload(revision: &ConfigRevision, replicas: u32, image: &str) -> Desired {
        let body = json!({
            "metadata": { "annotations": revision.annotations() },
            "spec": { "replicas": replicas, "template": { "spec": { "containers": [{ "name": "a", "image": image }] } } },
        });
        Desired::new(ResourceKind::STATEFUL_SET, Key::new("ns", "a"), body)
    }

    fn live(desired: &Desired) -> OwnedObject {
        serde_json::from_value(desired.manifest()).unwrap()
    }

    /// The object as version 0.1.0 created it.
    fn legacy(desired: &Desired) -> Desired {
        let text = desired.body.to_string().replace(SPEC_HASH, LEGACY_SPEC_HASH);
        Desired::new(desired.kind, desired.key.clone(), serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn object_is_kept_when_only_its_configuration_changes() {
        let first = ConfigRevision::new("u", 1, &"spec");
        let current = workload(&first, 1, "old");
        for object in [live(&current), live(&legacy(&current))] {
            assert!(!first.keeps(&object), "unchanged");
            assert!(ConfigRevision::new("u", 2, &"spec").keeps(&object));
            assert!(ConfigRevision::new("another", 1, &"spec").keeps(&object));
            assert!(!ConfigRevision::new("u", 2, &"another spec").keeps(&object));
        }
        assert!(!ConfigRevision::new("u", 2, &"spec").keeps(&OwnedObject::default()), "unknown source");
    }

    #[test]
    fn inherited_metadata_counts_as_its_source() {
        let inherited =
            |team: &str| Inherited { labels: [("team".into(), team.into())].into(), ..Inherited::default() };
        let (none, red, blue) = (Inherited::default(), inherited("red"), inherited("blue"));
        let plain = ConfigRevision::new("u", 1, &"spec");
        assert_eq!(plain.clone().with_metadata(&none, &none), plain);
        let current = live(&workload(&plain.clone().with_metadata(&red, &red), 1, "old"));
        assert!(plain.clone().with_metadata(&blue, &red).keeps(&current), "only the configuration changed");
        assert!(plain.clone().with_metadata(&none, &red).keeps(&current));
        assert!(!plain.clone().with_metadata(&red, &blue).keeps(&current), "the owner changed");
        assert!(!plain.with_metadata(&red, &red).keeps(&current), "unchanged");
    }

    #[test]
    fn kept_object_is_scaled() {
        let (first, second) = (ConfigRevision::new("u", 1, &"spec"), ConfigRevision::new("u", 2, &"spec"));
        let current = live(&workload(&first, 1, "old"));
        assert_eq!(ConfigRevision::scaled(&current, &workload(&second, 1, "new")), None);
        let scaled = ConfigRevision::scaled(&current, &workload(&second, 3, "new")).unwrap();
        assert_eq!(scaled, workload(&first, 3, "old"));
        assert!(second.keeps(&live(&scaled)), "still kept");
    }

    #[test]
    fn legacy_annotation_is_kept_where_it_exists() {
        let desired = workload(&ConfigRevision::new("u", 1, &"spec"), 1, "image");
        assert_eq!(keep_legacy_annotation(&desired, Some(&live(&legacy(&desired)))), legacy(&desired));
        assert_eq!(keep_legacy_annotation(&desired, Some(&live(&desired))), desired);
        assert_eq!(keep_legacy_annotation(&desired, None), desired);
    }
}
