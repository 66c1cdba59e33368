//! What an InferenceGraph adds to its services: Gantry's gateway and KServe's router execute the same sequence of three steps.
//! The services are an upstream over HTTP, as pods are, or models in the gateway's process.

use crate::{
    Failure,
    bench::{
        Bench,
        load::Exchange,
        machine::Core,
        note,
        servers::{self, Process, Scratch},
        suites::pipelines,
        table::{Better, Row, divide, figure, median},
        upstream,
        wire::http,
    },
    k8s::Peer,
};
use serde_json::{Value, json};
use std::{fmt::Write as _, fs, net::SocketAddr, path::Path};

const ROUTER: Peer = Peer {
    module: "github.com/kserve/kserve",
    package: "cmd/router",
    version: "v0.20.0",
    pinned: Some("kserve-router"),
};
/// The port of KServe's router, which cannot be changed.
const ROUTER_PORT: u16 = 8080;
const STEPS: [&str; 3] = ["one", "two", "three"];
const REQUESTS: usize = 5000;
const ROWS: &str = "{\"instances\":[[1.5,2.5,3.5,4.5]]}";

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| ROUTER.ensure())?;
    Ok(vec![over_http(bench)?, in_process(bench)?])
}

/// The steps are requests to an upstream: the graph less three of these.
fn over_http(bench: &Bench) -> Result<Row, Failure> {
    let (_upstream, service) = servers::upstream(&bench.machine)?;
    let spec = graph(&STEPS.map(|step| format!("http://{service}/v2/models/{step}/infer")), false);
    let scratch = Scratch::new("inference-graph")?;
    fs::write(scratch.0.join("chain.yaml"), manifest(&spec))?;
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[&scratch.0])?;
    let router = Router::start(bench, &spec, &scratch.0)?;
    let exchange = |path: &str| Exchange {
        request: http::post(path, "", &upstream::request()),
        response: upstream::response().into_bytes(),
    };
    let sides = Sides {
        direct: (service, exchange("/v2/models/one/infer")),
        ours: (ours.inference, exchange("/serving/default/chain")),
        theirs: (servers::local(ROUTER_PORT), exchange("/")),
    };
    sides.row(bench, router, "InferenceGraph of three services over HTTP, p50 beyond three requests", 3.0)
}

/// The steps are models of the same process, each with the response of the one before: the graph less one of them.
fn in_process(bench: &Bench) -> Result<Row, Failure> {
    let scratch = Scratch::new("inference-graph")?;
    let path = |step: &str| format!("/v1/models/{step}:predict");
    let internal = graph(&STEPS.map(|step| format!("http://{step}-default.example.com{}", path(step))), true);
    let mut manifests = manifest(&internal);
    for step in STEPS {
        fs::write(scratch.0.join(format!("{step}.onnx")), pipelines::identity())?;
        let _ = write!(
            manifests,
            "\n---\napiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {{name: {step}}}\n\
             spec: {{predictor: {{model: {{modelFormat: {{name: onnx}}, storageUri: {step}.onnx}}}}}}"
        );
    }
    fs::write(scratch.0.join("graph.yaml"), manifests)?;
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[&scratch.0])?;
    let below = |step: &str| format!("http://{}/serving/default/{step}{}", ours.inference, path(step));
    let router = Router::start(bench, &graph(&STEPS.map(below), true), &scratch.0)?;
    let exchange = |address: SocketAddr, path: &str| -> Result<(SocketAddr, Exchange), Failure> {
        Ok((address, pipelines::exchange(address, &http::post(path, "", ROWS))?))
    };
    let sides = Sides {
        direct: exchange(ours.inference, "/serving/default/one/v1/models/one:predict")?,
        ours: exchange(ours.inference, "/serving/default/chain")?,
        theirs: exchange(servers::local(ROUTER_PORT), "/")?,
    };
    // Members may be in another order.
    let read = |exchange: &Exchange| serde_json::from_slice::<Value>(&exchange.response);
    if read(&sides.ours.1)? != read(&sides.theirs.1)? {
        return Err("the gateway and KServe's router responded differently".into());
    }
    sides.row(bench, router, "InferenceGraph of three models of one process, p50 beyond one of them", 1.0)
}

struct Sides {
    direct: (SocketAddr, Exchange),
    ours: (SocketAddr, Exchange),
    theirs: (SocketAddr, Exchange),
}

impl Sides {
    /// What both add to a number of direct requests.
    fn row(&self, bench: &Bench, _router: Router, what: &str, requests: f64) -> Result<Row, Failure> {
        let p50 = |(address, exchange): &(SocketAddr, Exchange)| pipelines::p50(*address, exchange, REQUESTS);
        let (mut added, mut added_by_router) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            note(what);
            let direct = requests * p50(&self.direct)?;
            added_by_router.push(p50(&self.theirs)? - direct);
            added.push(p50(&self.ours)? - direct);
        }
        Ok(Row {
            what: what.into(),
            peer: "KServe's router".into(),
            ours: format!("{} µs", figure(median(&added))),
            theirs: format!("{} µs", figure(median(&added_by_router))),
            rounds: divide(&added, &added_by_router),
            unit: "x",
            better: Better::Lower,
            floor: Some(0.5),
            aim: Some(0.1),
        })
    }
}

struct Router(Process);

impl Router {
    /// Waits until it is ready.
    fn start(bench: &Bench, spec: &Value, directory: &Path) -> Result<Self, Failure> {
        let address = servers::local(ROUTER_PORT);
        if std::net::TcpStream::connect(address).is_ok() {
            return Err(format!("port {ROUTER_PORT}, which KServe's router needs, is in use").into());
        }
        let mut command = bench.machine.command(Core::Server, ROUTER.ensure()?.program);
        command.args(["--graph-json", &spec.to_string()]);
        let mut process = Process::start(&mut command, directory.join("router.out"))?;
        servers::wait_for_response(&mut process, address, &http::get("/readyz"))?;
        Ok(Self(process))
    }
}

impl Drop for Router {
    /// It waits for half a minute after other signals.
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Each step gets the response of the one before.
fn graph(urls: &[String; 3], maps_predictions: bool) -> Value {
    let steps: Vec<Value> = urls
        .iter()
        .enumerate()
        .map(|(i, url)| {
            let data = if i == 0 { "$request" } else { "$response" };
            json!({ "serviceUrl": url, "data": data, "mapPredictionsToInstances": maps_predictions && i > 0 })
        })
        .collect();
    json!({ "nodes": { "root": { "routerType": "Sequence", "steps": steps } } })
}

fn manifest(spec: &Value) -> String {
    let (version, kind) = ("serving.kserve.io/v1alpha1", "InferenceGraph");
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "chain" }, "spec": spec }).to_string()
}
