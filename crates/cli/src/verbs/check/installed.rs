//! After installing: whether everything is there and works.

use super::{
    api::{Api, Trouble},
    kinds,
    objects::{condition, list, not_ready, number, place, shown, text},
    report::Report,
};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// A Lease that was not renewed for this long is looked at twice.
const FRESH: Duration = Duration::from_secs(15);
/// Objects of a kind that are told one by one.
const TOLD: usize = 5;

pub(super) async fn run(api: &Api, namespace: &str, patience: Duration, report: &mut Report) {
    if !definitions(api, report).await {
        return;
    }
    let elects = operator(api, namespace, report).await;
    leader(api, namespace, elects, patience, report).await;
    configs(api, namespace, report).await;
    webhook(api, namespace, report).await;
    for (kind, plural, none) in [
        (
            "SeldonRuntimes",
            "seldonruntimes",
            "gantry install --no-crds --runtime has one; without it nothing is served",
        ),
        ("Servers", "servers", "models need one: gantry install --no-crds --runtime has one"),
        ("Models", "models", "kubectl apply one"),
    ] {
        ready(api, namespace, kind, plural, none, report).await;
    }
}

async fn definitions(api: &Api, report: &mut Report) -> bool {
    let what = format!("kinds of {}", kinds::group());
    let found = match kinds::look(api).await {
        Ok(found) => found,
        // Whoever may not see definitions may still see objects.
        Err(trouble @ Trouble::Forbidden(_)) => {
            report.note(&what, "unknown", &trouble.to_string());
            return true;
        }
        Err(trouble) => {
            report.wrong(&what, &trouble.to_string(), "");
            return false;
        }
    };
    let named = |wrong: fn(&kinds::Definition) -> bool| -> Vec<&str> {
        found.iter().filter(|d| wrong(d)).map(|d| d.resource.plural).collect()
    };
    let missing = named(|d| !d.is_there());
    let apply = "gantry install --crds | kubectl apply --server-side --force-conflicts -f -";
    if !missing.is_empty() {
        report.wrong(&what, &format!("{} not installed", shown(&missing)), apply);
        return missing.len() < found.len();
    }
    let waiting = named(|d| !d.is_established());
    let other = named(|d| !d.is_ours());
    if !waiting.is_empty() {
        report.wrong(&what, &format!("{} not established", shown(&waiting)), "kubectl describe crd says why");
    } else if !other.is_empty() {
        report.wrong(&what, &format!("{} not of this version", shown(&other)), apply);
    } else {
        report.ok(&what, "established, of this version");
    }
    true
}

/// Says how the operator is, and returns whether it has to be elected.
async fn operator(api: &Api, namespace: &str, report: &mut Report) -> bool {
    let what = format!("operator in {namespace}");
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let selector = "app.kubernetes.io/name=gantry,app.kubernetes.io/component=operator";
    let deployments = match api.list(&path, selector).await {
        Ok(deployments) => deployments,
        Err(trouble) => {
            report.wrong(&what, &trouble.to_string(), "");
            return false;
        }
    };
    let Some(deployment) = deployments.first() else {
        let hint = "gantry install --no-crds | kubectl apply -f -; or name its namespace with --namespace";
        report.wrong(&what, "not installed", hint);
        return false;
    };
    let wanted = deployment.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
    let available = number(deployment, "/status/availableReplicas");
    let updated = number(deployment, "/status/updatedReplicas");
    let count = format!("{available} of {wanted} available");
    let logs = format!("kubectl logs -n {namespace} deploy/{}", text(deployment, "/metadata/name"));
    if wanted == 0 {
        report.wrong(
            &what,
            "scaled to 0",
            &format!("kubectl scale -n {namespace} deploy/gantry-operator --replicas=2"),
        );
    } else if available == 0 {
        let why = condition(deployment, "Available").map(|c| text(c, "/message")).unwrap_or_default();
        let count = if why.is_empty() { count } else { format!("{count}: {why}") };
        report.wrong(&what, &count, &logs);
    } else if available < wanted || updated < wanted {
        report.note(&what, &count, &logs);
    } else {
        report.ok(&what, &count);
    }
    let args = list(deployment, "/spec/template/spec/containers/0/args");
    args.iter().any(|arg| arg == "--leader-elect")
}

