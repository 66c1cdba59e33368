//! InferenceServices in pods of their own: the storage initializer, the built-in runtime, a transformer, scale to zero and
//! canaries behind Gantry's gateway.

use super::{
    file_server::FileServer,
    harness::Harness,
    inference_check::InferenceCheck,
    install::{Installed, install, serve},
    load::{Load, Phase, Tally, table},
};
use crate::{
    Failure,
    bench::wire::http::{self, Connection},
    image::{self, Contents, Image},
    k8s, metadata, python,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// An iris setosa: class 0.
const INSTANCES: &str = "[[5.1, 3.5, 1.4, 0.2]]";
const TRANSFORMER: &str = "localhost/transformer:1";
/// The Service of the canary.
const NEXT: &str = "iris-next-predictor";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until the first pod of a service that was scaled to zero has answered.
const FIRST_POD_TIMEOUT: Duration = Duration::from_mins(1);
/// Requests per second while versions change.
pub(super) const RATE: u32 = 100;
/// Requests of one split.
pub(super) const REQUESTS: u32 = 10_000;

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let installed = set_up(harness)?;
    let files = FileServer::start()?;
    let mesh = harness.service("seldon-mesh", 80)?;

    harness.apply(service("iris", &json!({ "model": model(&files) }), &json!({})))?;
    ready(harness, "iris")?;
    let url = harness.kubectl(&["get", "inferenceservice/iris", "--output=jsonpath={.status.url}"])?;
    if url != format!("http://iris-{}.example.com", harness.namespace()) {
        return Err(format!("unexpected url of iris: {url}").into());
    }
    predict(harness, mesh, "iris", INSTANCES, false)?;
    sdk(harness, mesh, &files)?;
    transformed(harness, mesh, &files)?;
    on_demand(harness, mesh, &files)?;
    shared(harness, mesh)?;
    let check = InferenceCheck::iris_service(mesh, infer(&harness.namespace()))?;
    let load = Load::start(mesh, &[(check, RATE)]);
    canary(harness, mesh, &files, &load)?;
    let phases = load.stop();
    check_failures(&phases)?;
    harness.kubectl(&["delete", "inferenceservices", "--all", "--timeout=60s"])?;
    installed.uninstall(harness)
}

/// The operator, a runtime with two gateways, a Server, and the image of the transformer.
fn set_up(harness: &Harness) -> Result<Installed, Failure> {
    apply_crds(harness)?;
    harness.import(&transformer_image(&harness.directory("transformer")?)?)?;
    let installed = install(harness, &["--set", "inferenceServices.enabled=true"])?;
    serve(harness)?;
    Ok(installed)
}

pub(super) fn apply_crds(harness: &Harness) -> Result<(), Failure> {
    let crds = metadata::root().join("deploy/crds-kserve");
    harness.apply_file(&crds, &["--server-side", "--force-conflicts"])?;
    let crds = crds.display().to_string();
    harness.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "--filename", &crds]).map(drop)
}

/// xtask/examples/transformer.rs as an image.
fn transformer_image(directory: &Path) -> Result<PathBuf, Failure> {
    let mut command = metadata::cargo();
    let built = command.args(["build", "--workspace", "--example", "transformer"]).status()?;
    if !built.success() {
        return Err("the transformer does not compile".into());
    }
    let program = metadata::target().join("debug/examples/transformer");
    let mut contents = Contents::default();
    contents.program("transformer", &fs::read(&program)?);
    image::add_libraries(&mut contents, &program)?;
    let file = directory.join("transformer.tar");
    fs::write(
        &file,
        Image { name: TRANSFORMER, entrypoint: &["/transformer"], directory: "/", contents }.archive()?,
    )?;
    Ok(file)
}

pub(super) fn model(files: &FileServer) -> Value {
    json!({ "modelFormat": { "name": "onnx" }, "storageUri": format!("http://{}/model.onnx", files.address) })
}

