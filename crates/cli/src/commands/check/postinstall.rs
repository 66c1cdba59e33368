//! Default mode: CRDs, operator, leader, configuration and objects after installation.

use super::{
    api::{Api, ApiError},
    crds,
    objects::{condition, join, list, not_ready, number, qualified_name, text},
    report::Report,
};
use gantry_operator::controllers::inference_service::config::{CONFIG_MAP, Config};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// A Lease renewed within this time counts as held; an older one is watched.
const LEASE_FRESH: Duration = Duration::from_secs(15);
/// Objects listed per kind.
const MAX_LISTED: usize = 5;

pub(super) async fn run(api: &Api, namespace: &str, lease_wait: Duration, report: &mut Report) {
    let is_usable = definitions(api, crds::SELDON, report).await;
    definitions(api, crds::GANTRY, report).await;
    definitions(api, crds::KSERVE, report).await;
    if !is_usable {
        return;
    }
    let elects = operator(api, namespace, report).await;
    leader(api, namespace, elects, lease_wait, report).await;
    configs(api, namespace, report).await;
    inference_service_config(api, namespace, report).await;
    webhook(api, namespace, report).await;
    for (kind, plural, none) in [
        (
            "SeldonRuntimes",
            "seldonruntimes",
            "required for serving: gantry install --no-crds --runtime includes one",
        ),
        ("Servers", "servers", "required for models: gantry install --no-crds --runtime includes one"),
        ("Models", "models", "apply one with kubectl"),
    ] {
        ready(api, namespace, kind, plural, none, report).await;
    }
}

async fn definitions(api: &Api, group: &str, report: &mut Report) -> bool {
    let what = format!("CRDs of {group}");
    let found = match crds::fetch(api, group).await {
        Ok(found) => found,
        // Reading objects may be permitted without reading CRDs.
        Err(error @ ApiError::Forbidden(_)) => {
            report.note(&what, "unknown", &error.to_string());
            return true;
        }
        Err(error) => {
            report.fail(&what, &error.to_string(), "");
            return false;
        }
    };
    let named = |matches: fn(&crds::InstalledCrd) -> bool| -> Vec<&str> {
        found.iter().filter(|d| matches(d)).map(|d| d.resource.plural).collect()
    };
    let missing = named(|d| !d.is_installed());
    let apply = match group {
        crds::SELDON | crds::GANTRY => {
            "gantry install --crds | kubectl apply --server-side --force-conflicts -f -"
        }
        _ => "kubectl apply --server-side -f deploy/crds-kserve",
    };
    if group == crds::KSERVE && missing.len() == found.len() {
        report.ok(&what, "not installed: needed for InferenceServices only");
        return true;
    }
    if !missing.is_empty() {
        report.fail(&what, &format!("{} not installed", join(&missing)), apply);
        return missing.len() < found.len();
    }
    let waiting = named(|d| !d.is_established());
    let outdated = named(|d| !d.is_current());
    if !waiting.is_empty() {
        report.fail(&what, &format!("{} not established", join(&waiting)), "see kubectl describe crd");
    } else if group == crds::KSERVE && !outdated.is_empty() {
        report.note(&what, "of KServe or another version", &outdated.join(", "));
    } else if !outdated.is_empty() {
        report.fail(&what, &format!("{} not of the current version", join(&outdated)), apply);
    } else {
        report.ok(&what, "established, current version");
    }
    true
}

/// Reports the operator Deployment; returns whether leader election is enabled.
async fn operator(api: &Api, namespace: &str, report: &mut Report) -> bool {
    let what = format!("operator in {namespace}");
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let selector = "app.kubernetes.io/name=gantry,app.kubernetes.io/component=operator";
    let deployments = match api.list(&path, selector).await {
        Ok(deployments) => deployments,
        Err(error) => {
            report.fail(&what, &error.to_string(), "");
            return false;
        }
    };
    let Some(deployment) = deployments.first() else {
        let hint = "gantry install --no-crds | kubectl apply -f -; or set --namespace";
        report.fail(&what, "not installed", hint);
        return false;
    };
    let desired = deployment.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let available = number(deployment, "/status/availableReplicas");
    let updated = number(deployment, "/status/updatedReplicas");
    let count = format!("{available} of {desired} available");
    let logs = format!("kubectl logs -n {namespace} deploy/{}", text(deployment, "/metadata/name"));
    if desired == 0 {
        report.fail(
            &what,
            "scaled to 0",
            &format!("kubectl scale -n {namespace} deploy/gantry-operator --replicas=2"),
        );
    } else if available == 0 {
        let why = condition(deployment, "Available").map(|c| text(c, "/message")).unwrap_or_default();
        let count = if why.is_empty() { count } else { format!("{count}: {why}") };
        report.fail(&what, &count, &logs);
    } else if available < desired || updated < desired {
        report.note(&what, &count, &logs);
    } else {
        report.ok(&what, &count);
    }
    let args = list(deployment, "/spec/template/spec/containers/0/args");
    args.iter().any(|arg| arg == "--leader-elect")
}

