//! What the operator asks of the API server is what the chart lets it ask.

use crate::{
    scenario::Day,
    world::{OPERATOR, World},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Group, resource with subresource, and verb.
type Right = (String, String, String);

/// What the plain manifests, which are made from the chart, give to the operator.
fn given() -> BTreeSet<Right> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/manifests/gantry.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let is_role = |d: &&str| d.contains("\nkind: ClusterRole\n") && d.contains("\n  name: gantry-operator\n");
    let role = text.split("\n---").find(is_role).expect("the operator has a role");
    let role: Value = serde_saphyr::from_str(role).unwrap();
    let words = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    // A rule for named objects only says nothing about others.
    for rule in role["rules"].as_array().unwrap().iter().filter(|rule| rule.get("resourceNames").is_none()) {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                let verbs = words(rule, "verbs").into_iter();
                rights.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    rights
}

/// What somebody has to be allowed for a request. A server-side apply may create.
fn needed(verb: &str, object: &str) -> Vec<Right> {
    let (kind, place) = object.split_once(' ').unwrap();
    let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
    let resource = match place.split('/').collect::<Vec<_>>().as_slice() {
        [_, _, subresource] => format!("{plural}/{subresource}"),
        _ => plural.to_owned(),
    };
    let verbs: &[&str] = match verb {
        "apply" if group == "mlops.seldon.io" => &["patch"],
        "apply" => &["patch", "create"],
        other => &[other],
    };
    verbs.iter().map(|verb| (group.to_owned(), resource.clone(), (*verb).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn the_operator_has_the_rights_that_it_uses() {
    let given = given();
    let mut used = BTreeSet::new();
    for day in Day::ALL {
        let world = World::prepared().await;
        world.start_operator();
        day.live(&world).await;
        for entry in world.kube.trace().entries.iter().filter(|entry| entry.actor == OPERATOR) {
            used.extend(needed(&format!("{:?}", entry.verb).to_lowercase(), &entry.object));
        }
    }
    let lacks: Vec<&Right> = used.difference(&given).collect();
    assert!(lacks.is_empty(), "the chart does not let the operator do: {lacks:#?}");
    assert!(used.len() > 30, "it did too little to be judged: {used:?}");
}
