//! `--inference-services`: the kinds of KServe, as the chart's value `inferenceServices.enabled`.

use super::rewrite::{self, OPERATOR_CONTAINER};
use gantry_operator::controllers::{RbacRule, Registry};
use serde_json::{Value, json};

const FLAG: &str = "--inference-services";
/// Kinds without a namespace.
const CLUSTER_KINDS: [&str; 2] = ["clusterservingruntimes", "clusterstoragecontainers"];

/// `ClusterServingRuntimes`.
pub(super) const RUNTIMES: [&str; 3] = [
    include_str!("../../../../../deploy/config/kserve/gantry.yaml"),
    include_str!("../../../../../deploy/config/kserve/mlserver.yaml"),
    include_str!("../../../../../deploy/config/kserve/triton.yaml"),
];

/// Sets the operator's flag, and adds the rules that it needs to its role.
pub(super) fn add_to(objects: &mut [Value]) {
    for container in objects.iter_mut().flat_map(rewrite::containers) {
        let args = container.get("name").is_some_and(|name| name == OPERATOR_CONTAINER).then_some(container);
        if let Some(args) = args.and_then(|container| container.get_mut("args")?.as_array_mut()) {
            let at = args.iter().position(|arg| arg.as_str().is_some_and(|a| a.starts_with("--admin-host")));
            args.insert(at.unwrap_or(args.len()), FLAG.into());
        }
    }
    let role = rewrite::operator_role(objects);
    if let Some(rules) = role.and_then(|role| role.get_mut("rules")?.as_array_mut()) {
        rules.extend(rules_beside(&Registry::built_in().rbac_rules()));
    }
}

/// The rules of KServe's kinds that are not among these.
fn rules_beside(known: &[RbacRule]) -> Vec<Value> {
    let with_services = Registry::built_in().with_inference_services().rbac_rules();
    let is_new = |rule: &&RbacRule| !known.contains(rule);
    let rule = |rule: &RbacRule| json!({ "apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs });
    with_services.iter().filter(is_new).map(rule).collect()
}

/// Roles of single namespaces cannot grant kinds without one.
pub(super) fn cluster_role(objects: &[Value]) -> Vec<Value> {
    let binding = objects.iter().find(|object| object.get("kind").is_some_and(|k| k == "ClusterRoleBinding"));
    let Some(binding) = binding else { return Vec::new() };
    let name = binding.pointer("/roleRef/name").and_then(Value::as_str).unwrap_or_default();
    let name = format!("{name}-serving-runtimes");
    let mut metadata = binding.get("metadata").cloned().unwrap_or_default();
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("name".into(), name.clone().into());
    }
    let version = "rbac.authorization.k8s.io/v1";
    let rule =
        json!({ "apiGroups": ["serving.kserve.io"], "resources": CLUSTER_KINDS, "verbs": ["list", "watch"] });
    let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
    vec![
        json!({ "apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": [rule] }),
        json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference,
            "subjects": binding.get("subjects"),
        }),
    ]
}