async fn leader(api: &Api, namespace: &str, elects: bool, lease_wait: Duration, report: &mut Report) {
    let what = "operator leader";
    let path =
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{}", gantry_operator::LEASE);
    let first = match api.find(&path).await {
        Ok(Some(lease)) => lease,
        Ok(None) if elects => {
            let hint = format!("kubectl get pods -n {namespace}");
            return report.fail(what, "none: no Lease found", &hint);
        }
        Ok(None) => {
            return report.note(what, "no Lease", "expected for a single operator without --leader-elect");
        }
        Err(error) => return report.fail(what, &error.to_string(), ""),
    };
    let holder = text(&first, "/spec/holderIdentity").to_owned();
    if holder.is_empty() {
        return report.fail(
            what,
            "none: the Lease has no holder",
            &format!("kubectl get pods -n {namespace}"),
        );
    }
    let renewed = text(&first, "/spec/renewTime").to_owned();
    let age =
        renewed.parse::<Timestamp>().ok().and_then(|at| Timestamp::now().duration_since(at).try_into().ok());
    if age.is_some_and(|age: Duration| age < LEASE_FRESH) {
        return report.ok(what, &holder);
    }
    // Clocks may differ: a Lease that is renewed while watched is held.
    let end = tokio::time::Instant::now() + lease_wait;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(500).min(lease_wait)).await;
        match api.find(&path).await {
            Ok(Some(lease)) if text(&lease, "/spec/renewTime") != renewed => return report.ok(what, &holder),
            _ => {}
        }
    }
    let hint = format!("last holder {holder}: kubectl get pods -n {namespace}");
    report.fail(what, &format!("none: the Lease was last renewed {renewed}"), &hint);
}

async fn configs(api: &Api, namespace: &str, report: &mut Report) {
    for (kind, plural) in [("SeldonConfigs", "seldonconfigs"), ("ServerConfigs", "serverconfigs")] {
        let what = format!("{kind} in {namespace}");
        match api.list(&crds::list_path(plural, Some(namespace)), "").await {
            Err(error) => report.fail(&what, &error.to_string(), ""),
            Ok(found) if found.is_empty() => {
                report.fail(&what, "none", "create them with gantry install --no-crds | kubectl apply -f -");
            }
            Ok(found) => {
                let unready = found.iter().find_map(|c| Some((c, not_ready(c)?)));
                let names: Vec<&str> = found.iter().map(|c| text(c, "/metadata/name")).collect();
                match unready {
                    Some((config, why)) => report.fail(&what, text(config, "/metadata/name"), &why),
                    None => report.ok(&what, &join(&names)),
                }
            }
        }
    }
}

/// The settings of InferenceServices; a cluster without the `ConfigMap` has the defaults.
async fn inference_service_config(api: &Api, namespace: &str, report: &mut Report) {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}");
    let what = format!("ConfigMap {CONFIG_MAP} in {namespace}");
    let found = match api.find(&path).await {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(error) => return report.note(&what, "unknown", &error.to_string()),
    };
    let parsed = serde_json::from_value(found).map_err(|error| error.to_string());
    match parsed.and_then(|map| Config::parse(&map)) {
        Ok(_) => report.ok(&what, "valid"),
        Err(error) => {
            let hint = format!(
                "kubectl edit configmap {CONFIG_MAP} -n {namespace}; services stay as they are until then"
            );
            report.fail(&what, &error, &hint);
        }
    }
}

/// The admission webhook is optional: a missing or broken one is not a failure.
async fn webhook(api: &Api, namespace: &str, report: &mut Report) {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    // Not permitted to list: skip the step.
    let Ok(found) = api.list(path, "app.kubernetes.io/name=gantry").await else { return };
    for configuration in &found {
        let what = format!("webhook {}", text(configuration, "/metadata/name"));
        let hooks = list(configuration, "/webhooks");
        if hooks.iter().any(|hook| text(hook, "/clientConfig/caBundle").is_empty()) {
            let hint = format!(
                "see kubectl logs -n {namespace} deploy/gantry-operator; objects are admitted without it"
            );
            report.note(&what, "not serving: no caBundle", &hint);
        } else {
            report.ok(&what, "serving with a self-signed certificate");
        }
    }
}

async fn ready(api: &Api, namespace: &str, kind: &str, plural: &str, none: &str, report: &mut Report) {
    let mut scope = String::new();
    let mut found = api.list(&crds::list_path(plural, None), "").await;
    if matches!(found, Err(ApiError::Forbidden(_))) {
        scope = format!(" in {namespace}");
        found = api.list(&crds::list_path(plural, Some(namespace)), "").await;
    }
    let what = format!("{kind}{scope}");
    let found = match found {
        Ok(found) => found,
        Err(error) => return report.fail(&what, &error.to_string(), ""),
    };
    if found.is_empty() {
        return report.note(&what, "none", none);
    }
    let unready: Vec<(&Value, String)> = found.iter().filter_map(|o| Some((o, not_ready(o)?))).collect();
    let count = format!("{} of {} ready", found.len() - unready.len(), found.len());
    if unready.is_empty() {
        return report.ok(&what, &count);
    }
    report.fail(&what, &count, "");
    for (object, why) in unready.iter().take(MAX_LISTED) {
        let finalizers = list(object, "/metadata/finalizers").len();
        let hint =
            if finalizers > 0 && why.starts_with("is being deleted") { "see the operator logs" } else { "" };
        report.note(&format!("  {}", qualified_name(object)), why, hint);
    }
    if unready.len() > MAX_LISTED {
        report.note(
            &format!("  and {} more", unready.len() - MAX_LISTED),
            &format!("kubectl get {plural} -A"),
            "",
        );
    }
}