pub(super) fn service(name: &str, predictor: &Value, more: &Value) -> Value {
    let mut spec = json!({ "predictor": predictor });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// Waits until the service is ready in its latest generation.
pub(super) fn ready(harness: &Harness, name: &str) -> Result<(), Failure> {
    let service = format!("inferenceservice/{name}");
    let generation = harness.kubectl(&["get", &service, "--output=jsonpath={.metadata.generation}"])?;
    let observed = format!("jsonpath={{.status.observedGeneration}}={generation}");
    harness.wait_for(&observed, &[&service], 60)?;
    harness.wait_for("condition=Ready", &[&service], 120)
}

/// V1 by host and by path. The predicted class of this iris is 0.
fn predict(
    harness: &Harness,
    mesh: SocketAddr,
    name: &str,
    instances: &str,
    is_transformed: bool,
) -> Result<(), Failure> {
    let host = &format!("{name}-{}.example.com", harness.namespace());
    let path = format!("/v1/models/{name}:predict");
    let below = format!("/serving/{}/{name}{path}", harness.namespace());
    let body = format!("{{\"instances\":{instances}}}");
    for request in [http::post_to(host, &path, &body), http::post(&below, "", &body)] {
        let answer = Connection::open(mesh)?.call(&request).map(<[u8]>::to_vec)?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let is_class_0 = answer.pointer("/predictions/0/label").or(answer.pointer("/predictions/0"));
        let marked = answer.get("transformed") == Some(&json!(true));
        if is_class_0 != Some(&json!(0)) || marked != is_transformed {
            return Err(format!("unexpected response of {name}: {answer}").into());
        }
    }
    Ok(())
}

/// `tests/cluster/kserve_sdk.py`: the life of a service with KServe's own client.
fn sdk(harness: &Harness, mesh: SocketAddr, files: &FileServer) -> Result<(), Failure> {
    let Some(python) = python::find((3, 11), (3, 13)) else {
        println!("    NOT TESTED: KServe's SDK, which needs Python 3.11 to 3.13");
        return Ok(());
    };
    let tests = metadata::root().join("tests");
    let programs = python::environment(&python, &tests.join("clients/requirements.txt"))?;
    let work = json!({
        "kubeconfig": harness.kubeconfig(),
        "namespace": harness.namespace(),
        "mesh": mesh.to_string(),
        "uri": format!("http://{}/model.onnx", files.address),
    });
    let mut command = Command::new(programs.join("python"));
    command.arg(tests.join("cluster/kserve_sdk.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = command.stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = client.stdin.take() {
        input.write_all(work.to_string().as_bytes())?;
    }
    let output = client.wait_with_output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("KServe's SDK failed after:\n{stdout}{stderr}").into());
    }
    let steps = ["created and called", "canary with 20 %", "promoted", "deleted"];
    match steps.iter().find(|step| !stdout.contains(**step)) {
        Some(step) => Err(format!("KServe's SDK did not reach {step:?}:\n{stdout}").into()),
        None => Ok(()),
    }
}

