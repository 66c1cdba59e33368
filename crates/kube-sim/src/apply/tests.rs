use super::{
    compare::{compare, owned},
    fields::{FieldSet, Step},
    managed::Managed,
    merge::{merge, remove},
    *,
};
use crate::builtin_merge_schemas;
use proptest::prelude::*;
use serde_json::{Map, json};

fn by(name: &str) -> Author<'_> {
    Author { name, subresource: "", version: "apps/v1", time: "2026-01-01T00:00:00Z" }
}

fn deployment() -> MergeSchema {
    builtin_merge_schemas::built_in("apps", "Deployment")
}

fn containers(names: &[&str]) -> Value {
    let list: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"spec": {"template": {"spec": {"containers": list}}}})
}

fn names(object: &Value) -> Vec<&str> {
    let list = object.pointer("/spec/template/spec/containers").and_then(Value::as_array).unwrap();
    list.iter().map(|container| container["name"].as_str().unwrap()).collect()
}

#[test]
fn keyed_lists_merge_in_compatible_order() {
    let table: &[(&[&str], &[&str], &[&str])] = &[
        (&["a", "b"], &["b", "a"], &["b", "a"]),
        (&["a", "b", "c"], &["b"], &["a", "b", "c"]),
        (&["a", "x", "b"], &["a", "b", "c"], &["a", "x", "b", "c"]),
        (&["a", "b", "c", "d"], &["d", "a"], &["b", "c", "d", "a"]),
        (&[], &["a"], &["a"]),
        (&["a"], &[], &["a"]),
    ];
    for (live, config, expected) in table {
        let merged = merge(&containers(live), &containers(config), &deployment());
        assert_eq!(names(&merged), *expected, "{live:?} and {config:?}");
    }
}

#[test]
fn conflict_names_owner_and_field() {
    let merge_schema = deployment();
    let none = FieldSet::default();
    let first = json!({"spec": {"replicas": 1}});
    let (live, managed) =
        apply(&json!({}), &first, Managed::default(), &by("a"), false, &merge_schema, &none).unwrap();
    let second = json!({"spec": {"replicas": 2}});
    let conflicts =
        apply(&live, &second, managed.clone(), &by("b"), false, &merge_schema, &none).unwrap_err();
    assert_eq!(conflicts.len(), 1);
    assert_eq!((conflicts[0].field.as_str(), conflicts[0].owner().as_str()), (".spec.replicas", "\"a\""));
    let (live, managed) = apply(&live, &second, managed, &by("b"), true, &merge_schema, &none).unwrap();
    assert_eq!(live, second);
    assert_eq!(managed.0.len(), 1, "who owns nothing is forgotten");
}

#[test]
fn unapplied_field_is_removed_unless_co_owned() {
    let merge_schema = deployment();
    let none = FieldSet::default();
    let both = json!({"metadata": {"labels": {"x": "1", "y": "2"}}});
    let (live, managed) =
        apply(&json!({}), &both, Managed::default(), &by("a"), false, &merge_schema, &none).unwrap();
    let shared = json!({"metadata": {"labels": {"y": "2"}}});
    let (live, managed) = apply(&live, &shared, managed, &by("b"), false, &merge_schema, &none).unwrap();
    let (live, _) = apply(&live, &json!({}), managed, &by("a"), false, &merge_schema, &none).unwrap();
    assert_eq!(live, shared);
}

