//! Ports of a namespace's pods.

use super::{
    super::{
        objects::{list, text},
        report::Report,
    },
    Namespace, pods,
};
use serde_json::Value;

const ISSUE: &str = "set tls.issue=true in the chart; docs/install.md#tls has the upgrade";
const RESTRICT: &str = "networkPolicy.enabled=true in the chart restricts them";

pub(super) fn check(namespace: &Namespace, report: &mut Report) {
    for scheduler in running(namespace, "scheduler") {
        plaintext(namespace, scheduler, report);
        roles(scheduler, report);
        report_metrics("scheduler health 9999", scheduler, &namespace.policies, report);
    }
    exposed(namespace, report);
    for gateway in running(namespace, "gateway") {
        connection("gateway", gateway, report);
        inference(gateway, report);
        report_metrics("gateway admin 9003", gateway, &namespace.policies, report);
    }
    for server in running(namespace, "agent") {
        let name = text(server, "/metadata/name");
        connection(&format!("agents of {name}"), server, report);
        let what = format!("models of {name} 9001, 9501; runtime 9000");
        match policy_of(server, &namespace.policies) {
            Some(policy) => report.ok(&what, &format!("restricted by NetworkPolicy {policy}")),
            None => report.note(&what, "open to the cluster", RESTRICT),
        }
    }
}

fn running<'a>(namespace: &'a Namespace, command: &'a str) -> impl Iterator<Item = &'a Value> {
    namespace.workloads.iter().filter(move |workload| pods::runs(workload, command))
}

/// The ports on which every caller has all rights.
fn plaintext(namespace: &Namespace, scheduler: &Value, report: &mut Report) {
    let what = "scheduler 9004 and 9005, plaintext";
    let is_remote =
        pods::args(scheduler).any(|argument| argument == "--host=0.0.0.0" || argument == "--host=::");
    let is_open = is_remote && pods::args(scheduler).any(|argument| argument == "--allow-plaintext");
    let has_tls = pods::has_variable(scheduler, "GANTRY_TLS_CERT");
    match (is_open, policy_of(scheduler, &namespace.policies)) {
        (false, _) => report.ok(what, "closed beyond the pod"),
        (true, _) if has_tls => {
            let waiting: Vec<&str> = namespace
                .workloads
                .iter()
                .filter(|w| ["gateway", "agent"].iter().any(|command| pods::runs(w, command)))
                .filter(|w| !pods::has_variable(w, "GANTRY_TLS_CA"))
                .map(|w| text(w, "/metadata/name"))
                .collect();
            let hint = format!(
                "the operator closes them when all pods have certificates; without: {}",
                if waiting.is_empty() {
                    "none, pods are being replaced".to_owned()
                } else {
                    waiting.join(", ")
                }
            );
            report.fail(what, "open during the upgrade: all rights", &hint);
        }
        (true, Some(policy)) => {
            let detail = format!("NetworkPolicy {policy} decides who reaches them; {ISSUE}");
            report.note(what, "all rights, restricted", &detail);
        }
        (true, None) => report.fail(what, "open to the cluster: all rights", ISSUE),
    }
}

fn roles(scheduler: &Value, report: &mut Report) {
    let what = "scheduler 9044 and 9055, TLS";
    if !pods::has_variable(scheduler, "GANTRY_TLS_CERT") {
        return report.note(what, "closed", ISSUE);
    }
    if !pods::has_variable(scheduler, "GANTRY_TLS_CLIENT_CA") {
        return report.fail(what, "open to the cluster: all rights", "set GANTRY_TLS_CLIENT_CA");
    }
    match pods::variable(scheduler, "GANTRY_ROLE_OF_UNMARKED_CERTIFICATES").unwrap_or("client") {
        "any" => report.fail(
            what,
            "every certificate has all rights",
            "use certificates with roles and GANTRY_ROLE_OF_UNMARKED_CERTIFICATES=none, or tls.issue=true",
        ),
        "none" => report.ok(what, "by role; no rights without one"),
        _ => report.note(what, "by role", "certificates without a role have the rights of a client"),
    }
}

/// A scheduler is never for callers from outside.
fn exposed(namespace: &Namespace, report: &mut Report) {
    for service in &namespace.services {
        let name = text(service, "/metadata/name");
        let kind = text(service, "/spec/type");
        let selects = text(service, "/spec/selector/app.kubernetes.io~1name");
        if !["LoadBalancer", "NodePort"].contains(&kind) {
            continue;
        }
        let what = format!("Service {name}, {kind}");
        if selects == "seldon-scheduler" {
            let hint = "set serviceType: ClusterIP in the override of seldon-scheduler";
            report.fail(&what, "scheduler reachable from outside", hint);
        } else {
            report.note(&what, "reachable from outside", "");
        }
    }
}

/// Whether a part presents a certificate to the scheduler and verifies the scheduler's.
fn connection(part: &str, workload: &Value, report: &mut Report) {
    let what = format!("{part} to the scheduler");
    match (
        pods::has_variable(workload, "GANTRY_TLS_CA"),
        pods::has_variable(workload, "GANTRY_TLS_CLIENT_CERT"),
    ) {
        (true, true) => report.ok(&what, "mutual TLS"),
        (true, false) => report.note(&what, "TLS without a certificate of its own", ISSUE),
        (false, _) => report.fail(&what, "plaintext", ISSUE),
    }
}

fn inference(gateway: &Value, report: &mut Report) {
    let what = "gateway inference 9000";
    if pods::args(gateway).any(|argument| argument == "--allow-repository-changes") {
        return report.fail(what, "open: may load and unload models", "remove --allow-repository-changes");
    }
    let authenticates = pods::args(gateway).any(|argument| argument.starts_with("--auth-config"))
        || pods::has_variable(gateway, "GANTRY_AUTH_CONFIG");
    if authenticates {
        report.ok(what, "authenticates requests");
    } else {
        report.note(what, "inference for every caller", "docs/inference.md has API keys and tokens");
    }
}

/// A port with probes and metrics.
pub(super) fn report_metrics(what: &str, workload: &Value, policies: &[Value], report: &mut Report) {
    match policy_of(workload, policies) {
        Some(policy) => report.ok(what, &format!("restricted by NetworkPolicy {policy}")),
        None => report.note(what, "metrics open to the cluster", RESTRICT),
    }
}

/// A policy for incoming connections that selects the pods of a workload.
pub(super) fn policy_of<'a>(workload: &Value, policies: &'a [Value]) -> Option<&'a str> {
    let labels = workload.pointer("/spec/template/metadata/labels");
    let selects = |policy: &&Value| {
        let selector = policy.pointer("/spec/podSelector");
        let expressions = list(policy, "/spec/podSelector/matchExpressions");
        let matched = selector.and_then(|selector| selector.get("matchLabels")).and_then(Value::as_object);
        // An expression may exclude the pods: not counted as a restriction.
        expressions.is_empty()
            && matched
                .into_iter()
                .flatten()
                .all(|(name, value)| labels.and_then(|l| l.get(name)) == Some(value))
    };
    let is_ingress = |policy: &&Value| {
        let types = list(policy, "/spec/policyTypes");
        types.is_empty() || types.iter().any(|kind| kind == "Ingress")
    };
    let policy = policies.iter().filter(selects).find(is_ingress)?;
    Some(text(policy, "/metadata/name"))
}
