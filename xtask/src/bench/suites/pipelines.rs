//! Pipelines and experiments in one process: what a step, a join, a split and a mirror add to the models themselves, and
//! what many pipelines cost.
//!
//! Without a peer and on all cores. Responses are compared byte by byte under load.

use crate::{
    Failure,
    bench::{
        Bench, fake_servers,
        load::{self, Exchange},
        machine, note, servers,
        table::{Better, Row, divide, figure, median},
        wire::{grpc, http, protobuf::Message},
    },
};
use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const REQUESTS: usize = 5000;
/// More of them for the 99th percentile.
const MIRRORED_REQUESTS: usize = 20_000;
/// Requests to the slow branch, of some milliseconds each.
const SLOW_REQUESTS: usize = 300;
const TURNS: usize = 10_000;
/// The models of the steps, and a second target of the experiment.
const IDENTITIES: [&str; 5] = ["one", "two", "three", "four", "half"];
/// The mirror that does not respond.
const HANGING: &str = "hanging";
const MANY: usize = 10_000;
const LOAD_PIPELINE: &str = "/seldon.mlops.scheduler.Scheduler/LoadPipeline";

/// The tensor of a small request.
const DATA: &str = "{\"name\":\"x\",\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[1.5,2.5,3.5,4.5]}";

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| measure_unpinned(bench))
}

fn measure_unpinned(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("pipelines")?;
    write_graphs(bench, &scratch.0)?;
    let mut ours = servers::start_gantry(Command::new(&bench.gantry), &[&scratch.0])?;
    let address = ours.inference;
    let data = DATA;
    let small = small_request();
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
    // Connections are accepted by the system, and nothing is read.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    fake_servers::load(&ours, silent.local_addr()?, &[HANGING.to_owned()])?;
    let mirrored = http::post("/v2/models/half/infer", "seldon-model: mirrored.experiment\r\n", &small);
    let response = servers::wait_for_response(&mut ours.process, address, &mirrored)?;
    let mirrored = Exchange { request: mirrored, response };

    let (mut plain, mut copied) = (Vec::new(), Vec::new());
    let (mut direct, mut chained, mut own, mut divided, mut alone, mut joined) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        note("chain and experiment");
        let [one, three] = load::alternating_latencies(address, [&model, &chain], REQUESTS)?;
        direct.push(median(&one));
        chained.push(median(&three));
        let [without, with] = load::alternating_latencies(address, [&half, &split], REQUESTS)?;
        own.push(median(&without));
        divided.push(median(&with));
        note("mirror");
        let [without, with] = load::alternating_latencies(address, [&half, &mirrored], MIRRORED_REQUESTS)?;
        plain.push(p99(without)?);
        copied.push(p99(with)?);
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
        ratio(
            "model with a mirror that does not respond, p99",
            "the model without a mirror",
            &copied,
            &plain,
            1.05,
            1.0,
        ),
    ])
}

/// Memory and the time of a change with 10,000 pipelines of three steps, in one process with the scheduler.
pub(crate) fn many(bench: &Bench) -> Result<Vec<Row>, Failure> {
    note("loading 10,000 pipelines");
    let (_upstream, upstream) = servers::upstream(&bench.machine)?;
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[])?;
    let models = fake_servers::names(3);
    fake_servers::load(&ours, upstream, &models)?;
    let mut scheduler = grpc::Connection::open(ours.scheduler)?;
    scheduler.call(LOAD_PIPELINE, &definition("pipeline-first", &models, 1))?;
    let mut connection = http::Connection::open(ours.inference)?;
    until_version(&mut connection, "pipeline-first", 1)?;
    let before = machine::resident(ours.process.id())?;
    for batch in (0..MANY).collect::<Vec<_>>().chunks(64) {
        let loads = batch.iter().map(|i| definition(&format!("pipeline-{i:05}"), &models, 1));
        scheduler.call_all(LOAD_PIPELINE, &loads.collect::<Vec<_>>())?;
    }
    until_version(&mut connection, &format!("pipeline-{:05}", MANY - 1), 1)?;
    let each = (machine::resident(ours.process.id())? - before) as f64 / MANY as f64 / 1e3;
    note("changing one");
    let mut changes = Vec::new();
    for version in 2..22 {
        let changed = definition("pipeline-00500", &models, version);
        let start = Instant::now();
        scheduler.call(LOAD_PIPELINE, &changed)?;
        until_version(&mut connection, "pipeline-00500", version)?;
        changes.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let row = |what: &str, rounds: Vec<f64>, unit, floor, aim| Row {
        what: what.into(),
        peer: "-".into(),
        ours: format!("{}{unit}", figure(median(&rounds))),
        theirs: "-".into(),
        rounds,
        unit,
        better: Better::Lower,
        floor: Some(floor),
        aim: Some(aim),
    };
    Ok(vec![
        row("resident memory of a pipeline, of 10,000, scheduler included", vec![each], " kB", 20.0, 5.0),
        row("change of one of 10,000 pipelines until it serves", changes, " ms", 20.0, 2.0),
    ])
}

