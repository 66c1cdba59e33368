//! Before installing: whether the cluster can have it, and whether you may put it there.

use super::{
    api::{Api, Trouble},
    kinds,
    objects::{shown, text},
    report::Report,
};
use serde_json::Value;

/// The oldest Kubernetes that has what the manifests use.
const OLDEST: (u32, u32) = (1, 30);

/// What installing creates, the group and resource of each part, and whether it is in the namespace.
type Right = (&'static str, &'static [(&'static str, &'static str)], bool);

const RIGHTS: [Right; 4] = [
    ("CustomResourceDefinitions", &[("apiextensions.k8s.io", "customresourcedefinitions")], false),
    (
        "ClusterRoles",
        &[
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ],
        false,
    ),
    ("Roles", &[("rbac.authorization.k8s.io", "roles"), ("rbac.authorization.k8s.io", "rolebindings")], true),
    (
        "workloads",
        &[
            ("apps", "deployments"),
            ("", "services"),
            ("", "serviceaccounts"),
            ("policy", "poddisruptionbudgets"),
        ],
        true,
    ),
];

/// Whether there is a cluster that answers, and that is new enough. Without one there is nothing else to look at.
pub(super) async fn reach(api: &Api, report: &mut Report) -> bool {
    let version = match api.get("/version").await {
        Ok(version) => version,
        Err(trouble) => {
            let hint = "is the cluster up, and is it the right one? kubectl cluster-info asks the same";
            report.wrong("the API server is reachable", &trouble.to_string(), hint);
            return false;
        }
    };
    let who = api.who().await;
    let number = |at: &str| -> u32 {
        let digits: String = text(&version, at).chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let (major, minor) = (number("/major"), number("/minor"));
    let as_whom = who.as_ref().map(|who| format!(" as {who}")).unwrap_or_default();
    let what = format!("kubernetes {major}.{minor} reachable{as_whom}");
    if (major, minor) < OLDEST {
        report.wrong(&what, "too old", &format!("{}.{} or newer is needed", OLDEST.0, OLDEST.1));
    } else {
        report.ok(&what, "");
    }
    true
}

pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    for (what, resources, inside) in RIGHTS {
        right(api, what, resources, if inside { namespace } else { "" }, report).await;
    }
    definitions(api, report).await;
    security(api, namespace, report).await;
    storage(api, report).await;
    match api.find("/apis/gateway.networking.k8s.io").await {
        Ok(Some(_)) => {
            report.note(
                "Gateway API",
                "installed",
                "not used yet: requests enter by the Service seldon-mesh",
            );
        }
        Ok(None) => report.note(
            "Gateway API",
            "not installed",
            "not needed: requests enter by the Service seldon-mesh",
        ),
        Err(trouble) => report.note("Gateway API", "unknown", &trouble.to_string()),
    }
}

async fn right(api: &Api, what: &str, resources: &[(&str, &str)], namespace: &str, report: &mut Report) {
    let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    let line = format!("may create {what}{place}");
    let mut refused = Vec::new();
    for (group, resource) in resources {
        for verb in ["create", "patch"] {
            match api.may(verb, group, resource, namespace).await {
                Ok(true) => {}
                Ok(false) if refused.contains(resource) => {}
                Ok(false) => refused.push(resource),
                Err(trouble) => return report.wrong(&line, &trouble.to_string(), ""),
            }
        }
    }
    if refused.is_empty() {
        return report.ok(&line, "");
    }
    let hint = if what.starts_with("Custom") {
        "an administrator applies gantry install --crds; you the rest with --no-crds"
    } else if what.starts_with("Cluster") {
        "gantry install --watch-namespaces … --no-aggregate needs none; else ask an administrator"
    } else {
        "ask an administrator of the namespace"
    };
    report.wrong(&line, &format!("no: {}", shown(&refused)), hint);
}

/// Whose kinds there are already.
async fn definitions(api: &Api, report: &mut Report) {
    let what = format!("kinds of {}", kinds::group());
    let found = match kinds::look(api).await {
        Ok(found) => found,
        Err(trouble) => return report.note(&what, "unknown", &trouble.to_string()),
    };
    let there: Vec<_> = found.iter().filter(|d| d.is_there()).collect();
    let foreign: Vec<String> =
        there.iter().filter(|d| !d.is_ours()).map(|d| d.resource.plural.to_owned()).collect();
    match (there.len(), foreign.len()) {
        (0, _) => report.ok(&what, "none yet"),
        (n, 0) => report.ok(&what, &format!("{n} of {}, of this version", found.len())),
        (_, _) => report.note(
            &what,
            "of Seldon or of another version",
            &format!("{}; gantry check --migrate says more", foreign.join(", ")),
        ),
    }
}

/// What pods may do in the namespace.
async fn security(api: &Api, namespace: &str, report: &mut Report) {
    let what = format!("Pod Security of {namespace}");
    match api.find(&format!("/api/v1/namespaces/{namespace}")).await {
        Ok(None) => {
            report.note(&format!("namespace {namespace}"), "not there", "gantry install makes it");
            if matches!(api.may("create", "", "namespaces", "").await, Ok(false)) {
                report.wrong("may create Namespaces", "no", "ask an administrator for the namespace");
            }
        }
        Ok(Some(found)) => match label(&found, "pod-security.kubernetes.io/enforce") {
            "restricted" => report.ok(
                &what,
                "restricted: all of Gantry's own pods are; images of others (mlserver, triton) may not be",
            ),
            "" => report.ok(&what, "not limited"),
            level => report.ok(&what, level),
        },
        Err(trouble) => report.note(&what, "unknown", &trouble.to_string()),
    }
}

fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether volumes come by themselves: pods that have to wait for one look like an installation that hangs.
async fn storage(api: &Api, report: &mut Report) {
    let what = "a default StorageClass";
    let classes = match api.list("/apis/storage.k8s.io/v1/storageclasses", "").await {
        Ok(classes) => classes,
        Err(Trouble::Forbidden(_)) => return report.note(what, "unknown", "you may not list StorageClasses"),
        Err(trouble) => return report.note(what, "unknown", &trouble.to_string()),
    };
    let is_default = |class: &&Value| {
        let annotations = class.pointer("/metadata/annotations");
        let mark = annotations.and_then(|a| a.get("storageclass.kubernetes.io/is-default-class"));
        mark.and_then(Value::as_str) == Some("true")
    };
    match classes.iter().find(is_default) {
        Some(class) => report.ok(what, text(class, "/metadata/name")),
        None => report.note(
            what,
            "none",
            "volumes of schedulers and servers wait until there is one, or name a class",
        ),
    }
}