/// A transformer scales the request before the predictor gets it.
fn transformed(harness: &Harness, mesh: SocketAddr, files: &FileServer) -> Result<(), Failure> {
    let restricted = json!({
        "allowPrivilegeEscalation": false,
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let container = json!({
        "name": "kserve-container",
        "image": TRANSFORMER,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": restricted,
        "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
    });
    let transformer = json!({ "transformer": { "containers": [container] } });
    harness.apply(service("scaled", &json!({ "model": model(files) }), &transformer))?;
    ready(harness, "scaled")?;
    predict(harness, mesh, "scaled", "[[51, 35, 14, 2]]", true)?;
    harness.kubectl(&["delete", "inferenceservice/scaled", "--timeout=60s"]).map(drop)
}

/// A service that loses its pods without requests, and gets one for a request, which waits for it.
fn on_demand(harness: &Harness, mesh: SocketAddr, files: &FileServer) -> Result<(), Failure> {
    let annotations = json!({ "autoscaling.knative.dev/scale-to-zero-pod-retention-period": "5s" });
    let predictor = json!({ "minReplicas": 0, "annotations": annotations, "model": model(files) });
    harness.apply(service("ondemand", &predictor, &json!({})))?;
    ready(harness, "ondemand")?;
    let replicas =
        ["get", "deployment/ondemand-predictor", "--output=jsonpath={.spec.replicas} {.status.replicas}"];
    let path = format!("/serving/{}/ondemand/v1/models/ondemand:predict", harness.namespace());
    let request = http::post(&path, "", &format!("{{\"instances\":{INSTANCES}}}"));
    for _ in 0..2 {
        harness.until("scale to zero", 60, &replicas, |replicas| replicas.trim() == "0")?;
        let mut connection = Connection::open_within(mesh, CONNECT_TIMEOUT, FIRST_POD_TIMEOUT)?;
        let answer: Value = serde_json::from_slice(connection.call(&request)?)?;
        if answer.pointer("/predictions/0/label").or(answer.pointer("/predictions/0")) != Some(&json!(0)) {
            return Err(format!("unexpected response of ondemand: {answer}").into());
        }
    }
    let not_ready = "--field-selector=involvedObject.name=ondemand,reason=InferenceServiceNotReady";
    let events = harness.kubectl(&["get", "events", not_ready, "--output=name"])?;
    if !events.is_empty() {
        return Err("ondemand was not ready while it had no pods".into());
    }
    harness.kubectl(&["delete", "inferenceservice/ondemand", "--timeout=60s"]).map(drop)
}

/// A service without pods of its own, in `ModelMesh` mode: a Model on the Server.
fn shared(harness: &Harness, mesh: SocketAddr) -> Result<(), Failure> {
    let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": "/mnt/shop/iris" });
    let mut service = service("shared", &json!({ "model": model }), &json!({}));
    if let Some(metadata) = service.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".into(), json!({ "serving.kserve.io/deploymentMode": "ModelMesh" }));
    }
    harness.apply(service)?;
    ready(harness, "shared")?;
    predict(harness, mesh, "shared", INSTANCES, false)?;
    graph(harness, mesh)?;
    harness.kubectl(&["delete", "inferenceservice/shared", "--timeout=60s"])?;
    harness.until("deletion of the Model", 60, &["get", "models", "--output=name"], str::is_empty)
}

/// A graph that calls a service with pods and one without.
fn graph(harness: &Harness, mesh: SocketAddr) -> Result<(), Failure> {
    let steps =
        json!([{ "name": "own", "serviceName": "iris" }, { "name": "shared", "serviceName": "shared" }]);
    harness.apply(json!({
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": { "name": "both" },
        "spec": { "nodes": { "root": { "routerType": "Ensemble", "steps": steps } } },
    }))?;
    harness.wait_for("condition=Ready", &["inferencegraph/both"], 60)?;
    let url = harness.kubectl(&["get", "inferencegraph/both", "--output=jsonpath={.status.url}"])?;
    let host = url.strip_prefix("http://").unwrap_or_default();
    let request = http::post_to(host, "/", &format!("{{\"instances\":{INSTANCES}}}"));
    let answer: Value = serde_json::from_slice(Connection::open(mesh)?.call(&request)?)?;
    for step in ["own", "shared"] {
        if answer.pointer(&format!("/{step}/predictions/0/label")) != Some(&json!(0)) {
            return Err(format!("unexpected response of the graph: {answer}").into());
        }
    }
    harness.kubectl(&["delete", "inferencegraph/both", "--timeout=60s"]).map(drop)
}

/// 20 % for a canary, rolled back, then again and promoted.
fn canary(harness: &Harness, mesh: SocketAddr, files: &FileServer, load: &Load) -> Result<(), Failure> {
    let stable = json!({ "model": model(files) });
    let next = json!({ "name": "next", "model": model(files) });
    let with_canary =
        service("iris", &stable, &json!({ "canary": [{ "predictor": next, "trafficPercent": 20 }] }));
    for (ending, end) in [
        ("rolled back", service("iris", &stable, &json!({}))),
        ("promoted", service("iris", &next, &json!({}))),
    ] {
        load.phase("canary with 20 %");
        harness.apply(with_canary.clone())?;
        ready(harness, "iris")?;
        // A canary does not delay the readiness of its service; it gets traffic once it has a ready pod.
        harness.wait_for("condition=CanaryPredictorReady", &["inferenceservice/iris"], 120)?;
        k8s::until("requests to the canary", 30, || {
            routes(mesh, &harness.namespace()).is_ok_and(|routes| routes.contains(NEXT))
        })?;
        let to_canary = count(mesh, &harness.namespace(), NEXT)?;
        check_split(to_canary, 0.2)?;
        load.phase(ending);
        harness.apply(end)?;
        ready(harness, "iris")?;
        let reached = routes(mesh, &harness.namespace())?.into_iter().collect::<Vec<_>>().join(", ");
        let expected = if ending == "promoted" { NEXT } else { "iris-predictor" };
        if reached != expected {
            return Err(format!("{ending}: requests reach {reached}, not {expected}").into());
        }
        load.wait_for_recovery(60)?;
    }
    Ok(())
}

/// Requests of [`REQUESTS`] that one backend served.
fn count(mesh: SocketAddr, namespace: &str, backend: &str) -> Result<u32, Failure> {
    let mut connection = Connection::open(mesh)?;
    let request = infer(namespace);
    let mut served = 0;
    for _ in 0..REQUESTS {
        connection.call(&request)?;
        served += u32::from(route(&connection).contains(backend));
    }
    Ok(served)
}

fn infer(namespace: &str) -> Vec<u8> {
    http::post(&format!("/serving/{namespace}/iris/v2/models/iris/infer"), "", super::inference_check::IRIS)
}

/// The backend of the last response.
fn route(connection: &Connection) -> String {
    connection.header("x-seldon-route").unwrap_or_default()
}

/// The backends that serve some requests.
fn routes(mesh: SocketAddr, namespace: &str) -> Result<BTreeSet<String>, Failure> {
    let mut connection = Connection::open(mesh)?;
    let request = infer(namespace);
    let mut routes = BTreeSet::new();
    for _ in 0..100 {
        connection.call(&request)?;
        routes.insert(route(&connection).trim_matches(':').to_owned());
    }
    Ok(routes)
}

/// Prints the phases; any failed request is an error.
pub(super) fn check_failures(phases: &[Phase]) -> Result<(), Failure> {
    print!("{}", table(phases));
    let failed: u64 = phases.iter().flat_map(|phase| phase.tallies.values()).map(Tally::failed).sum();
    if failed > 0 {
        return Err(format!("{failed} requests failed while versions changed").into());
    }
    Ok(())
}

/// Within three standard deviations.
pub(super) fn check_split(served: u32, share: f64) -> Result<(), Failure> {
    let (n, served) = (f64::from(REQUESTS), f64::from(served));
    let sigma = (n * share * (1.0 - share)).sqrt();
    println!("    canary with {share}: {served} of {n} requests, {:.1} sigma", (served - n * share) / sigma);
    if (served - n * share).abs() <= 3.0 * sigma {
        return Ok(());
    }
    Err(format!("{served} of {n} requests reached the canary, expected {}", n * share).into())
}
