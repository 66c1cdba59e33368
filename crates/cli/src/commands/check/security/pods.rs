//! What the pod templates of a namespace allow.

use super::{
    super::{
        objects::{list, text},
        report::Report,
    },
    Namespace,
};
use serde_json::Value;

/// Arguments of all containers.
pub(super) fn args(workload: &Value) -> impl Iterator<Item = &str> {
    containers(workload).iter().flat_map(|container| list(container, "/args")).filter_map(Value::as_str)
}

pub(super) fn has_variable(workload: &Value, name: &str) -> bool {
    variable(workload, name).is_some()
}

pub(super) fn variable<'a>(workload: &'a Value, name: &str) -> Option<&'a str> {
    let mut all = containers(workload).iter().flat_map(|container| list(container, "/env"));
    all.find(|variable| text(variable, "/name") == name).map(|variable| text(variable, "/value"))
}

pub(super) fn containers(workload: &Value) -> &[Value] {
    list(workload, "/spec/template/spec/containers")
}

/// Whether a container runs this command of Gantry.
pub(super) fn runs(workload: &Value, command: &str) -> bool {
    containers(workload)
        .iter()
        .any(|container| list(container, "/args").first().and_then(Value::as_str) == Some(command))
}

/// Names of the Secrets that are mounted.
pub(super) fn mounted_secrets(workload: &Value) -> impl Iterator<Item = &str> {
    let volumes = list(workload, "/spec/template/spec/volumes").iter();
    volumes.map(|volume| text(volume, "/secret/secretName")).filter(|name| !name.is_empty())
}

/// Tokens of service accounts and privileges of Gantry's pods.
pub(super) fn check(namespace: &Namespace, report: &mut Report) {
    let ours = ["scheduler", "gateway", "agent"];
    let pods = namespace.workloads.iter().filter(|w| ours.iter().any(|command| runs(w, command)));
    let mut with_token = Vec::new();
    let mut privileged = Vec::new();
    let mut count = 0;
    for workload in pods {
        count += 1;
        let name = text(workload, "/metadata/name");
        let spec = workload.pointer("/spec/template/spec");
        if spec.and_then(|spec| spec.get("automountServiceAccountToken")) != Some(&Value::Bool(false)) {
            with_token.push(name);
        }
        let runs_as_root =
            spec.and_then(|spec| spec.pointer("/securityContext/runAsNonRoot")) != Some(&Value::Bool(true));
        let escalates = containers(workload).iter().any(|container| {
            container.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false))
        });
        if runs_as_root || escalates {
            privileged.push(name);
        }
    }
    if count == 0 {
        return;
    }
    if with_token.is_empty() {
        report.ok("API tokens in pods", "none");
    } else {
        let hint = "set automountServiceAccountToken: false in their podSpec";
        report.note("API tokens in pods", &with_token.join(", "), hint);
    }
    if privileged.is_empty() {
        report.ok("users and privileges of pods", "not root, no escalation");
    } else {
        let hint = "set runAsNonRoot: true and allowPrivilegeEscalation: false in their podSpec";
        report.fail("users and privileges of pods", &privileged.join(", "), hint);
    }
}
