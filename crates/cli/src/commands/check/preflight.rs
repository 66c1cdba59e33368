//! `--pre`: Kubernetes version, RBAC permissions and existing resources before installation.

use super::{
    api::{Api, ApiError},
    crds,
    objects::{join, text},
    report::Report,
};
use serde_json::Value;

/// Oldest Kubernetes version that supports the manifests.
const MIN_VERSION: (u32, u32) = (1, 30);

/// Name, group and resource of each part, and whether it is namespaced.
type Permission = (&'static str, &'static [(&'static str, &'static str)], bool);

const PERMISSIONS: [Permission; 4] = [
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

/// Whether the API server answers; reports its version. Without it, no other step can run.
pub(super) async fn check_connection(api: &Api, report: &mut Report) -> bool {
    let version = match api.get("/version").await {
        Ok(version) => version,
        Err(error) => {
            let hint = "is the cluster running, and is the context right? compare kubectl cluster-info";
            report.fail("API server reachable", &error.to_string(), hint);
            return false;
        }
    };
    let user = api.whoami().await;
    let number = |at: &str| -> u32 {
        let digits: String = text(&version, at).chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let (major, minor) = (number("/major"), number("/minor"));
    let as_user = user.as_ref().map(|user| format!(" as {user}")).unwrap_or_default();
    let what = format!("kubernetes {major}.{minor} reachable{as_user}");
    if (major, minor) < MIN_VERSION {
        report.fail(&what, "too old", &format!("{}.{} or newer is required", MIN_VERSION.0, MIN_VERSION.1));
    } else {
        report.ok(&what, "");
    }
    true
}

pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    for (name, resources, namespaced) in PERMISSIONS {
        permission(api, name, resources, if namespaced { namespace } else { "" }, report).await;
    }
    definitions(api, crds::SELDON, "of Seldon or another version", report).await;
    definitions(api, crds::GANTRY, "of another version", report).await;
    definitions(api, crds::KSERVE, "of KServe or another version", report).await;
    pod_security(api, namespace, report).await;
    storage(api, report).await;
    match api.find("/apis/gateway.networking.k8s.io").await {
        Ok(Some(_)) => {
            report.note(
                "Gateway API",
                "installed",
                "not used yet: requests enter through the Service seldon-mesh",
            );
        }
        Ok(None) => report.note(
            "Gateway API",
            "not installed",
            "not required: requests enter through the Service seldon-mesh",
        ),
        Err(error) => report.note("Gateway API", "unknown", &error.to_string()),
    }
}

async fn permission(api: &Api, name: &str, resources: &[(&str, &str)], namespace: &str, report: &mut Report) {
    let scope = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    let line = format!("can create {name}{scope}");
    let mut denied = Vec::new();
    for (group, resource) in resources {
        for verb in ["create", "patch"] {
            match api.is_allowed(verb, group, resource, namespace).await {
                Ok(true) => {}
                Ok(false) if denied.contains(resource) => {}
                Ok(false) => denied.push(resource),
                Err(error) => return report.fail(&line, &error.to_string(), ""),
            }
        }
    }
    if denied.is_empty() {
        return report.ok(&line, "");
    }
    let hint = if name.starts_with("Custom") {
        "have an administrator apply gantry install --crds, and apply the rest with --no-crds"
    } else if name.starts_with("Cluster") {
        "use gantry install --watch-namespaces … --no-aggregate, or ask an administrator"
    } else {
        "ask an administrator of the namespace"
    };
    report.fail(&line, &format!("no: {}", join(&denied)), hint);
}

async fn definitions(api: &Api, group: &str, foreign_origin: &str, report: &mut Report) {
    let what = format!("CRDs of {group}");
    let found = match crds::fetch(api, group).await {
        Ok(found) => found,
        Err(error) => return report.note(&what, "unknown", &error.to_string()),
    };
    let installed: Vec<_> = found.iter().filter(|d| d.is_installed()).collect();
    let foreign: Vec<String> =
        installed.iter().filter(|d| !d.is_current()).map(|d| d.resource.plural.to_owned()).collect();
    match (installed.len(), foreign.len()) {
        (0, _) => report.ok(&what, "none yet"),
        (n, 0) => report.ok(&what, &format!("{n} of {}, current version", found.len())),
        (_, _) => {
            let remedy = match group {
                crds::SELDON => "see gantry check --migrate",
                crds::GANTRY => "gantry install --crds has the current ones",
                _ => "they are left as they are; see docs/kserve.md",
            };
            report.note(&what, foreign_origin, &format!("{}; {remedy}", foreign.join(", ")));
        }
    }
}

/// Pod Security level of the namespace.
async fn pod_security(api: &Api, namespace: &str, report: &mut Report) {
    let what = format!("Pod Security of {namespace}");
    match api.find(&format!("/api/v1/namespaces/{namespace}")).await {
        Ok(None) => {
            report.note(&format!("namespace {namespace}"), "not found", "created by gantry install");
            if matches!(api.is_allowed("create", "", "namespaces", "").await, Ok(false)) {
                report.fail("can create Namespaces", "no", "ask an administrator to create it");
            }
        }
        Ok(Some(found)) => match label(&found, "pod-security.kubernetes.io/enforce") {
            "restricted" => report.ok(
                &what,
                "restricted: Gantry's own pods comply; third-party images (mlserver, triton) may not",
            ),
            "" => report.ok(&what, "unrestricted"),
            level => report.ok(&what, level),
        },
        Err(error) => report.note(&what, "unknown", &error.to_string()),
    }
}

fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(name))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Without a default StorageClass, pods stay pending and the installation appears to hang.
async fn storage(api: &Api, report: &mut Report) {
    let what = "default StorageClass";
    let classes = match api.list("/apis/storage.k8s.io/v1/storageclasses", "").await {
        Ok(classes) => classes,
        Err(ApiError::Forbidden(_)) => {
            return report.note(what, "unknown", "not permitted to list StorageClasses");
        }
        Err(error) => return report.note(what, "unknown", &error.to_string()),
    };
    let is_default = |class: &&Value| {
        let annotations = class.pointer("/metadata/annotations");
        let value = annotations.and_then(|a| a.get("storageclass.kubernetes.io/is-default-class"));
        value.and_then(Value::as_str) == Some("true")
    };
    match classes.iter().find(is_default) {
        Some(class) => report.ok(what, text(class, "/metadata/name")),
        None => report.note(
            what,
            "none",
            "volumes of schedulers and servers stay pending without one, unless they set a class",
        ),
    }
}
