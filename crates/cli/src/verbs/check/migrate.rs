//! Before moving from Seldon Core v2: what it left on the cluster, and what becomes of it.

use super::{
    api::Api,
    kinds,
    objects::{list, number, place, shown, text},
    report::Report,
    workloads,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// What its Deployment is labelled and called.
const OPERATOR_LABEL: &str = "control-plane=v2-controller-manager";
/// Finalizers that Gantry's operator deals with when an object is deleted.
const HANDLED: [&str; 4] = [
    "seldon.model.finalizer",
    "seldon.pipeline.finalizer",
    "seldon.experiment.finalizer",
    "seldon.runtime.finalizer",
];
/// Kinds whose controllers are not there yet: they are kept, and say so.
const LATER: [&str; 2] = ["Pipeline", "Experiment"];
/// Components that Gantry has no use for: models are routed and served without a broker.
const UNUSED: [&str; 4] =
    ["seldon-dataflow-engine", "seldon-modelgateway", "seldon-pipelinegateway", "hodometer"];
/// Objects of a kind that are told one by one.
const TOLD: usize = 5;

pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    let there = definitions(api, report).await;
    operator(api, report).await;
    if there {
        for resource in gantry_api::resources() {
            objects(api, resource.kind, resource.plural, report).await;
        }
        components(api, namespace, report).await;
    }
    workloads::run(api, namespace, report).await;
    report.say("");
    report.say("The steps, with the way back, are in docs/migrate.md. In short:");
    for (number, step) in [
        "back up:         kubectl get models,servers,pipelines,experiments,seldonruntimes,seldonconfigs,serverconfigs -A -o yaml | grep -v '^ *resourceVersion: '",
        "stop Seldon's:   kubectl scale deploy/seldon-v2-controller-manager --replicas=0 -n NAMESPACE",
        "the kinds:       gantry install --crds | kubectl apply --server-side --force-conflicts -f -",
        "the operator:    gantry install --no-crds --no-configs | kubectl apply -f -",
        "look:            gantry check",
    ]
    .iter()
    .enumerate()
    {
        report.say(&format!("  {}. {step}", number + 1));
    }
}

/// The definitions, and whether objects that are stored can be read through ours.
async fn definitions(api: &Api, report: &mut Report) -> bool {
    let found = match kinds::look(api).await {
        Ok(found) => found,
        Err(trouble) => {
            report.wrong(&format!("kinds of {}", kinds::group()), &trouble.to_string(), "");
            return false;
        }
    };
    for definition in found.iter().filter(|d| d.is_there()) {
        let stored = definition.stored();
        let what = definition.name();
        if stored.iter().any(|version| *version != "v1alpha1") {
            let hint = "objects are stored in a version that Gantry does not know: write each of them again as v1alpha1";
            report.wrong(&what, &format!("stored as {}", shown(&stored)), hint);
        } else if definition.is_ours() {
            report.ok(&what, "Gantry's already");
        } else {
            let (theirs, ours) = (definition.bytes() / 1024, definition.our_bytes() / 1024);
            report.note(&what, "is replaced", &format!("{theirs} KiB become {ours} KiB; objects stay"));
        }
    }
    if found.iter().all(|d| !d.is_there()) {
        report.note(
            &format!("kinds of {}", kinds::group()),
            "none",
            "Seldon Core v2 was not here: gantry check --pre",
        );
        return false;
    }
    true
}

/// Two operators would write the same objects.
async fn operator(api: &Api, report: &mut Report) {
    let what = "Seldon's operator";
    let found = match api.list("/apis/apps/v1/deployments", OPERATOR_LABEL).await {
        Ok(found) => found,
        Err(trouble) => {
            return report.wrong(what, &trouble.to_string(), "it must not run; look for it yourself");
        }
    };
    let mut runs = false;
    for deployment in &found {
        let wanted = deployment.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        if wanted > 0 || number(deployment, "/status/replicas") > 0 {
            runs = true;
            let (name, namespace) =
                (text(deployment, "/metadata/name"), text(deployment, "/metadata/namespace"));
            let hint = format!("first: kubectl scale deploy/{name} -n {namespace} --replicas=0");
            report.wrong(what, &format!("runs in {namespace}"), &hint);
        }
    }
    if !runs {
        report.ok(what, if found.is_empty() { "not there" } else { "scaled to 0" });
    }
}

