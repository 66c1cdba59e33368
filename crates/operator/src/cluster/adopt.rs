//! Workloads that another operator made for the same object: they are taken over as they are, where their pods are
//! those that are asked for, so that nothing restarts for the sake of a label.
//!
//! Whoever wrote an object owns its fields. As long as the pods stay as they were made, they are left to whoever made
//! them, and only the object's metadata and its replicas are ours. When the pods are to change, the fields become ours
//! first: what is not asked for any more goes, which it would not while somebody else owns it too.

use super::{
    owned_object::{APPLIED, Desired, MANAGED_BY, OwnedObject},
    resource_kind::ResourceKind,
    drift::{key_of, lacking},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The annotation of a workload that another operator made: whether its pods are still as that one made them.
const ADOPTED: &str = "gantry.dev/adopted";
/// The field manager of Seldon's operator: the name of its program.
const SELDON: &str = "manager";
/// What a workload's spec has besides its pods that can be changed at any time.
const FREE: [&str; 3] = ["replicas", "persistentVolumeClaimRetentionPolicy", "strategy"];
/// Lists of a pod that the API server adds nothing to.
const LISTS: [&str; 9] = [
    "containers",
    "initContainers",
    "volumes",
    "env",
    "envFrom",
    "volumeMounts",
    "ports",
    "tolerations",
    "imagePullSecrets",
];

/// What becomes of a workload that another operator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// Its pods stay as they are.
    Unchanged,
    /// Its pods are replaced, because they differ here.
    Changed(Vec<String>),
}

impl Desired {
    /// What becomes of an object that is there; `None` when it is not another operator's work.
    pub fn adoption(&self, live: &OwnedObject) -> Option<Adoption> {
        let bare = self.bare.as_ref().filter(|_| is_foreign(live))?;
        let there = without_twins(live.data.pointer("/spec/template").unwrap_or(&Value::Null));
        let mut places = lacking(bare, &there);
        more(bare, &there, "", &mut places);
        Some(if places.is_empty() { Adoption::Unchanged } else { Adoption::Changed(places) })
    }

    /// What is to be applied to an object that is there.
    #[must_use]
    pub fn adopting(&self, live: Option<&OwnedObject>) -> Self {
        let adopted =
            |live: &&OwnedObject| self.bare.is_some() && (mark(live, ADOPTED).is_some() || is_foreign(live));
        let Some(live) = live.filter(adopted) else { return self.clone() };
        let adoption = self.adoption(live);
        let mut desired = self.clone();
        let as_it_is = adoption == Some(Adoption::Unchanged);
        if let Some(metadata) = desired.body.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(annotations) = annotations.as_object_mut() {
                // Said, not left out: whoever else has the annotation must not bring it back.
                annotations.insert(ADOPTED.into(), as_it_is.to_string().into());
            }
        }
        let Some(spec) = desired.body.get_mut("spec").and_then(Value::as_object_mut) else { return desired };
        if as_it_is {
            spec.retain(|name, _| FREE.contains(&name.as_str()));
        } else if let Some(policy) = live.data.pointer("/spec/podManagementPolicy") {
            // It cannot be changed, and is not worth a new StatefulSet.
            if self.kind == ResourceKind::STATEFUL_SET {
                spec.insert("podManagementPolicy".into(), policy.clone());
            }
        }
        desired
    }
}

/// Whether another operator made a workload's pods.
pub(super) fn is_foreign(live: &OwnedObject) -> bool {
    let label = live.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY.0));
    let is_unknown = mark(live, APPLIED).is_none() && label.is_none_or(|value| value != MANAGED_BY.1);
    mark(live, ADOPTED) == Some("true") || is_unknown
}

fn mark<'a>(live: &'a OwnedObject, name: &str) -> Option<&'a str> {
    live.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether a manager applied an object's pods: one that lost its marks is still whose it is.
pub(super) fn has_applied(live: &OwnedObject, manager: &str) -> bool {
    let entries = live.metadata.managed_fields.iter().flatten();
    let mut ours = entries
        .filter(|e| e.manager.as_deref() == Some(manager) && e.operation.as_deref() == Some("Apply"))
        .filter_map(|e| e.fields_v1.as_ref());
    ours.any(|fields| fields.0.pointer("/f:spec/f:template").is_some())
}

