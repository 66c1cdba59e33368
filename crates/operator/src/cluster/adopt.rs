//! Adoption of workloads that Seldon's operator created for the same object, without a restart where their pods match.
//!
//! While the pods match, their fields stay with Seldon's field manager, and only metadata and replicas are ours. Before
//! the pods change, the fields become ours: server-side apply removes only fields that no other manager owns.

use super::{
    drift::{drifted_fields, key_of},
    owned_object::{APPLIED, Desired, MANAGED_BY, OwnedObject},
    resource_kind::ResourceKind,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Annotation of an adopted workload: whether its pods are still those of the other operator.
const ADOPTED: &str = "gantry.dev/adopted";
/// The field manager of Seldon's operator.
const SELDON: &str = "manager";
/// Mutable fields of a workload's spec besides the pods.
const MUTABLE: [&str; 3] = ["replicas", "persistentVolumeClaimRetentionPolicy", "strategy"];
/// Lists of a pod to which the API server adds no defaults.
const EXACT_LISTS: [&str; 9] = [
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

/// The effect of adopting a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    Unchanged,
    /// The pods restart, because these fields differ.
    Changed(Vec<String>),
}

impl Desired {
    /// The effect of adopting a live workload; `None` when it is not from another operator.
    pub fn adoption(&self, live: &OwnedObject) -> Option<Adoption> {
        let base_pod = self.base_pod.as_ref().filter(|_| is_from_other_operator(live))?;
        let live = deduplicated(live.data.pointer("/spec/template").unwrap_or(&Value::Null));
        let mut paths = drifted_fields(base_pod, &live);
        more(base_pod, &live, "", &mut paths);
        Some(if paths.is_empty() { Adoption::Unchanged } else { Adoption::Changed(paths) })
    }

    /// The desired state after adoption.
    #[must_use]
    pub fn adopted_from(&self, live: Option<&OwnedObject>) -> Self {
        let adopted = |live: &&OwnedObject| {
            self.base_pod.is_some() && (mark(live, ADOPTED).is_some() || is_from_other_operator(live))
        };
        let Some(live) = live.filter(adopted) else { return self.clone() };
        let adoption = self.adoption(live);
        let mut desired = self.clone();
        let is_unchanged = adoption == Some(Adoption::Unchanged);
        if let Some(metadata) = desired.body.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(annotations) = annotations.as_object_mut() {
                // "false" instead of no annotation: another field manager could restore its own value.
                annotations.insert(ADOPTED.into(), is_unchanged.to_string().into());
            }
        }
        let Some(spec) = desired.body.get_mut("spec").and_then(Value::as_object_mut) else { return desired };
        if is_unchanged {
            spec.retain(|name, _| MUTABLE.contains(&name.as_str()));
        } else if let Some(policy) = live.data.pointer("/spec/podManagementPolicy") {
            // Immutable, and not worth a new StatefulSet.
            if self.kind == ResourceKind::STATEFUL_SET {
                spec.insert("podManagementPolicy".into(), policy.clone());
            }
        }
        desired
    }
}

/// Whether another operator created the pods of a workload.
pub(super) fn is_from_other_operator(live: &OwnedObject) -> bool {
    let label = live.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY.0));
    let is_unknown = mark(live, APPLIED).is_none() && label.is_none_or(|value| value != MANAGED_BY.1);
    mark(live, ADOPTED) == Some("true") || is_unknown
}

fn mark<'a>(live: &'a OwnedObject, name: &str) -> Option<&'a str> {
    live.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether a field manager applied the pods: an object without our labels may still be ours.
pub(super) fn has_applied(live: &OwnedObject, manager: &str) -> bool {
    let entries = live.metadata.managed_fields.iter().flatten();
    let mut ours = entries
        .filter(|e| e.manager.as_deref() == Some(manager) && e.operation.as_deref() == Some("Apply"))
        .filter_map(|e| e.fields_v1.as_ref());
    ours.any(|fields| fields.0.pointer("/f:spec/f:template").is_some())
}

/// `managedFields` after the fields of Seldon's operator move to this manager; `None` when nothing changes.
pub(super) fn claimed_fields(live: &OwnedObject, manager: &str) -> Option<Value> {
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

/// Adds the field set of one entry to another.
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

/// Collects live fields that are not desired, in lists without defaults.
fn more(desired: &Value, live: &Value, path: &str, paths: &mut Vec<String>) {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => {
            for (name, live) in live {
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match desired.get(name).filter(|value| !value.is_null()) {
                    Some(value) => more(value, live, &at, paths),
                    None if EXACT_LISTS.contains(&name.as_str()) => more(&json!([]), live, &at, paths),
                    None => {}
                }
            }
        }
        (Value::Array(desired), Value::Array(live)) => match key_of(live) {
            Some(key) => {
                for live in live {
                    let text = live.get(key).map(|k| k.as_str().map_or_else(|| k.to_string(), str::to_owned));
                    let at = format!("{path}[{}]", text.unwrap_or_default());
                    match desired.iter().find(|item| item.get(key) == live.get(key)) {
                        Some(item) => more(item, live, &at, paths),
                        None => paths.push(at),
                    }
                }
            }
            // Other lists are compared as a whole by `drifted_fields`.
            None if desired.is_empty() && !live.is_empty() => paths.push(path.to_owned()),
            None => {}
        },
        _ => {}
    }
}

