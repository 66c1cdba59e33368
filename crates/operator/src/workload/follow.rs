//! Objects that do not follow changes of their configuration by themselves.
//!
//! Without a memory of its own the operator has to see on the object itself what it was made from. Two annotations say
//! so: which state of the configuration, and what was asked besides. An object that was made from an older state, for
//! the same question, is kept; a new question is answered from the latest state.

use crate::cluster::{OwnedObject, Desired, digest};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The annotation with the configuration's state.
const CONFIG: &str = "gantry.dev/config-generation";
/// The annotation with the digest of what was asked.
const ASKED: &str = "gantry.dev/asked";

/// What an object is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    config: String,
    asked: String,
}

impl Marks {
    /// From a state of a configuration, for what was asked. How many are asked for is no part of the question.
    pub fn new(config_uid: &str, config_generation: i64, asked: &impl Serialize) -> Self {
        let asked = serde_json::to_value(asked).unwrap_or_default();
        Self { config: format!("{config_uid}/{config_generation}"), asked: digest(&asked) }
    }

    /// For the object.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(CONFIG.into(), self.config.clone()), (ASKED.into(), self.asked.clone())])
    }

    /// Whether an object is to stay as it is, although its configuration is another now.
    pub fn keep(&self, live: &OwnedObject) -> bool {
        let mark = |name| live.metadata.annotations.as_ref().and_then(|a| a.get(name));
        mark(ASKED) == Some(&self.asked)
            && mark(CONFIG).is_some_and(|config| *config != self.config)
    }

    /// A workload that stays as it is, with as many pods as are wanted now. `None` when it has them.
    pub fn resized(live: &OwnedObject, wanted: &Desired) -> Option<Desired> {
        let replicas = wanted.body.pointer("/spec/replicas")?;
        if live.data.pointer("/spec/replicas") == Some(replicas) {
            return None;
        }
        let mut body = wanted.body.clone();
        for part in ["template", "volumeClaimTemplates"] {
            let kept = live.data.pointer(&format!("/spec/{part}"));
            if let Some(spec) = body.pointer_mut("/spec").and_then(Value::as_object_mut) {
                match kept {
                    Some(kept) => spec.insert(part.to_owned(), said(kept)),
                    None => spec.remove(part),
                };
            }
        }
        let annotations = live.metadata.annotations.iter().flatten();
        let marks: BTreeMap<&String, &String> =
            annotations.filter(|(name, _)| [CONFIG, ASKED].contains(&name.as_str())).collect();
        if let Some(metadata) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.insert("annotations".into(), json!(marks));
        }
        Some(Desired::new(wanted.kind, wanted.key.clone(), body))
    }
}

/// The value without what it does not say.
fn said(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            fields.iter().filter(|(_, v)| !v.is_null()).map(|(name, v)| (name.clone(), said(v))).collect()
        }
        Value::Array(list) => list.iter().map(said).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ResourceKind, Key};

    fn made(marks: &Marks, replicas: u32, image: &str) -> Desired {
        let body = json!({
            "metadata": { "annotations": marks.annotations() },
            "spec": { "replicas": replicas, "template": { "spec": { "containers": [{ "name": "a", "image": image }] } } },
        });
        Desired::new(ResourceKind::STATEFUL_SET, Key::new("ns", "a"), body)
    }

    fn live(desired: &Desired) -> OwnedObject {
        serde_json::from_value(desired.manifest()).unwrap()
    }

    #[test]
    fn an_object_is_kept_while_only_its_configuration_changes() {
        let first = Marks::new("u", 1, &"question");
        let there = live(&made(&first, 1, "old"));
        assert!(!first.keep(&there), "nothing changed");
        assert!(Marks::new("u", 2, &"question").keep(&there));
        assert!(Marks::new("another", 1, &"question").keep(&there));
        assert!(!Marks::new("u", 2, &"another question").keep(&there));
        assert!(
            !Marks::new("u", 2, &"question").keep(&OwnedObject::default()),
            "nobody knows what it was made from"
        );
    }

    #[test]
    fn what_is_kept_still_has_as_many_pods_as_are_wanted() {
        let (first, second) = (Marks::new("u", 1, &"question"), Marks::new("u", 2, &"question"));
        let there = live(&made(&first, 1, "old"));
        assert_eq!(Marks::resized(&there, &made(&second, 1, "new")), None);
        let resized = Marks::resized(&there, &made(&second, 3, "new")).unwrap();
        assert_eq!(resized, made(&first, 3, "old"));
        assert!(second.keep(&live(&resized)), "it stays kept");
    }
}