/// Who owns the fields of an object when its pods are about to become ours: what was Seldon's is this manager's.
/// `None` when nothing changes.
pub(super) fn taken_over(live: &OwnedObject, manager: &str) -> Option<Value> {
    let entries = serde_json::to_value(live.metadata.managed_fields.as_ref()?).ok()?;
    let is_of = |entry: &Value, manager: &str, operation: &str| {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        text("manager") == manager && text("operation") == operation && text("subresource").is_empty()
    };
    let (theirs, mut rest): (Vec<Value>, Vec<Value>) =
        entries.as_array()?.iter().cloned().partition(|entry| is_of(entry, SELDON, "Update"));
    let theirs = theirs.into_iter().reduce(|mut one, other| {
        join(&mut one, &other);
        one
    })?;
    if let Some(ours) = rest.iter_mut().find(|entry| is_of(entry, manager, "Apply")) {
        join(ours, &theirs);
    } else {
        let mut ours = theirs;
        if let Some(fields) = ours.as_object_mut() {
            fields.insert("manager".into(), manager.into());
            fields.insert("operation".into(), "Apply".into());
        }
        rest.push(ours);
    }
    Some(rest.into())
}

/// Adds the fields of one entry to those of another: they are sets, written as maps.
fn join(entry: &mut Value, other: &Value) {
    fn add(at: &mut Value, more: &Value) {
        if let (Value::Object(at), Value::Object(more)) = (at, more) {
            for (name, value) in more {
                add(at.entry(name.clone()).or_insert_with(|| Value::Object(Map::new())), value);
            }
        }
    }
    if let (Some(at), Some(more)) = (entry.get_mut("fieldsV1"), other.get("fieldsV1")) {
        add(at, more);
    }
}

/// Where there is more than what is asked for, in lists that the API server adds nothing to.
fn more(wanted: &Value, live: &Value, place: &str, places: &mut Vec<String>) {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            for (name, there) in live {
                let at = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                match wanted.get(name).filter(|value| !value.is_null()) {
                    Some(value) => more(value, there, &at, places),
                    None if LISTS.contains(&name.as_str()) => more(&json!([]), there, &at, places),
                    None => {}
                }
            }
        }
        (Value::Array(wanted), Value::Array(live)) => match key_of(live) {
            Some(key) => {
                for there in live {
                    let text =
                        there.get(key).map(|k| k.as_str().map_or_else(|| k.to_string(), str::to_owned));
                    let at = format!("{place}[{}]", text.unwrap_or_default());
                    match wanted.iter().find(|item| item.get(key) == there.get(key)) {
                        Some(item) => more(item, there, &at, places),
                        None => places.push(at),
                    }
                }
            }
            // What is compared as a whole was compared already, where anything is asked for.
            None if wanted.is_empty() && !live.is_empty() => places.push(place.to_owned()),
            None => {}
        },
        _ => {}
    }
}