/// A chain over the models. Versions differ in the window of the output.
fn definition(name: &str, models: &[String], version: usize) -> Vec<u8> {
    let mut pipeline = Message::new().text(1, name);
    for (i, model) in models.iter().enumerate() {
        let step = Message::new().text(1, model);
        let before = i.checked_sub(1).and_then(|before| models.get(before));
        pipeline = pipeline.message(4, &before.map_or(step.clone(), |before| step.clone().text(2, before)));
    }
    let output = models.iter().rev().take(1).fold(Message::new(), |output, last| output.text(1, last));
    let output = output.number(2, 60_000 + version as u64);
    Message::new().message(1, &pipeline.message(5, &output)).done()
}

/// Sends requests until this version of a pipeline responds.
fn until_version(connection: &mut http::Connection, pipeline: &str, version: usize) -> Result<(), Failure> {
    let body = "{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1.5]}]}";
    let request = http::post(&format!("/v2/pipelines/{pipeline}/infer"), "", body);
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        connection.send(&request)?;
        let (status, body) = connection.receive()?;
        let body = if status == 200 { String::new() } else { String::from_utf8_lossy(body).into_owned() };
        if status == 200 && connection.header("x-pipeline-version") == Some(version.to_string()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{pipeline} does not respond with version {version}: {status} {body}").into());
        }
    }
}

/// Models, pipelines and an experiment.
pub(super) fn write_graphs(bench: &Bench, directory: &Path) -> Result<(), Failure> {
    for name in IDENTITIES {
        fs::write(directory.join(format!("{name}.onnx")), identity())?;
    }
    fs::copy(bench.root.join("testdata/onnx/hostile/turning/model.onnx"), directory.join("turning.onnx"))?;
    Ok(fs::write(directory.join("graphs.yaml"), manifests(directory))?)
}

pub(super) fn small_request() -> String {
    format!("{{\"id\":\"b\",\"inputs\":[{DATA}]}}")
}

/// A request with the response that it has to give under load.
pub(super) fn exchange(address: SocketAddr, request: &[u8]) -> Result<Exchange, Failure> {
    let response = http::Connection::open(address)?.call(request)?.to_vec();
    Ok(Exchange { request: request.to_vec(), response })
}

fn p99(mut latencies: Vec<f64>) -> Result<f64, Failure> {
    latencies.sort_by(f64::total_cmp);
    latencies.get(latencies.len() * 99 / 100).copied().ok_or_else(|| "no latencies".into())
}

pub(super) fn p50(address: SocketAddr, exchange: &Exchange, count: usize) -> Result<f64, Failure> {
    Ok(median(&load::latencies(address, std::slice::from_ref(exchange), count)?))
}

/// ONNX: y = Identity(x), of any shape.
pub(super) fn identity() -> Vec<u8> {
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
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Experiment
metadata: {name: mirrored}
spec:
  candidates:
  - {name: half, weight: 100}
  mirror: {name: hanging, percent: 100}
"
}
