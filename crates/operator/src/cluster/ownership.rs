//! Ownership of an existing object whose name a desired object needs.

use super::owned_object::{Desired, MANAGED_BY};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// The label that Seldon's operator and this one set.
const NAME: &str = "app.kubernetes.io/name";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It belongs to the desired owner, or to an operator without an owner: it may be changed.
    Ours,
    /// It belongs to a deleted object with the owner's name, and will be garbage collected.
    PreviousOwner(String),
    /// It must not be changed: why.
    Foreign(String),
}

/// Operators, also Seldon's, leave an owner reference or a label. An object with neither is foreign.
pub fn ownership_of(live: &ObjectMeta, desired: &Desired) -> Ownership {
    let owner = desired.body.pointer("/metadata/ownerReferences/0");
    let of_owner = |field: &str| owner.and_then(|o| o.get(field)).and_then(Value::as_str).unwrap_or_default();
    let references = || live.owner_references.iter().flatten();
    if references().any(|reference| reference.uid == of_owner("uid")) {
        return Ownership::Ours;
    }
    if let Some(other) = references().find(|reference| reference.controller == Some(true)) {
        let other_name = format!("{} {}", other.kind, other.name);
        return if other.kind == of_owner("kind") && other.name == of_owner("name") {
            Ownership::PreviousOwner(other_name)
        } else {
            Ownership::Foreign(format!("it belongs to {other_name}"))
        };
    }
    let label = |name: &str| live.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let desired_name = desired.body.pointer("/metadata/labels").and_then(|labels| labels.get(NAME));
    let is_unowned = label(MANAGED_BY.0) == Some(MANAGED_BY.1)
        || (desired_name.is_some() && desired_name.and_then(Value::as_str) == label(NAME));
    if is_unowned {
        Ownership::Ours
    } else {
        Ownership::Foreign("object exists and is not managed by Gantry".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Key, ResourceKind};
    use serde_json::json;

    #[test]
    fn unlabelled_object_is_foreign() {
        let reference = |kind: &str, name: &str, uid: &str, controls: bool| {
            json!({ "ownerReferences": [{
                "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": controls,
            }] })
        };
        let mut body = json!({ "metadata": reference("Server", "a", "u1", true) });
        body["metadata"]["labels"] = json!({ NAME: "seldon-server" });
        let desired = Desired::new(ResourceKind::SERVICE, Key::new("ml", "a"), body);
        let foreign = |why: &str| Ownership::Foreign(why.into());
        for (live, expected) in [
            (reference("Server", "a", "u1", true), Ownership::Ours),
            (reference("Server", "a", "u1", false), Ownership::Ours),
            (reference("Server", "a", "u0", true), Ownership::PreviousOwner("Server a".into())),
            (reference("Server", "b", "u2", true), foreign("it belongs to Server b")),
            (reference("Rollout", "a", "u3", true), foreign("it belongs to Rollout a")),
            (reference("Team", "blue", "u4", false), foreign("object exists and is not managed by Gantry")),
            (json!({}), foreign("object exists and is not managed by Gantry")),
            (json!({ "labels": { "app": "a" } }), foreign("object exists and is not managed by Gantry")),
            (json!({ "labels": { NAME: "a" } }), foreign("object exists and is not managed by Gantry")),
            (json!({ "labels": { NAME: "seldon-server" } }), Ownership::Ours),
            (json!({ "labels": { MANAGED_BY.0: "gantry" } }), Ownership::Ours),
            (
                json!({ "labels": { MANAGED_BY.0: "Helm" } }),
                foreign("object exists and is not managed by Gantry"),
            ),
        ] {
            let meta: ObjectMeta = serde_json::from_value(live.clone()).unwrap();
            assert_eq!(ownership_of(&meta, &desired), expected, "{live}");
        }
        // A desired object without the label is not matched by it.
        let bare = Desired::new(ResourceKind::SERVICE, Key::new("ml", "a"), json!({}));
        assert_eq!(
            ownership_of(&ObjectMeta::default(), &bare),
            foreign("object exists and is not managed by Gantry")
        );
    }
}
