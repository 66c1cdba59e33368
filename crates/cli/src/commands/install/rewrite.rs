//! Rewrites namespaces, images and RBAC scope of the chart's objects, field by field.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

pub(super) const OPERATOR_CONTAINER: &str = "operator";
const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Environment variable with the image of the components that the operator creates.
const IMAGE_VARIABLE: &str = "GANTRY_IMAGE";

/// Scope of the operator's RBAC permissions.
#[derive(Clone, Debug)]
pub(super) enum Scope<'a> {
    Cluster,
    /// These and the operator's own.
    Namespaces(&'a [&'a str]),
}

/// Moves the objects to another namespace, except for Roles scoped to watched namespaces.
pub(super) fn namespace(objects: &mut [Value], to: &str) {
    let Some(from) = own_namespace(objects) else { return };
    let is_own = |value: &Value| value.as_str() == Some(from.as_str());
    for object in objects {
        if kind(object) == "Namespace"
            && let Some(name) = object.pointer_mut("/metadata/name")
        {
            *name = to.into();
        }
        if let Some(namespace) = object.pointer_mut("/metadata/namespace").filter(|n| is_own(n)) {
            *namespace = to.into();
        }
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            if let Some(namespace) = subject.get_mut("namespace").filter(|n| is_own(n)) {
                *namespace = to.into();
            }
        }
        for hook in webhooks(object) {
            if let Some(namespace) = hook.pointer_mut("/clientConfig/service/namespace").filter(|n| is_own(n))
            {
                *namespace = to.into();
            }
        }
    }
}

/// Replaces objects of the same kind and name, and appends the others.
pub(super) fn replace(objects: &mut Vec<Value>, with: Vec<Value>) {
    for object in with {
        let is_same = |there: &&mut Value| kind(there) == kind(&object) && name(there) == name(&object);
        match objects.iter_mut().find(is_same) {
            Some(there) => *there = object,
            None => objects.push(object),
        }
    }
}

/// Replaces the operator's image, in its Deployment and in the configuration of components.
pub(super) fn image(objects: &mut [Value], to: &str) {
    let Some(from) = operator_image(objects) else { return };
    for object in objects {
        image_within(object, &from, to);
    }
}

fn image_within(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(fields) => {
            if fields.get("image").and_then(Value::as_str) == Some(from) {
                fields.insert("image".into(), to.into());
            }
            if fields.get("name").and_then(Value::as_str) == Some(IMAGE_VARIABLE) {
                fields.insert("value".into(), to.into());
            }
            fields.values_mut().for_each(|field| image_within(field, from, to));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| image_within(item, from, to)),
        _ => {}
    }
}

/// Replaces the ClusterRole and its binding by Roles in the watched namespaces and `own`, and sets the operator's flag.
pub(super) fn scope(objects: Vec<Value>, own: &str, scope: &Scope<'_>) -> Vec<Value> {
    let Scope::Namespaces(named) = scope else { return objects };
    let all: BTreeSet<&str> = named.iter().copied().chain([own]).collect();
    let Some(bound) = objects.iter().find(|o| kind(o) == "ClusterRoleBinding").and_then(role_of) else {
        return objects;
    };
    let mut narrowed = Vec::new();
    for mut object in objects {
        let is_role = kind(&object) == "ClusterRole" && name(&object) == bound;
        let is_binding =
            kind(&object) == "ClusterRoleBinding" && role_of(&object).as_deref() == Some(bound.as_str());
        if is_role || is_binding {
            narrowed.extend(all.iter().map(|namespace| in_namespace(&object, namespace)));
            continue;
        }
        set_watch_flag(&mut object, named);
        for hook in webhooks(&mut object).filter_map(Value::as_object_mut) {
            let only = json!([{ "key": NAMESPACE_NAME_LABEL, "operator": "In", "values": all }]);
            hook.insert("namespaceSelector".into(), json!({ "matchExpressions": only }));
        }
        narrowed.push(object);
    }
    narrowed
}

/// Allows the operator to grant read access to these Secrets only, and makes it grant it.
pub(super) fn agent_secrets(objects: &mut [Value], secrets: &[String]) {
    if secrets.is_empty() {
        return;
    }
    for container in objects.iter_mut().flat_map(containers).filter(|c| is_named(c, OPERATOR_CONTAINER)) {
        if let Some(args) = container.get_mut("args").and_then(Value::as_array_mut) {
            args.push(json!(format!("--agent-secrets={}", secrets.join(","))));
        }
    }
    let role = operator_role(objects);
    let rules = role.and_then(|role| role.get_mut("rules")?.as_array_mut());
    let mut rule = json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] });
    if let Value::Object(fields) = &mut rule
        && !secrets.iter().any(|name| name == "*")
    {
        fields.insert("resourceNames".into(), json!(secrets));
    }
    if let Some(rules) = rules {
        rules.push(rule);
    }
}

/// The ClusterRole that is bound to the operator.
pub(super) fn operator_role(objects: &mut [Value]) -> Option<&mut Value> {
    let bound = objects.iter().find(|o| kind(o) == "ClusterRoleBinding").and_then(role_of);
    objects.iter_mut().find(|o| kind(o) == "ClusterRole" && Some(name(o)) == bound.as_deref())
}

/// Whether it is aggregated into Kubernetes' default user roles.
pub(super) fn is_aggregated_role(object: &Value) -> bool {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    labels.is_some_and(|l| l.keys().any(|name| name.starts_with("rbac.authorization.k8s.io/aggregate-to-")))
}

/// A ClusterRole or its binding, narrowed to one namespace.
fn in_namespace(object: &Value, namespace: &str) -> Value {
    let mut object = object.clone();
    let namespaced = if kind(&object) == "ClusterRole" { "Role" } else { "RoleBinding" };
    if let Some(fields) = object.as_object_mut() {
        fields.insert("kind".into(), namespaced.into());
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("namespace".into(), namespace.into());
    }
    if let Some(role) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
        role.insert("kind".into(), "Role".into());
    }
    object
}

/// Adds `--watch-namespaces` after `--clusterwide`.
fn set_watch_flag(object: &mut Value, namespaces: &[&str]) {
    let flag = json!(format!("--watch-namespaces={}", namespaces.join(",")));
    for container in containers(object).filter(|c| is_named(c, OPERATOR_CONTAINER)) {
        let Some(args) = container.get_mut("args").and_then(Value::as_array_mut) else { continue };
        if let Some(after) = args.iter().position(|arg| arg == "--clusterwide") {
            args.insert(after + 1, flag.clone());
        }
    }
}

fn webhooks(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten()
}

pub(super) fn containers(object: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let list = object.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn is_named(container: &Map<String, Value>, name: &str) -> bool {
    container.get("name").and_then(Value::as_str) == Some(name)
}

fn own_namespace(objects: &[Value]) -> Option<String> {
    let deployment = objects.iter().find(|o| kind(o) == "Deployment")?;
    Some(deployment.pointer("/metadata/namespace")?.as_str()?.to_owned())
}

fn operator_image(objects: &mut [Value]) -> Option<String> {
    let mut operators = objects.iter_mut().flat_map(containers).filter(|c| is_named(c, OPERATOR_CONTAINER));
    operators.find_map(|c| Some(c.get("image")?.as_str()?.to_owned()))
}

fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// The role of a binding.
fn role_of(binding: &Value) -> Option<String> {
    Some(binding.pointer("/roleRef/name")?.as_str()?.to_owned())
}
