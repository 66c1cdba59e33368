//! Pod Security of a namespace, and the permissions of the operator.

use super::super::{
    api::{Api, ApiError},
    objects::{list, text},
    report::Report,
};
use serde_json::Value;

pub(super) async fn pod_security(api: &Api, name: &str, report: &mut Report) {
    let what = "Pod Security";
    let namespace = match api.get(&format!("/api/v1/namespaces/{name}")).await {
        Ok(namespace) => namespace,
        Err(error) => return report.note(what, "unknown", &error.to_string()),
    };
    let hint = format!("kubectl label namespace {name} pod-security.kubernetes.io/enforce=restricted");
    match text(&namespace, "/metadata/labels/pod-security.kubernetes.io~1enforce") {
        "restricted" => report.ok(what, "restricted"),
        "" => report.note(what, "not enforced", &hint),
        other => report.note(what, other, &hint),
    }
}

/// Whether the operator may read Secrets of others.
pub(super) async fn operator_permissions(
    api: &Api,
    namespace: &str,
    deployment: &Value,
    report: &mut Report,
) {
    let what = "operator's permissions on Secrets";
    let account = text(deployment, "/spec/template/spec/serviceAccountName");
    let mut unrestricted = false;
    for (bindings, own) in [
        ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), ""),
        (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"), namespace),
    ] {
        let bindings = match api.list(&bindings, "").await {
            Ok(bindings) => bindings,
            Err(ApiError::Forbidden(why)) => return report.note(what, "unknown", &why),
            Err(error) => return report.note(what, "unknown", &error.to_string()),
        };
        let is_subject = |subject: &Value| {
            text(subject, "/kind") == "ServiceAccount"
                && text(subject, "/name") == account
                && text(subject, "/namespace") == namespace
        };
        for binding in bindings.iter().filter(|binding| list(binding, "/subjects").iter().any(is_subject)) {
            let role = text(binding, "/roleRef/name");
            let path = if text(binding, "/roleRef/kind") == "ClusterRole" {
                format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")
            } else {
                format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{own}/roles/{role}")
            };
            match api.find(&path).await {
                Ok(role) => {
                    unrestricted |= role.is_some_and(|role| list(&role, "/rules").iter().any(reads_all));
                }
                Err(error) => return report.note(what, "unknown", &error.to_string()),
            }
        }
    }
    if unrestricted {
        let hint =
            "from inferenceServices.enabled or rbac.agentSecrets=[\"*\"]: name the Secrets where possible";
        report.note(what, "every Secret of its namespaces", hint);
    } else {
        report.ok(what, "by name");
    }
}

fn reads_all(rule: &Value) -> bool {
    let has = |field: &str, words: &[&str]| {
        list(rule, field).iter().filter_map(Value::as_str).any(|word| words.contains(&word))
    };
    has("/apiGroups", &["", "*"])
        && has("/resources", &["secrets", "*"])
        && has("/verbs", &["get", "list", "watch", "*"])
        && list(rule, "/resourceNames").is_empty()
}