/// Objects with scalars, atomic and keyed lists, sets and maps.
fn objects() -> impl Strategy<Value = Value> {
    let label = prop::collection::btree_map("[ab]", "[xyz]", 0..3);
    let container = ("[abc]", prop::option::of("[xy]"), prop::collection::vec("[ab]", 0..2));
    let containers = prop::collection::vec(container, 0..3);
    (label, prop::option::of(0..3), containers, prop::collection::btree_set("[fg]", 0..3)).prop_map(
        |(labels, replicas, containers, finalizers)| {
            let mut seen = Vec::new();
            let mut list = Vec::new();
            for (name, image, command) in containers {
                if !seen.contains(&name) {
                    seen.push(name.clone());
                    let mut container = json!({"name": name, "command": command});
                    if let Some(image) = image {
                        container["image"] = json!(image);
                    }
                    list.push(container);
                }
            }
            let mut spec = Map::new();
            if let Some(replicas) = replicas {
                spec.insert("replicas".into(), json!(replicas));
            }
            if !list.is_empty() {
                spec.insert("template".into(), json!({"spec": {"containers": list}}));
            }
            let mut object = json!({"metadata": {"labels": labels, "finalizers": finalizers}});
            if !spec.is_empty() {
                object["spec"] = Value::Object(spec);
            }
            object
        },
    )
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(live in objects(), config in objects()) {
        let (merge_schema, none) = (deployment(), FieldSet::default());
        let managed = track(&json!({}), &live, Managed::default(), &by("other"), &merge_schema, &none);
        let (once, owners) = apply(&live, &config, managed, &by("a"), true, &merge_schema, &none).unwrap();
        let (twice, same) = apply(&once, &config, owners.clone(), &by("a"), false, &merge_schema, &none).unwrap();
        prop_assert_eq!(&once, &twice);
        prop_assert_eq!(owners, same);
    }

    #[test]
    fn apply_creates_object_owned_by_field_manager(live in objects(), config in objects()) {
        let (merge_schema, none) = (deployment(), FieldSet::default());
        let (object, managed) = apply(&live, &config, Managed::default(), &by("a"), true, &merge_schema, &none).unwrap();
        prop_assert_eq!(&merge(&object, &config, &merge_schema), &object);
        let wanted = owned(&config, &merge_schema).difference(&unowned());
        prop_assert_eq!(managed.union(), wanted);
    }

    #[test]
    fn taking_everything_back_leaves_what_was_there(live in objects(), config in objects()) {
        let (merge_schema, none) = (deployment(), FieldSet::default());
        let managed = track(&json!({}), &live, Managed::default(), &by("other"), &merge_schema, &none);
        // Without force, an apply without conflicts leaves the fields of the other manager unchanged.
        if let Ok((object, managed)) = apply(&live, &config, managed, &by("a"), false, &merge_schema, &none) {
            let (back, _) = apply(&object, &json!({}), managed, &by("a"), false, &merge_schema, &none).unwrap();
            let lost = compare(Some(&live), Some(&back), &merge_schema).removed;
            prop_assert!(lost.is_empty(), "{:?}", lost.to_fields_v1());
        }
    }

    #[test]
    fn owners_survive_their_written_form(object in objects()) {
        let set = owned(&object, &deployment());
        prop_assert_eq!(FieldSet::from_fields_v1(&set.to_fields_v1()), Some(set));
    }

    #[test]
    fn nothing_differs_from_itself_and_everything_from_nothing(object in objects()) {
        let merge_schema = deployment();
        prop_assert_eq!(compare(Some(&object), Some(&object), &merge_schema), compare::Comparison::default());
        let gone = compare(Some(&object), Some(&json!({})), &merge_schema);
        prop_assert!(gone.added.is_empty() && gone.modified.is_empty());
        let left = remove(&object, &gone.removed, &merge_schema);
        prop_assert!(left.is_null(), "{left}");
    }
}

#[test]
fn invalid_field_set_is_rejected() {
    assert_eq!(FieldSet::from_fields_v1(&json!({"x:y": {}})), None);
    assert_eq!(FieldSet::from_fields_v1(&json!([])), None);
    let set = FieldSet::from_fields_v1(&json!({"k:{\"b\":1,\"a\":\"x\"}": {}})).unwrap();
    assert!(set.has(&[Step::Key("{\"a\":\"x\",\"b\":1}".into())]), "keys have one form");
}
