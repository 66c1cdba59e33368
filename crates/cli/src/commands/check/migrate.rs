//! `--migrate`: existing objects of Seldon Core v2 and KServe, and the effect of a migration.

use super::{
    api::Api,
    crds, kserve,
    objects::{join, list, number, qualified_name, text},
    report::Report,
    workloads,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Label of Seldon's operator Deployment.
const OPERATOR_LABEL: &str = "control-plane=v2-controller-manager";
/// Finalizers that Gantry's operator removes.
const KNOWN_FINALIZERS: [&str; 4] = [
    "seldon.model.finalizer",
    "seldon.pipeline.finalizer",
    "seldon.experiment.finalizer",
    "seldon.runtime.finalizer",
];
/// Components that Gantry does not need: it serves without Kafka.
const UNUSED_COMPONENTS: [&str; 4] =
    ["seldon-dataflow-engine", "seldon-modelgateway", "seldon-pipelinegateway", "hodometer"];
/// Objects listed per kind.
pub(super) const MAX_LISTED: usize = 5;

pub(super) async fn run(api: &Api, namespace: &str, report: &mut Report) {
    let installed = definitions(api, report).await;
    operator(api, report).await;
    if installed {
        for resource in crds::resources_of(crds::SELDON) {
            objects(api, resource.plural, report).await;
        }
        components(api, namespace, report).await;
    }
    workloads::run(api, namespace, report).await;
    let has_services = kserve::run(api, report).await;
    if has_services {
        print_steps("from KServe", "docs/kserve.md", &kserve::STEPS, report);
    }
    if installed || !has_services {
        print_steps("from Seldon Core v2", "docs/migrate.md", &STEPS, report);
    }
}

const STEPS: [&str; 5] = [
    "back up:            kubectl get models,servers,pipelines,experiments,seldonruntimes,seldonconfigs,serverconfigs -A -o yaml | grep -v '^ *resourceVersion: '",
    "stop Seldon:        kubectl scale deploy/seldon-v2-controller-manager --replicas=0 -n NAMESPACE",
    "install CRDs:       gantry install --crds | kubectl apply --server-side --force-conflicts -f -",
    "install operator:   gantry install --no-crds --no-configs | kubectl apply -f -",
    "verify:             gantry check",
];

fn print_steps(from: &str, page: &str, steps: &[&str], report: &mut Report) {
    report.print("");
    report.print(&format!("Migration {from} (details and rollback: {page}):"));
    for (number, step) in steps.iter().enumerate() {
        report.print(&format!("  {}. {step}", number + 1));
    }
}

/// Installed CRDs, and whether stored objects are readable with the new ones.
async fn definitions(api: &Api, report: &mut Report) -> bool {
    let found = match crds::fetch(api, crds::SELDON).await {
        Ok(found) => found,
        Err(error) => {
            report.fail(&format!("CRDs of {}", crds::SELDON), &error.to_string(), "");
            return false;
        }
    };
    for definition in found.iter().filter(|d| d.is_installed()) {
        let stored = definition.stored_versions();
        let what = definition.name();
        if stored.iter().any(|version| *version != "v1alpha1") {
            let hint = "Gantry does not support this stored version: rewrite the objects as v1alpha1";
            report.fail(&what, &format!("stored as {}", join(&stored)), hint);
        } else if definition.is_current() {
            report.ok(&what, "already Gantry's");
        } else {
            let (installed, bundled) = (definition.bytes() / 1024, definition.bundled_bytes() / 1024);
            report.note(
                &what,
                "will be replaced",
                &format!("{installed} KiB → {bundled} KiB; objects are kept"),
            );
        }
    }
    if found.iter().all(|d| !d.is_installed()) {
        report.note(
            &format!("CRDs of {}", crds::SELDON),
            "none",
            "Seldon Core v2 is not installed: use gantry check --pre",
        );
        return false;
    }
    true
}

/// Both operators would write the same objects.
async fn operator(api: &Api, report: &mut Report) {
    let what = "Seldon's operator";
    let found = match api.list("/apis/apps/v1/deployments", OPERATOR_LABEL).await {
        Ok(found) => found,
        Err(error) => {
            return report.fail(what, &error.to_string(), "cannot verify that it is stopped");
        }
    };
    let mut running = false;
    for deployment in &found {
        let desired = deployment.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        if desired > 0 || number(deployment, "/status/replicas") > 0 {
            running = true;
            let (name, namespace) =
                (text(deployment, "/metadata/name"), text(deployment, "/metadata/namespace"));
            let hint = format!("stop it: kubectl scale deploy/{name} -n {namespace} --replicas=0");
            report.fail(what, &format!("running in {namespace}"), &hint);
        }
    }
    if !running {
        report.ok(what, if found.is_empty() { "not installed" } else { "scaled to 0" });
    }
}

/// Objects of a kind, and those that Gantry would reject.
async fn objects(api: &Api, plural: &str, report: &mut Report) {
    let found = match api.list(&crds::list_path(plural, None), "").await {
        Ok(found) => found,
        Err(error) => return report.fail(plural, &error.to_string(), ""),
    };
    if found.is_empty() {
        return;
    }
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for finalizer in found.iter().flat_map(|o| list(o, "/metadata/finalizers")).filter_map(Value::as_str) {
        *finalizers.entry(finalizer).or_default() += 1;
    }
    let foreign: Vec<&str> = finalizers.keys().copied().filter(|f| !KNOWN_FINALIZERS.contains(f)).collect();
    let what = format!("{plural}: {}", found.len());
    let invalid: Vec<(&Value, String)> =
        found.iter().filter_map(|o| Some((o, validation_error(o)?))).collect();
    if invalid.is_empty() {
        let detail =
            finalizers.keys().next().map(|f| format!("{f} is removed on deletion")).unwrap_or_default();
        report.ok(&what, &detail);
    } else {
        let hint = "fix them before or after the migration; they are kept";
        report.fail(&what, &format!("{} invalid", invalid.len()), hint);
    }
    for (object, why) in invalid.iter().take(MAX_LISTED) {
        report.note(&format!("  {}", qualified_name(object)), why, "");
    }
    if invalid.len() > MAX_LISTED {
        let hint = format!("kubectl get {plural} -A -o yaml | gantry lint -");
        report.note(&format!("  and {} more", invalid.len() - MAX_LISTED), "", &hint);
    }
    let secrets: BTreeSet<&str> =
        found.iter().map(|o| text(o, "/spec/secretName")).filter(|name| !name.is_empty()).collect();
    if !secrets.is_empty() {
        let names: Vec<&str> = secrets.into_iter().collect();
        let hint =
            format!("use gantry install --agent-secrets {}, so that agents may read them", names.join(","));
        report.note("  Secrets of Models", &join(&names), &hint);
    }
    if !foreign.is_empty() {
        report.note("  other finalizers", &join(&foreign), "must be removed by their owner");
    }
}

/// The validation error of a stored object; objects being deleted are skipped.
pub(super) fn validation_error(object: &Value) -> Option<String> {
    if !text(object, "/metadata/deletionTimestamp").is_empty() {
        return None;
    }
    let mut manifest = object.clone();
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("status");
    }
    let problems = gantry_api::parse_manifest("", &manifest.to_string()).err()?;
    problems.first().map(|problem| format!("{} {}", problem.path, problem.message))
}

