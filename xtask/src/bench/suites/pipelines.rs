//! Pipelines and experiments in one process: what a step, a join and a split add to the models themselves.
//!
//! Without a peer and on all cores. Responses are compared byte by byte under load.

use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange},
        note, servers,
        table::{Better, Row, divide, figure, median},
        wire::{http, protobuf::Message},
    },
};
use std::{fmt::Write as _, fs, net::SocketAddr, path::Path, process::Command};

const REQUESTS: usize = 5000;
/// Requests to the slow branch, of some milliseconds each.
const SLOW_REQUESTS: usize = 300;
const TURNS: usize = 10_000;
/// The models of the steps, and a second target of the experiment.
const IDENTITIES: [&str; 5] = ["one", "two", "three", "four", "half"];

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| measure_unpinned(bench))
}

fn measure_unpinned(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("pipelines")?;
    for name in IDENTITIES {
        fs::write(scratch.0.join(format!("{name}.onnx")), identity())?;
    }
    fs::copy(bench.root.join("testdata/onnx/hostile/turning/model.onnx"), scratch.0.join("turning.onnx"))?;
    fs::write(scratch.0.join("graphs.yaml"), manifests(&scratch.0))?;
    let ours = servers::start_gantry(Command::new(&bench.gantry), &[&scratch.0])?;
    let address = ours.inference;
    let data = "{\"name\":\"x\",\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[1.5,2.5,3.5,4.5]}";
    let small = format!("{{\"id\":\"b\",\"inputs\":[{data}]}}");
    let turns = format!("{{\"name\":\"n\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[{TURNS}]}}");
    let slow = format!("{{\"id\":\"b\",\"inputs\":[{turns}]}}");
    let both = format!("{{\"id\":\"b\",\"inputs\":[{data},{turns}]}}");
    let model = exchange(address, &http::post("/v2/models/one/infer", "", &small))?;
    let chain = exchange(address, &http::post("/v2/pipelines/chain/infer", "", &small))?;
    let split =
        exchange(address, &http::post("/v2/models/half/infer", "seldon-model: ab.experiment\r\n", &small))?;
    let branch = exchange(address, &http::post("/v2/models/turning/infer", "", &slow))?;
    let fan = exchange(address, &http::post("/v2/pipelines/fan/infer", "", &both))?;
    let half = exchange(address, &http::post("/v2/models/half/infer", "", &small))?;

    let (mut direct, mut chained, mut own, mut divided, mut alone, mut joined) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        note("chain and experiment");
        direct.push(p50(address, &model, REQUESTS)?);
        chained.push(p50(address, &chain, REQUESTS)?);
        own.push(p50(address, &half, REQUESTS)?);
        divided.push(p50(address, &split, REQUESTS)?);
        note("fan-out");
        alone.push(p50(address, &branch, SLOW_REQUESTS)?);
        joined.push(p50(address, &fan, SLOW_REQUESTS)?);
    }
    let added: Vec<f64> = chained.iter().zip(&direct).map(|(chain, one)| (chain - one) / 2.0).collect();
    let ratio = |what: &str, peer: &str, ours: &[f64], theirs: &[f64], floor, aim| Row {
        what: what.into(),
        peer: peer.into(),
        ours: format!("{} µs", figure(median(ours))),
        theirs: format!("{} µs", figure(median(theirs))),
        rounds: divide(ours, theirs),
        unit: "x",
        better: Better::Lower,
        floor: Some(floor),
        aim: Some(aim),
    };
    Ok(vec![
        Row {
            what: "a further step of a chain of identities, its model included, p50".into(),
            peer: "-".into(),
            ours: format!("{} µs", figure(median(&added))),
            theirs: "-".into(),
            rounds: added,
            unit: " µs",
            better: Better::Lower,
            floor: Some(50.0),
            aim: Some(10.0),
        },
        ratio(
            "five steps, four of them in parallel, p50",
            "the slowest of them alone",
            &joined,
            &alone,
            1.5,
            1.1,
        ),
        ratio(
            "experiment in front of a model, p50",
            "the model requested directly",
            &divided,
            &own,
            1.1,
            1.02,
        ),
    ])
}

/// A request with the response that it has to give under load.
fn exchange(address: SocketAddr, request: &[u8]) -> Result<Exchange, Failure> {
    let response = http::Connection::open(address)?.call(request)?.to_vec();
    Ok(Exchange { request: request.to_vec(), response })
}

fn p50(address: SocketAddr, exchange: &Exchange, count: usize) -> Result<f64, Failure> {
    Ok(median(&load::latencies(address, std::slice::from_ref(exchange), count)?))
}

/// ONNX: y = Identity(x), of any shape.
fn identity() -> Vec<u8> {
    let node = Message::new().text(1, "x").text(2, "y").text(4, "Identity");
    let value = |name: &str| {
        // FP32, two free dimensions.
        let dimension = |name: &str| Message::new().text(2, name);
        let shape = Message::new().message(1, &dimension("n")).message(1, &dimension("m"));
        let tensor = Message::new().number(1, 1).message(2, &shape);
        Message::new().text(1, name).message(2, &Message::new().message(1, &tensor))
    };
    let graph =
        Message::new().message(1, &node).text(2, "g").message(11, &value("x")).message(12, &value("y"));
    let opset = Message::new().text(1, "").number(2, 17);
    Message::new().number(1, 8).message(7, &graph).message(8, &opset).done()
}

fn manifests(models: &Path) -> String {
    let mut text = String::new();
    for name in IDENTITIES.iter().chain(&["turning"]) {
        let _ = write!(
            text,
            "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\n\
             spec: {{storageUri: {}/{name}.onnx, requirements: [onnx]}}\n---\n",
            models.display()
        );
    }
    text + "apiVersion: mlops.seldon.io/v1alpha1
kind: Pipeline
metadata: {name: chain}
spec:
  steps:
  - name: one
  - {name: two, inputs: [one], tensorMap: {one.outputs.y: x}}
  - {name: three, inputs: [two], tensorMap: {two.outputs.y: x}}
  output: {steps: [three]}
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Pipeline
metadata: {name: fan}
spec:
  steps:
  - {name: turning, inputs: [fan.inputs.n]}
  - {name: one, inputs: [fan.inputs.x]}
  - {name: two, inputs: [fan.inputs.x]}
  - {name: three, inputs: [fan.inputs.x]}
  - {name: four, inputs: [one], tensorMap: {one.outputs.y: x}, triggers: [two, three, turning]}
  output: {steps: [four]}
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Experiment
metadata: {name: ab}
spec:
  candidates:
  - {name: half, weight: 100}
"
}
