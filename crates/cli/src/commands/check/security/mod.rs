//! `gantry check --security`: which port is open, to which callers, and the remedy. The lines follow docs/security.md.
//!
//! A step fails where a caller that only reaches the network may change something. What such a caller may only read or
//! call, as models, is a note.

mod certificates;
mod local;
mod namespaces;
mod pods;
mod ports;
#[cfg(test)]
mod tests;

pub(super) use local::run as run_local;

use super::{
    api::{Api, ApiError},
    crds,
    objects::text,
    report::Report,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Objects of a namespace with a runtime.
struct Namespace {
    name: String,
    workloads: Vec<Value>,
    services: Vec<Value>,
    policies: Vec<Value>,
}

pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    operator(api, namespace, report).await;
    let names = match runtimes(api, namespace).await {
        Ok(names) => names,
        Err(error) => return report.fail("SeldonRuntimes", &error.to_string(), ""),
    };
    if names.is_empty() {
        report.note("SeldonRuntimes", "none", "no scheduler, gateway or server to check");
    }
    for name in &names {
        match read(api, name).await {
            Ok(found) => {
                report.print(&format!("namespace {name}"));
                ports::check(&found, report);
                certificates::check(api, &found, report).await;
                pods::check(&found, report);
                namespaces::pod_security(api, name, report).await;
            }
            Err(error) => report.fail(&format!("namespace {name}"), &error.to_string(), ""),
        }
    }
}

async fn runtimes(api: &Api, namespace: &str) -> Result<BTreeSet<String>, ApiError> {
    let all = match api.list(&crds::list_path("seldonruntimes", None), "").await {
        Err(ApiError::Forbidden(_)) => {
            api.list(&crds::list_path("seldonruntimes", Some(namespace)), "").await?
        }
        other => other?,
    };
    Ok(all.iter().map(|runtime| text(runtime, "/metadata/namespace").to_owned()).collect())
}

async fn read(api: &Api, name: &str) -> Result<Namespace, ApiError> {
    let mut workloads = Vec::new();
    for plural in ["statefulsets", "deployments"] {
        workloads.extend(api.list(&format!("/apis/apps/v1/namespaces/{name}/{plural}"), "").await?);
    }
    let policies = format!("/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies");
    Ok(Namespace {
        name: name.to_owned(),
        workloads,
        services: api.list(&format!("/api/v1/namespaces/{name}/services"), "").await?,
        policies: api.list(&policies, "").await?,
    })
}

/// The operator's own ports and permissions.
async fn operator(api: &Api, namespace: &str, report: &mut Report) {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let selector = "app.kubernetes.io/name=gantry,app.kubernetes.io/component=operator";
    let deployments = match api.list(&path, selector).await {
        Ok(deployments) => deployments,
        Err(error) => return report.fail("operator", &error.to_string(), ""),
    };
    let Some(deployment) = deployments.first() else {
        return report.note("operator", "not installed", "or set --namespace");
    };
    report.print(&format!("operator in {namespace}"));
    let issues = pods::args(deployment).any(|argument| argument == "--issue-certificates");
    let brings_own = pods::has_variable(deployment, "GANTRY_TLS_CA");
    let what = "certificates of the control plane";
    match (brings_own, issues) {
        (true, _) => report.ok(what, "of your own (tls.secretName)"),
        (false, true) => report.ok(what, "issued and renewed by the operator"),
        (false, false) => report.fail(what, "none", "set tls.issue=true, or tls.secretName"),
    }
    let policies = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies");
    match api.list(&policies, "").await {
        Ok(policies) => ports::report_metrics("operator admin 4000", deployment, &policies, report),
        Err(error) => report.note("operator admin 4000", "unknown", &error.to_string()),
    }
    if pods::args(deployment).any(|argument| argument == "--webhook") {
        let detail = "open to the cluster: answers whether objects exist, changes nothing";
        report.note("operator webhook 9443", "no authentication", detail);
    }
    namespaces::operator_permissions(api, namespace, deployment, report).await;
}
