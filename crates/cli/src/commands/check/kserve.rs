//! `--migrate` on a cluster with KServe: its InferenceServices, and what Gantry would do with them.

use super::{
    api::Api,
    migrate::{MAX_LISTED, validation_error},
    objects::{list, number, qualified_name, text},
    report::Report,
};
use gantry_operator::{
    cluster::Adoption,
    controllers::inference_service::{AdoptionInput, preview},
};
use serde_json::Value;

const SERVICES: &str = "/apis/serving.kserve.io/v1beta1/inferenceservices";
const TRAINED_MODELS: &str = "/apis/serving.kserve.io/v1alpha1/trainedmodels";
/// Label of the objects of a service.
const SERVICE_LABEL: &str = "serving.kserve.io/inferenceservice";
/// KServe's configuration, which Gantry reads in its own namespace.
const CONFIG: &str = "/api/v1/namespaces/kserve/configmaps/inferenceservice-config";
/// Label of KServe's controller.
const CONTROLLER_LABEL: &str = "control-plane=kserve-controller-manager";
/// Finalizer of the services that KServe's controller has.
const FINALIZER: &str = "inferenceservice.finalizers";
const ADOPT: &str = "/metadata/annotations/gantry.dev~1adopt";
/// Fields that the operator refuses.
const REFUSED: [&str; 6] = [
    "predictor.logger.storage",
    "predictor.logger.marshallerUrl",
    "transformer.logger.storage",
    "transformer.logger.marshallerUrl",
    "explainer.logger.storage",
    "explainer.logger.marshallerUrl",
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
    let cluster = Surroundings::read(api).await;
    services(&found, &cluster, report);
    if let Ok(models) = api.list(TRAINED_MODELS, "").await
        && !models.is_empty()
    {
        let hint =
            "become Models of the namespace's scheduler; remove the finalizer trainedmodel.finalizer too";
        report.note(&format!("trainedmodels: {}", models.len()), "taken over with their service", hint);
    }
    true
}

/// What decides whether pods restart.
#[derive(Default)]
struct Surroundings {
    deployments: Vec<Value>,
    runtimes: Vec<Value>,
    cluster_runtimes: Vec<Value>,
    storage_containers: Vec<Value>,
    config: Option<Value>,
}

impl Surroundings {
    /// What cannot be read is left out: the preview is then less complete.
    async fn read(api: &Api) -> Self {
        let list = async |path: &str, label: &str| api.list(path, label).await.unwrap_or_default();
        let of_kserve = "/apis/serving.kserve.io/v1alpha1";
        Self {
            deployments: list("/apis/apps/v1/deployments", SERVICE_LABEL).await,
            runtimes: list(&format!("{of_kserve}/servingruntimes"), "").await,
            cluster_runtimes: list(&format!("{of_kserve}/clusterservingruntimes"), "").await,
            storage_containers: list(&format!("{of_kserve}/clusterstoragecontainers"), "").await,
            config: api.find(CONFIG).await.unwrap_or_default(),
        }
    }

    /// The fields for which the pods of a service restart; why it would not be deployed.
    fn preview(&self, service: &Value) -> Result<Vec<String>, String> {
        let namespace = text(service, "/metadata/namespace");
        let here = |object: &&Value| text(object, "/metadata/namespace") == namespace;
        let label = format!("/metadata/labels/{}", SERVICE_LABEL.replace('/', "~1"));
        let is_of = |object: &&Value| text(object, &label) == text(service, "/metadata/name");
        let deployments: Vec<Value> = self.deployments.iter().filter(here).filter(is_of).cloned().collect();
        let runtimes: Vec<Value> = self.runtimes.iter().filter(here).cloned().collect();
        let previews = preview(&AdoptionInput {
            service,
            deployments: &deployments,
            runtimes: &runtimes,
            cluster_runtimes: &self.cluster_runtimes,
            storage_containers: &self.storage_containers,
            config: self.config.as_ref(),
            image: "gantry",
        })?;
        let changed = previews.into_iter().filter_map(|(_, adoption)| match adoption {
            Adoption::Unchanged => None,
            Adoption::Changed(fields) => Some(fields),
        });
        Ok(changed.flatten().collect())
    }
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

fn services(found: &[Value], cluster: &Surroundings, report: &mut Report) {
    let has_finalizer = |o: &&Value| list(o, "/metadata/finalizers").iter().any(|f| f == FINALIZER);
    let is_adopted = |o: &&Value| o.pointer(ADOPT).and_then(Value::as_str) == Some("true");
    let of_kserve: Vec<&Value> = found.iter().filter(has_finalizer).filter(|o| !is_adopted(o)).collect();
    let theirs = of_kserve.len();
    let is_theirs = |o: &Value| of_kserve.iter().any(|theirs| std::ptr::eq(*theirs, o));
    let reason = |o: &Value| problem(o).or_else(|| is_theirs(o).then(|| cluster.preview(o).err()).flatten());
    let refused: Vec<(&Value, String)> = found.iter().filter_map(|o| Some((o, reason(o)?))).collect();
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
    let is_refused = |o: &Value| refused.iter().any(|(refused, _)| std::ptr::eq(*refused, o));
    let kept: Vec<&Value> = of_kserve.iter().copied().filter(|o| !is_refused(o)).collect();
    pods(&kept, cluster, report);
}

/// Whose pods stay, and whose are replaced when they are taken over, one after another.
fn pods(services: &[&Value], cluster: &Surroundings, report: &mut Report) {
    if services.is_empty() {
        return;
    }
    let fields = |service: &&&Value| cluster.preview(service).unwrap_or_default();
    let changed: Vec<(&Value, Vec<String>)> = services
        .iter()
        .map(|service| (*service, fields(&service)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    let stay = services.len() - changed.len();
    let hint = match changed.len() {
        0 => "",
        _ => "Gantry's pods need no webhook for their model; each is replaced when the next one is ready",
    };
    report.note("  pods of KServe's services", &format!("{stay} stay, {} restart", changed.len()), hint);
    for (service, fields) in changed.iter().take(MAX_LISTED) {
        let shown: Vec<&str> = fields.iter().take(3).map(String::as_str).collect();
        let more = if fields.len() > 3 { ", …" } else { "" };
        let detail = format!("restart: {}{more} differ", shown.join(", "));
        report.note(&format!("    {}", qualified_name(service)), &detail, "");
    }
    if changed.len() > MAX_LISTED {
        report.note(&format!("    and {} more", changed.len() - MAX_LISTED), "restart", "");
    }
}

/// Why the operator would not deploy a service.
fn problem(object: &Value) -> Option<String> {
    let is_set = |field: &&&str| object.pointer(&format!("/spec/{}", field.replace('.', "/"))).is_some();
    let field = REFUSED.iter().find(is_set).map(|field| format!("spec.{field} is not supported yet"));
    validation_error(object).or(field)
}

pub(super) const STEPS: [&str; 6] = [
    "back up:            kubectl get isvc,trainedmodels,servingruntimes,clusterservingruntimes,inferencegraphs -A -o yaml",
    "stop KServe:        kubectl scale deploy/kserve-controller-manager -n kserve --replicas=0; pods keep serving",
    "install operator:   gantry install -n NAMESPACE --inference-services --no-kserve-crds | kubectl apply -f -",
    "take one over:      kubectl annotate isvc NAME -n NAMESPACE gantry.dev/adopt=true",
    "verify:             kubectl wait --for=condition=Ready isvc/NAME -n NAMESPACE; gantry check",
    "free it of KServe:  kubectl patch isvc NAME -n NAMESPACE --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
];