/// Items of a list that have the same name, as Seldon's operator makes them where a Server says something anew, are one:
/// the last counts.
fn without_twins(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(n, v)| (n.clone(), without_twins(v))).collect(),
        Value::Array(items) => {
            let mut last: BTreeMap<String, usize> = BTreeMap::new();
            let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
            for (i, item) in items.iter().enumerate() {
                name(item).map(|name| last.insert(name, i));
            }
            let kept = items.iter().enumerate();
            let kept = kept.filter(|(i, item)| name(item).is_none_or(|name| last.get(&name) == Some(i)));
            kept.map(|(_, item)| without_twins(item)).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Key;

    fn template(containers: &Value) -> Value {
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": containers } })
    }

    /// What is asked for, with an addition of ours to the pods.
    fn wanted(containers: &Value) -> Desired {
        let mut full = template(containers);
        full["spec"]["terminationGracePeriodSeconds"] = json!(120);
        let body = json!({
            "metadata": { "labels": { "x": "y" } },
            "spec": {
                "replicas": 2, "selector": {}, "serviceName": "s", "podManagementPolicy": "Parallel", "template": full,
            },
        });
        Desired::new(ResourceKind::STATEFUL_SET, Key::new("ns", "a"), body).with_bare(template(containers))
    }

    fn live(containers: &Value, annotations: &Value) -> OwnedObject {
        let mut template = template(containers);
        // What the API server fills in.
        template["spec"]["terminationGracePeriodSeconds"] = json!(30);
        template["spec"]["dnsPolicy"] = json!("ClusterFirst");
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "ns", "annotations": annotations },
            "spec": { "replicas": 1, "podManagementPolicy": "OrderedReady", "template": template },
        }))
        .unwrap()
    }

    #[test]
    fn pods_that_agree_are_left_to_whoever_made_them() {
        let containers = json!([{ "name": "agent", "image": "a:1", "env": [{ "name": "A", "value": "2" }] }]);
        let twice = json!([
            { "name": "agent", "image": "a:1", "env": [{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }] },
        ]);
        let wanted = wanted(&containers);
        for there in [&containers, &twice] {
            let live = live(there, &json!({ "seldon.io/last-applied": "" }));
            assert_eq!(wanted.adoption(&live), Some(Adoption::Unchanged));
            let applied = wanted.adopting(Some(&live));
            assert_eq!(applied.body["spec"], json!({ "replicas": 2 }));
            assert_eq!(applied.body["metadata"]["annotations"], json!({ ADOPTED: "true" }));
            // The next look, at what was applied, comes to the same: nothing is written again.
            let mut taken = live.clone();
            let annotations = taken.metadata.annotations.get_or_insert_default();
            annotations.insert(ADOPTED.into(), "true".into());
            annotations.insert(APPLIED.into(), applied.digest());
            assert_eq!(wanted.adopting(Some(&taken)), applied);
        }
    }

    #[test]
    fn pods_that_differ_become_ours() {
        let asked = json!([{ "name": "agent", "image": "a:2" }]);
        for (there, places) in [
            (json!([{ "name": "agent", "image": "a:1" }]), vec!["spec.containers[agent].image"]),
            (
                json!([{ "name": "agent", "image": "a:2" }, { "name": "rclone" }]),
                vec!["spec.containers[rclone]"],
            ),
            (
                json!([{ "name": "agent", "image": "a:2", "env": [{ "name": "A", "value": "1" }] }]),
                vec!["spec.containers[agent].env[A]"],
            ),
            (json!([]), vec!["spec.containers[agent]"]),
        ] {
            let live = live(&there, &json!({}));
            let places = places.into_iter().map(str::to_owned).collect();
            assert_eq!(wanted(&asked).adoption(&live), Some(Adoption::Changed(places)), "{there}");
            let applied = wanted(&asked).adopting(Some(&live));
            assert_eq!(applied.body["spec"]["podManagementPolicy"], "OrderedReady", "it cannot be changed");
            assert_eq!(applied.body["spec"]["template"], wanted(&asked).body["spec"]["template"]);
            // From then on they are as ours as any, and what cannot be changed stays.
            let ours = self::live(&asked, &json!({ ADOPTED: "false", APPLIED: applied.digest() }));
            assert_eq!(wanted(&asked).adoption(&ours), None);
            assert_eq!(wanted(&asked).adopting(Some(&ours)), applied);
        }
    }

    #[test]
    fn what_is_ours_is_not_adopted() {
        let containers = json!([{ "name": "agent" }]);
        let ours = live(&containers, &json!({ APPLIED: "1" }));
        assert_eq!(wanted(&containers).adoption(&ours), None);
        // One that lost its annotation has its label, and one that lost both has our name on its fields.
        let mut bare = live(&containers, &json!({}));
        bare.metadata.labels = Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into());
        assert_eq!(wanted(&containers).adoption(&bare), None);
        let fields =
            json!([{ "manager": "m", "operation": "Apply", "fieldsV1": { "f:spec": { "f:template": {} } } }]);
        bare.metadata.managed_fields = serde_json::from_value(fields).unwrap();
        assert!(has_applied(&bare, "m") && !has_applied(&bare, "n"));
        assert_eq!(wanted(&containers).adopting(Some(&ours)), wanted(&containers));
        assert_eq!(wanted(&containers).adopting(None), wanted(&containers));
        let service = Desired::new(ResourceKind::SERVICE, Key::new("ns", "a"), json!({}));
        assert_eq!(service.adoption(&live(&containers, &json!({}))), None);
    }

    #[test]
    fn fields_of_seldons_operator_become_ours() {
        let entry = |manager: &str, operation: &str, subresource: Option<&str>, fields: Value| {
            let mut entry = json!({
                "manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
                "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
            });
            if let Some(subresource) = subresource {
                entry["subresource"] = json!(subresource);
            }
            entry
        };
        let mut child = OwnedObject::default();
        let fields = |entries: Value| serde_json::from_value(entries).unwrap();
        let spec = json!({ "f:spec": { "f:template": { ".": {} } } });
        let others = [
            entry("kubectl-label", "Update", None, json!({ "f:metadata": {} })),
            entry("kube-controller-manager", "Update", Some("status"), json!({ "f:status": {} })),
            entry("manager", "Update", Some("status"), json!({ "f:status": { "f:x": {} } })),
        ];
        let theirs = entry("manager", "Update", None, spec.clone());
        child.metadata.managed_fields = fields(json!([theirs, others[0], others[1], others[2]]));
        let taken = taken_over(&child, "gantry/server").unwrap();
        assert_eq!(
            taken,
            json!([others[0], others[1], others[2], entry("gantry/server", "Apply", None, spec)])
        );
        // Where there is an entry of ours, the two are one.
        let ours = entry("gantry/server", "Apply", None, json!({ "f:spec": { "f:replicas": {} } }));
        child.metadata.managed_fields = fields(json!([theirs, ours]));
        let both = json!({ "f:spec": { "f:replicas": {}, "f:template": { ".": {} } } });
        assert_eq!(
            taken_over(&child, "gantry/server").unwrap(),
            json!([entry("gantry/server", "Apply", None, both)])
        );
        child.metadata.managed_fields = fields(json!([ours]));
        assert_eq!(taken_over(&child, "gantry/server"), None, "nothing to take over");
    }
}
