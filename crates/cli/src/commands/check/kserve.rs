//! `--migrate` on a cluster with KServe: its InferenceServices, and what Gantry would do with them.

use super::{
    api::Api,
    migrate::{MAX_LISTED, validation_error},
    objects::{list, number, qualified_name, text},
    report::Report,
};
use serde_json::Value;

const SERVICES: &str = "/apis/serving.kserve.io/v1beta1/inferenceservices";
const TRAINED_MODELS: &str = "/apis/serving.kserve.io/v1alpha1/trainedmodels";
/// Label of KServe's controller.
const CONTROLLER_LABEL: &str = "control-plane=kserve-controller-manager";
/// Finalizer of the services that KServe's controller has.
const FINALIZER: &str = "inferenceservice.finalizers";
const ADOPT: &str = "/metadata/annotations/gantry.dev~1adopt";
/// Fields that the operator refuses.
const REFUSED: [&str; 8] = [
    "predictor.logger.storage",
    "predictor.logger.marshallerUrl",
    "predictor.workerSpec",
    "transformer.logger.storage",
    "transformer.logger.marshallerUrl",
    "explainer.logger.storage",
    "explainer.logger.marshallerUrl",
    "explainer.art",
];

/// Whether the cluster has InferenceServices.
pub(super) async fn run(api: &Api, report: &mut Report) -> bool {
    let found = match api.list(SERVICES, "").await {
        Ok(found) => found,
        Err(error) => {
            report.fail("inferenceservices", &error.to_string(), "");
            return false;
        }
    };
    if found.is_empty() {
        return false;
    }
    controller(api, report).await;
    services(&found, report);
    if let Ok(models) = api.list(TRAINED_MODELS, "").await
        && !models.is_empty()
    {
        let hint = "Gantry does not load them yet: write an InferenceService in ModelMesh mode for each";
        report.fail(&format!("trainedmodels: {}", models.len()), "not supported", hint);
    }
    true
}

/// Both controllers may run: a service belongs to one of them.
async fn controller(api: &Api, report: &mut Report) {
    let what = "KServe's controller";
    match api.list("/apis/apps/v1/deployments", CONTROLLER_LABEL).await {
        Ok(found) => match found.iter().find(|d| number(d, "/status/replicas") > 0) {
            Some(deployment) => {
                let hint = "keeps its services; stop it before one of them is taken over";
                report.note(what, &format!("running in {}", text(deployment, "/metadata/namespace")), hint);
            }
            None => report.ok(what, if found.is_empty() { "not installed" } else { "scaled to 0" }),
        },
        Err(error) => report.fail(what, &error.to_string(), "cannot verify whether it runs"),
    }
}

fn services(found: &[Value], report: &mut Report) {
    let has_finalizer = |o: &&Value| list(o, "/metadata/finalizers").iter().any(|f| f == FINALIZER);
    let is_adopted = |o: &&Value| o.pointer(ADOPT).and_then(Value::as_str) == Some("true");
    let theirs = found.iter().filter(has_finalizer).filter(|o| !is_adopted(o)).count();
    let refused: Vec<(&Value, String)> = found.iter().filter_map(|o| Some((o, problem(o)?))).collect();
    let what = format!("inferenceservices: {}", found.len());
    let detail = format!("{theirs} of KServe's controller, left alone until gantry.dev/adopt=true");
    if refused.is_empty() {
        report.ok(&what, &detail);
    } else {
        let hint = "change them before they are taken over; until then KServe serves them";
        report.fail(&what, &format!("{} not supported", refused.len()), hint);
    }
    for (object, why) in refused.iter().take(MAX_LISTED) {
        report.note(&format!("  {}", qualified_name(object)), why, "");
    }
    if refused.len() > MAX_LISTED {
        let hint = "kubectl get isvc -A -o yaml | gantry lint -";
        report.note(&format!("  and {} more", refused.len() - MAX_LISTED), "", hint);
    }
}

/// Why the operator would not deploy a service.
fn problem(object: &Value) -> Option<String> {
    let is_set = |field: &&&str| object.pointer(&format!("/spec/{}", field.replace('.', "/"))).is_some();
    let field = REFUSED.iter().find(is_set).map(|field| format!("spec.{field} is not supported yet"));
    validation_error(object).or(field)
}

pub(super) const STEPS: [&str; 6] = [
    "back up:            kubectl get isvc,servingruntimes,clusterservingruntimes,inferencegraphs -A -o yaml",
    "stop KServe:        kubectl scale deploy/kserve-controller-manager -n kserve --replicas=0; pods keep serving",
    "install operator:   helm upgrade --install gantry deploy/chart -n NAMESPACE --set inferenceServices.enabled=true",
    "take one over:      kubectl annotate isvc NAME -n NAMESPACE gantry.dev/adopt=true",
    "verify:             kubectl wait --for=condition=Ready isvc/NAME -n NAMESPACE; gantry check",
    "free it of KServe:  kubectl patch isvc NAME -n NAMESPACE --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
];