async fn leader(api: &Api, namespace: &str, elects: bool, patience: Duration, report: &mut Report) {
    let what = "an operator leads";
    let path =
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{}", gantry_operator::LEASE);
    let first = match api.find(&path).await {
        Ok(Some(lease)) => lease,
        Ok(None) if elects => {
            let hint = format!("kubectl get pods -n {namespace}");
            return report.wrong(what, "nobody has led yet: there is no Lease", &hint);
        }
        Ok(None) => {
            return report.note(what, "no Lease", "right for a single operator without --leader-elect");
        }
        Err(trouble) => return report.wrong(what, &trouble.to_string(), ""),
    };
    let holder = text(&first, "/spec/holderIdentity").to_owned();
    if holder.is_empty() {
        return report.wrong(what, "nobody holds the Lease", &format!("kubectl get pods -n {namespace}"));
    }
    let renewed = text(&first, "/spec/renewTime").to_owned();
    let age =
        renewed.parse::<Timestamp>().ok().and_then(|at| Timestamp::now().duration_since(at).try_into().ok());
    if age.is_some_and(|age: Duration| age < FRESH) {
        return report.ok(what, &holder);
    }
    // This machine's clock may be wrong: a Lease that changes while it is watched is held.
    let end = tokio::time::Instant::now() + patience;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(500).min(patience)).await;
        match api.find(&path).await {
            Ok(Some(lease)) if text(&lease, "/spec/renewTime") != renewed => return report.ok(what, &holder),
            _ => {}
        }
    }
    let hint = format!("it was {holder}: kubectl get pods -n {namespace}");
    report.wrong(what, &format!("nobody: the Lease was last renewed {renewed}"), &hint);
}

async fn configs(api: &Api, namespace: &str, report: &mut Report) {
    for (kind, plural) in [("SeldonConfigs", "seldonconfigs"), ("ServerConfigs", "serverconfigs")] {
        let what = format!("{kind} in {namespace}");
        match api.list(&kinds::list_path(plural, Some(namespace)), "").await {
            Err(trouble) => report.wrong(&what, &trouble.to_string(), ""),
            Ok(found) if found.is_empty() => {
                report.wrong(&what, "none", "gantry install --no-crds | kubectl apply -f - makes them");
            }
            Ok(found) => {
                let wrong = found.iter().find_map(|c| Some((c, not_ready(c)?)));
                let names: Vec<&str> = found.iter().map(|c| text(c, "/metadata/name")).collect();
                match wrong {
                    Some((config, why)) => report.wrong(&what, text(config, "/metadata/name"), &why),
                    None => report.ok(&what, &shown(&names)),
                }
            }
        }
    }
}

/// The admission webhook, where it is installed. Nothing depends on it, so that nothing is wrong without it.
async fn webhook(api: &Api, namespace: &str, report: &mut Report) {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    // Whoever may not see it does without the line.
    let Ok(found) = api.list(path, "app.kubernetes.io/name=gantry").await else { return };
    for configuration in &found {
        let what = format!("webhook {}", text(configuration, "/metadata/name"));
        let hooks = list(configuration, "/webhooks");
        if hooks.iter().any(|hook| text(hook, "/clientConfig/caBundle").is_empty()) {
            let hint = format!(
                "kubectl logs -n {namespace} deploy/gantry-operator says why; objects are taken without it"
            );
            report.note(&what, "has no caBundle: nobody answers", &hint);
        } else {
            report.ok(&what, "answers with a certificate of the operator's own");
        }
    }
}

async fn ready(api: &Api, namespace: &str, kind: &str, plural: &str, none: &str, report: &mut Report) {
    let mut place_of_all = String::new();
    let mut found = api.list(&kinds::list_path(plural, None), "").await;
    if matches!(found, Err(Trouble::Forbidden(_))) {
        place_of_all = format!(" in {namespace}");
        found = api.list(&kinds::list_path(plural, Some(namespace)), "").await;
    }
    let what = format!("{kind}{place_of_all}");
    let found = match found {
        Ok(found) => found,
        Err(trouble) => return report.wrong(&what, &trouble.to_string(), ""),
    };
    if found.is_empty() {
        return report.note(&what, "none", none);
    }
    let waiting: Vec<(&Value, String)> = found.iter().filter_map(|o| Some((o, not_ready(o)?))).collect();
    let count = format!("{} of {} ready", found.len() - waiting.len(), found.len());
    if waiting.is_empty() {
        return report.ok(&what, &count);
    }
    report.wrong(&what, &count, "");
    for (object, why) in waiting.iter().take(TOLD) {
        let suspended = list(object, "/metadata/finalizers").len();
        let hint = if suspended > 0 && why.starts_with("is being deleted") {
            "kubectl logs of the operator says why"
        } else {
            ""
        };
        report.note(&format!("  {}", place(object)), why, hint);
    }
    if waiting.len() > TOLD {
        report.note(&format!("  and {} more", waiting.len() - TOLD), &format!("kubectl get {plural} -A"), "");
    }
}