/// Components of each SeldonConfig.
async fn components(api: &Api, namespace: &str, report: &mut Report) {
    let what = format!("SeldonConfigs in {namespace}");
    let configs = match api.list(&crds::list_path("seldonconfigs", Some(namespace)), "").await {
        Ok(configs) => configs,
        Err(error) => return report.fail(&what, &error.to_string(), ""),
    };
    for config in &configs {
        let names: Vec<&str> = list(config, "/spec/components").iter().map(|c| text(c, "/name")).collect();
        let unused: Vec<&str> = names.iter().copied().filter(|n| UNUSED_COMPONENTS.contains(n)).collect();
        let what = format!("SeldonConfig {}", text(config, "/metadata/name"));
        if unused.is_empty() {
            report.ok(&what, &join(&names));
        } else {
            let hint = format!(
                "keeps working; Gantry's own has no {}, and seldon-gateway instead of seldon-envoy",
                join(&unused)
            );
            report.note(&what, "Seldon's components", &hint);
        }
        let secrets = list(config, "/spec/config/agentConfig/rclone/config_secrets");
        let secrets: Vec<&str> = secrets.iter().filter_map(Value::as_str).collect();
        if !secrets.is_empty() {
            let hint =
                format!("use gantry install --agent-secrets {} while Seldon's agents run", secrets.join(","));
            report.note("  Secrets for agents", &join(&secrets), &hint);
        }
    }
}
