//! Whose an object is that stands where one of ours is to be.

use super::owned_object::{Desired, MANAGED_BY};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// The label by which Seldon's operator and this one say what an object is for.
const NAME: &str = "app.kubernetes.io/name";

/// Whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The owner's for whom it is wanted, or nobody's any more: it may be made as it is wanted.
    Ours,
    /// It belongs to an object that had the owner's name before, and goes with it.
    PreviousOwner(String),
    /// Somebody else's: it is not touched.
    Foreign(String),
}

/// Whose an object is that has the place of another. An operator before this one, also Seldon's, left it with its owner
/// or with its labels; what has neither was made by somebody who does not expect to lose it.
pub fn ownership_of(there: &ObjectMeta, wanted: &Desired) -> Ownership {
    let owner = wanted.body.pointer("/metadata/ownerReferences/0");
    let of_owner = |field: &str| owner.and_then(|o| o.get(field)).and_then(Value::as_str).unwrap_or_default();
    let references = || there.owner_references.iter().flatten();
    if references().any(|reference| reference.uid == of_owner("uid")) {
        return Ownership::Ours;
    }
    if let Some(other) = references().find(|reference| reference.controller == Some(true)) {
        let shown = format!("{} {}", other.kind, other.name);
        return if other.kind == of_owner("kind") && other.name == of_owner("name") {
            Ownership::PreviousOwner(shown)
        } else {
            Ownership::Foreign(format!("it belongs to {shown}"))
        };
    }
    let label = |name: &str| there.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    let said = wanted.body.pointer("/metadata/labels").and_then(|labels| labels.get(NAME));
    let is_left = label(MANAGED_BY.0) == Some(MANAGED_BY.1)
        || (said.is_some() && said.and_then(Value::as_str) == label(NAME));
    if is_left { Ownership::Ours } else { Ownership::Foreign("somebody else made it".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ResourceKind, Key};
    use serde_json::json;

    #[test]
    fn what_has_no_sign_of_an_operator_is_somebody_elses() {
        let reference = |kind: &str, name: &str, uid: &str, controls: bool| {
            json!({ "ownerReferences": [{
                "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "name": name, "uid": uid, "controller": controls,
            }] })
        };
        let mut body = json!({ "metadata": reference("Server", "a", "u1", true) });
        body["metadata"]["labels"] = json!({ NAME: "seldon-server" });
        let wanted = Desired::new(ResourceKind::SERVICE, Key::new("ml", "a"), body);
        let stranger = |why: &str| Ownership::Foreign(why.into());
        for (there, expected) in [
            (reference("Server", "a", "u1", true), Ownership::Ours),
            (reference("Server", "a", "u1", false), Ownership::Ours),
            (reference("Server", "a", "u0", true), Ownership::PreviousOwner("Server a".into())),
            (reference("Server", "b", "u2", true), stranger("it belongs to Server b")),
            (reference("Rollout", "a", "u3", true), stranger("it belongs to Rollout a")),
            (reference("Team", "blue", "u4", false), stranger("somebody else made it")),
            (json!({}), stranger("somebody else made it")),
            (json!({ "labels": { "app": "a" } }), stranger("somebody else made it")),
            (json!({ "labels": { NAME: "a" } }), stranger("somebody else made it")),
            (json!({ "labels": { NAME: "seldon-server" } }), Ownership::Ours),
            (json!({ "labels": { MANAGED_BY.0: "gantry" } }), Ownership::Ours),
            (json!({ "labels": { MANAGED_BY.0: "Helm" } }), stranger("somebody else made it")),
        ] {
            let meta: ObjectMeta = serde_json::from_value(there.clone()).unwrap();
            assert_eq!(ownership_of(&meta, &wanted), expected, "{there}");
        }
        // What is wanted without a label is not recognised by one.
        let bare = Desired::new(ResourceKind::SERVICE, Key::new("ml", "a"), json!({}));
        assert_eq!(ownership_of(&ObjectMeta::default(), &bare), stranger("somebody else made it"));
    }
}