/// What is there of a kind, and what of it Gantry would refuse.
async fn objects(api: &Api, kind: &str, plural: &str, report: &mut Report) {
    let found = match api.list(&kinds::list_path(plural, None), "").await {
        Ok(found) => found,
        Err(trouble) => return report.wrong(plural, &trouble.to_string(), ""),
    };
    if found.is_empty() {
        return;
    }
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for finalizer in found.iter().flat_map(|o| list(o, "/metadata/finalizers")).filter_map(Value::as_str) {
        *finalizers.entry(finalizer).or_default() += 1;
    }
    let foreign: Vec<&str> = finalizers.keys().copied().filter(|f| !HANDLED.contains(f)).collect();
    let what = format!("{plural}: {}", found.len());
    if LATER.contains(&kind) {
        let hint = "kept, and marked NotSupportedYet: nothing runs them until a later version";
        report.note(&what, "do not run", hint);
    } else {
        let invalid: Vec<(&Value, String)> = found.iter().filter_map(|o| Some((o, refusal(o)?))).collect();
        if invalid.is_empty() {
            let held = finalizers
                .keys()
                .next()
                .map(|f| format!("{f} is dealt with on deletion"))
                .unwrap_or_default();
            report.ok(&what, &held);
        } else {
            report.wrong(
                &what,
                &format!("{} would be refused", invalid.len()),
                "correct them before or after; nothing is lost",
            );
        }
        for (object, why) in invalid.iter().take(TOLD) {
            report.note(&format!("  {}", place(object)), why, "");
        }
        if invalid.len() > TOLD {
            let hint = format!("kubectl get {plural} -A -o yaml | gantry lint -");
            report.note(&format!("  and {} more", invalid.len() - TOLD), "", &hint);
        }
    }
    if !foreign.is_empty() {
        report.note("  other finalizers", &shown(&foreign), "whoever put them there has to take them away");
    }
}

/// Why Gantry would refuse a stored object; one that is going is nobody's concern.
fn refusal(object: &Value) -> Option<String> {
    if !text(object, "/metadata/deletionTimestamp").is_empty() {
        return None;
    }
    let mut bare = object.clone();
    if let Some(fields) = bare.as_object_mut() {
        fields.remove("status");
    }
    let problems = gantry_api::read("", &bare.to_string()).err()?;
    problems.first().map(|problem| format!("{} {}", problem.path, problem.message))
}

/// What the namespaces' components are, and which of them go.
async fn components(api: &Api, namespace: &str, report: &mut Report) {
    let what = format!("SeldonConfigs in {namespace}");
    let configs = match api.list(&kinds::list_path("seldonconfigs", Some(namespace)), "").await {
        Ok(configs) => configs,
        Err(trouble) => return report.wrong(&what, &trouble.to_string(), ""),
    };
    for config in &configs {
        let names: Vec<&str> = list(config, "/spec/components").iter().map(|c| text(c, "/name")).collect();
        let unused: Vec<&str> = names.iter().copied().filter(|n| UNUSED.contains(n)).collect();
        let what = format!("SeldonConfig {}", text(config, "/metadata/name"));
        if unused.is_empty() {
            report.ok(&what, &shown(&names));
        } else {
            let hint = format!(
                "runs on as it is; Gantry's own has no {}, and seldon-gateway in the place of seldon-envoy",
                shown(&unused)
            );
            report.note(&what, "Seldon's components", &hint);
        }
        let secrets = list(config, "/spec/config/agentConfig/rclone/config_secrets");
        let secrets: Vec<&str> = secrets.iter().filter_map(Value::as_str).collect();
        if !secrets.is_empty() {
            let hint = format!(
                "gantry install --agent-secrets {} for as long as Seldon's agents run",
                secrets.join(",")
            );
            report.note("  Secrets for agents", &shown(&secrets), &hint);
        }
    }
}
