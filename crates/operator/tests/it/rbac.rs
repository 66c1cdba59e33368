//! The chart grants the RBAC permissions that the operator uses.

use crate::{harness::OPERATOR, scenario::Scenario};
use gantry_operator::controllers::Registry;
use serde_json::Value;
use std::collections::BTreeSet;

/// Group, resource with subresource, and verb.
type Permission = (String, String, String);

/// Permissions in the plain manifests, which are generated from the chart.
fn granted() -> BTreeSet<Permission> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/manifests/gantry.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let is_role = |d: &&str| d.contains("\nkind: ClusterRole\n") && d.contains("\n  name: gantry-operator\n");
    let role = text.split("\n---").find(is_role).expect("the operator has a role");
    let role: Value = serde_saphyr::from_str(role).unwrap();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut permissions = BTreeSet::new();
    // Rules with resourceNames do not cover other objects.
    for rule in role["rules"].as_array().unwrap().iter().filter(|rule| rule.get("resourceNames").is_none()) {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                let verbs = words(rule, "verbs").into_iter();
                permissions.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    permissions
}

/// Permissions required by a request. A server-side apply may create.
fn required(verb: &str, object: &str) -> Vec<Permission> {
    let (kind, place) = object.split_once(' ').unwrap();
    let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
    let resource = match place.split('/').collect::<Vec<_>>().as_slice() {
        [_, _, subresource] => format!("{plural}/{subresource}"),
        _ => plural.to_owned(),
    };
    let verbs: &[&str] = match verb {
        "apply" if ["mlops.seldon.io", "serving.kserve.io", "gantry.dev"].contains(&group) => &["patch"],
        "apply" => &["patch", "create"],
        other => &[other],
    };
    verbs.iter().map(|verb| (group.to_owned(), resource.clone(), (*verb).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn operator_has_the_permissions_it_uses() {
    let mut granted = granted();
    // The chart grants the rules of the registry, which another test compares.
    for rule in Registry::built_in().with_inference_services().rbac_rules() {
        let verbs = rule.verbs.iter();
        granted.extend(verbs.map(|v| (rule.group.to_owned(), rule.resource.clone(), (*v).to_owned())));
    }
    let mut used = BTreeSet::new();
    for case in Scenario::ALL {
        let harness = case.started().await;
        case.record(&harness).await;
        for entry in harness.kube.trace().entries.iter().filter(|entry| entry.actor == OPERATOR) {
            used.extend(required(&format!("{:?}", entry.verb).to_lowercase(), &entry.object));
        }
    }
    let missing: Vec<&Permission> = used.difference(&granted).collect();
    assert!(missing.is_empty(), "the chart does not grant: {missing:#?}");
    assert!(used.len() > 30, "too few requests: {used:?}");
}
