//! A worker process for tests: `worker KAFKA_JSON PIPELINE…`. Each pipeline computes (x + 1) * 2 of the tensor `x` in two
//! steps, `<pipeline>-add` and `<pipeline>-double`. `PIPELINE<A+B` reads the outputs of A and B, too.
//!
//! Headers of a record choose what happens: `x-fail: permanent`, `x-fail: transient` with `x-attempts: N`,
//! `x-sleep-ms: N`, `x-panic: true`, `x-fail: side`, which fails a third step on which the answer does not depend.
//!
//! `GANTRY_WORKER_ABORT=PIPELINE/REQUEST/WRITES` ends the process when so many results of the request are written; it needs
//! the feature `failpoints`.

use gantry_core::pipeline::{External, ExternalKind, Externals};
use gantry_kafka::{
    Consumed, Settings,
    engine::{self, ExecuteError, Execution, Executor, Metrics, Pipeline, Pipelines, RunRequest, StepRecord},
};
use gantry_oip::InferTensor;
use gantry_tensor::{Elements, Tensor};
use http::{HeaderMap, HeaderValue};
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct Adder {
    pipelines: watch::Sender<Pipelines>,
    attempts: Mutex<HashMap<String, u32>>,
}

fn values(tensors: &[InferTensor]) -> Vec<i64> {
    match tensors.first().map(|tensor| tensor.tensor.elements()) {
        Some(Elements::Int64(values)) => values.clone(),
        _ => Vec::new(),
    }
}

fn tensor(values: Vec<i64>) -> Vec<InferTensor> {
    Tensor::new("x", vec![values.len()], Elements::Int64(values)).map(InferTensor::from).into_iter().collect()
}

impl Adder {
    fn fail(&self, request: &RunRequest) -> Option<ExecuteError> {
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let kind = header("x-fail").filter(|kind| *kind != "side")?;
        if kind == "transient" {
            let limit: u32 = header("x-attempts").and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
            let mut attempts = self.attempts.lock().ok()?;
            let count = attempts.entry(request.request_id.clone()).or_default();
            *count += 1;
            if *count > limit {
                return None;
            }
        }
        let step = format!("{}-add", request.pipeline);
        let message = format!("{step} : {kind} failure");
        Some(ExecuteError { is_transient: kind == "transient", step: step.into(), message })
    }
}

impl Executor for Adder {
    type Span = ();

    fn span(&self, _: &str, _: &str, _: &Consumed, _: &mut HeaderMap) {}

    fn pipelines(&self) -> watch::Receiver<Pipelines> {
        self.pipelines.subscribe()
    }

    fn is_deleted(&self, _: &str) -> bool {
        true
    }

    async fn execute(&self, request: RunRequest) -> Execution {
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        assert!(header("x-panic").is_none(), "a panic was requested");
        if let Some(millis) = header("x-sleep-ms").and_then(|text| text.parse().ok()) {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        if let Some(error) = self.fail(&request) {
            return Execution { version: 1, steps: Vec::new(), result: Err(error) };
        }
        let read = values(&request.inputs);
        let added: Vec<i64> = read.iter().map(|x| x + 1).collect();
        let doubled: Vec<i64> = added.iter().map(|x| x * 2).collect();
        let step = |name: &str, inputs: Vec<i64>, outputs: Result<Vec<i64>, String>| StepRecord {
            step: format!("{}-{name}", request.pipeline).into(),
            inputs: tensor(inputs),
            outputs: outputs.map(tensor),
            route: HeaderValue::from_str(&format!(":{}-{name}_1:", request.pipeline)).ok(),
        };
        let mut steps =
            vec![step("add", read, Ok(added.clone())), step("double", added.clone(), Ok(doubled.clone()))];
        if header("x-fail") == Some("side") {
            let message = format!("{}-side : permanent failure", request.pipeline);
            steps.push(step("side", added, Err(message)));
        }
        Execution { version: 1, steps, result: Ok(Some(tensor(doubled))) }
    }
}

/// An inner join of the outputs of these pipelines, each under its own name.
fn join(sources: &str) -> Option<Arc<Externals>> {
    let names: Vec<&str> = sources.split('+').filter(|name| !name.is_empty()).collect();
    let source = |name: &&str| External {
        pipeline: (*name).into(),
        kind: ExternalKind::Outputs,
        tensor: Some("x".into()),
    };
    let renames = names.iter().skip(1).map(|name| (format!("{name}.outputs.x"), (*name).into()));
    let spec = Externals {
        inputs: names.iter().map(source).collect(),
        window_ms: 30_000,
        renames: renames.collect(),
        ..Externals::default()
    };
    (!names.is_empty()).then(|| Arc::new(spec))
}

#[cfg(feature = "failpoints")]
fn set_failpoint(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let [pipeline, request_id, writes] = text.split('/').collect::<Vec<_>>()[..] else {
        return Err("GANTRY_WORKER_ABORT is not PIPELINE/REQUEST/WRITES".into());
    };
    engine::failpoint::set(engine::failpoint::Failpoint {
        pipeline: pipeline.to_owned(),
        request_id: request_id.to_owned(),
        writes: writes.parse()?,
        reached: || std::process::abort(),
    });
    Ok(())
}

#[cfg(not(feature = "failpoints"))]
fn set_failpoint(_: &str) -> Result<(), Box<dyn std::error::Error>> {
    Err("GANTRY_WORKER_ABORT needs the feature failpoints".into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: worker KAFKA_JSON PIPELINE…")?;
    if let Ok(text) = std::env::var("GANTRY_WORKER_ABORT") {
        set_failpoint(&text)?;
    }
    let settings = Settings::read(Path::new(&path), "", &|name| std::env::var(name).ok())?;
    let pipeline = |argument: String| {
        let (name, sources) = argument.split_once('<').unwrap_or((&argument, ""));
        let steps = ["add", "double", "side"].map(|step| format!("{name}-{step}").into()).to_vec();
        Arc::new(Pipeline { name: name.into(), steps, external: join(sources), ..Pipeline::default() })
    };
    let pipelines: Pipelines = arguments.map(pipeline).collect();
    let executor = Adder { pipelines: watch::Sender::new(pipelines), attempts: Mutex::default() };
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        stop.cancel();
    });
    engine::run(settings, Arc::new(executor), Metrics::default(), shutdown).await;
    Ok(())
}