/// Removes list items with a duplicate name, as Seldon's operator creates them for overrides: the last one counts.
fn deduplicated(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(n, v)| (n.clone(), deduplicated(v))).collect(),
        Value::Array(items) => {
            let mut last: BTreeMap<String, usize> = BTreeMap::new();
            let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
            for (i, item) in items.iter().enumerate() {
                name(item).map(|name| last.insert(name, i));
            }
            let kept = items.iter().enumerate();
            let kept = kept.filter(|(i, item)| name(item).is_none_or(|name| last.get(&name) == Some(i)));
            kept.map(|(_, item)| deduplicated(item)).collect()
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

    /// A workload with a default of ours in its pods.
    fn desired(containers: &Value) -> Desired {
        let mut full = template(containers);
        full["spec"]["terminationGracePeriodSeconds"] = json!(120);
        let body = json!({
            "metadata": { "labels": { "x": "y" } },
            "spec": {
                "replicas": 2, "selector": {}, "serviceName": "s", "podManagementPolicy": "Parallel", "template": full,
            },
        });
        Desired::new(ResourceKind::STATEFUL_SET, Key::new("ns", "a"), body)
            .with_base_pod(template(containers))
    }

    fn live(containers: &Value, annotations: &Value) -> OwnedObject {
        let mut template = template(containers);
        // Defaults of the API server.
        template["spec"]["terminationGracePeriodSeconds"] = json!(30);
        template["spec"]["dnsPolicy"] = json!("ClusterFirst");
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "ns", "annotations": annotations },
            "spec": { "replicas": 1, "podManagementPolicy": "OrderedReady", "template": template },
        }))
        .unwrap()
    }

    #[test]
    fn matching_pods_keep_their_field_manager() {
        let containers = json!([{ "name": "agent", "image": "a:1", "env": [{ "name": "A", "value": "2" }] }]);
        let twice = json!([
            { "name": "agent", "image": "a:1", "env": [{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }] },
        ]);
        let desired = desired(&containers);
        for pods in [&containers, &twice] {
            let live = live(pods, &json!({ "seldon.io/last-applied": "" }));
            assert_eq!(desired.adoption(&live), Some(Adoption::Unchanged));
            let applied = desired.adopted_from(Some(&live));
            assert_eq!(applied.body["spec"], json!({ "replicas": 2 }));
            assert_eq!(applied.body["metadata"]["annotations"], json!({ ADOPTED: "true" }));
            // The next plan is the same: nothing is written again.
            let mut taken = live.clone();
            let annotations = taken.metadata.annotations.get_or_insert_default();
            annotations.insert(ADOPTED.into(), "true".into());
            annotations.insert(APPLIED.into(), applied.digest());
            assert_eq!(desired.adopted_from(Some(&taken)), applied);
        }
    }

    #[test]
    fn differing_pods_are_claimed() {
        let containers = json!([{ "name": "agent", "image": "a:2" }]);
        for (pods, paths) in [
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
            let live = live(&pods, &json!({}));
            let paths = paths.into_iter().map(str::to_owned).collect();
            assert_eq!(desired(&containers).adoption(&live), Some(Adoption::Changed(paths)), "{pods}");
            let applied = desired(&containers).adopted_from(Some(&live));
            assert_eq!(applied.body["spec"]["podManagementPolicy"], "OrderedReady", "immutable");
            assert_eq!(applied.body["spec"]["template"], desired(&containers).body["spec"]["template"]);
            // Afterwards it is our own, and immutable fields stay.
            let ours = self::live(&containers, &json!({ ADOPTED: "false", APPLIED: applied.digest() }));
            assert_eq!(desired(&containers).adoption(&ours), None);
            assert_eq!(desired(&containers).adopted_from(Some(&ours)), applied);
        }
    }

    #[test]
    fn own_workload_is_not_adopted() {
        let containers = json!([{ "name": "agent" }]);
        let ours = live(&containers, &json!({ APPLIED: "1" }));
        assert_eq!(desired(&containers).adoption(&ours), None);
        // Without the annotation the label counts; without both, the field manager.
        let mut base_pod = live(&containers, &json!({}));
        base_pod.metadata.labels = Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into());
        assert_eq!(desired(&containers).adoption(&base_pod), None);
        let fields =
            json!([{ "manager": "m", "operation": "Apply", "fieldsV1": { "f:spec": { "f:template": {} } } }]);
        base_pod.metadata.managed_fields = serde_json::from_value(fields).unwrap();
        assert!(has_applied(&base_pod, "m") && !has_applied(&base_pod, "n"));
        assert_eq!(desired(&containers).adopted_from(Some(&ours)), desired(&containers));
        assert_eq!(desired(&containers).adopted_from(None), desired(&containers));
        let service = Desired::new(ResourceKind::SERVICE, Key::new("ns", "a"), json!({}));
        assert_eq!(service.adoption(&live(&containers, &json!({}))), None);
    }

    #[test]
    fn managed_fields_move_to_our_manager() {
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
        let taken = claimed_fields(&child, "gantry/server").unwrap();
        assert_eq!(
            taken,
            json!([others[0], others[1], others[2], entry("gantry/server", "Apply", None, spec)])
        );
        // An existing entry of ours is extended.
        let ours = entry("gantry/server", "Apply", None, json!({ "f:spec": { "f:replicas": {} } }));
        child.metadata.managed_fields = fields(json!([theirs, ours]));
        let both = json!({ "f:spec": { "f:replicas": {}, "f:template": { ".": {} } } });
        assert_eq!(
            claimed_fields(&child, "gantry/server").unwrap(),
            json!([entry("gantry/server", "Apply", None, both)])
        );
        child.metadata.managed_fields = fields(json!([ours]));
        assert_eq!(claimed_fields(&child, "gantry/server"), None, "nothing to take over");
    }
}
