//! Times runs of a model in this process.
//!
//! `cargo run --release -p gantry-onnx --example speed -- MODEL.onnx BATCH [native|rten|subprocess|ort] [THREADS]`
//!
//! `subprocess` is rten in a worker process, as `gantry` runs it.
//!
//! Prints the engine and the median and best time of a run in microseconds. `testdata/onnx/speed.py` does the same
//! for ONNX Runtime in Python.
#![allow(
    clippy::print_stdout,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a tool for developers"
)]

use gantry_onnx::{EngineChoice, Options, RuntimeLibrary, Session, WorkerCommand};
use gantry_tensor::{DataType, Elements, Tensor};
use std::time::{Duration, Instant};

/// Runs this program as a worker process.
const WORKER: &str = "--worker";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == WORKER) {
        return gantry_onnx::serve_worker().expect("a parent");
    }
    let (model, batch) = match arguments.as_slice() {
        [model, batch, ..] => (model, batch.parse::<usize>().expect("a batch size")),
        _ => panic!("usage: speed MODEL.onnx BATCH [native|rten|subprocess|ort] [THREADS]"),
    };
    let engine = match arguments.get(2).map(String::as_str) {
        Some("native") => EngineChoice::Native,
        Some("rten" | "subprocess") => EngineChoice::Rten,
        Some("ort") => EngineChoice::OnnxRuntime,
        _ => EngineChoice::Auto,
    };
    let options = Options {
        engine,
        worker: arguments.get(2).filter(|e| *e == "subprocess").map(|_| WorkerCommand {
            program: std::env::current_exe().expect("a program"),
            arguments: vec![WORKER.into()],
        }),
        threads: arguments.get(3).map_or(1, |n| n.parse().expect("a number of threads")),
        onnx_runtime: if engine == EngineChoice::OnnxRuntime {
            RuntimeLibrary::Search
        } else {
            RuntimeLibrary::Never
        },
        ..Options::default()
    };
    let session = Session::load(model, &options).unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<Tensor> = session.inputs().iter().map(|spec| input(spec, batch)).collect();
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs(3);
    let mut rounds = 1;
    while Instant::now() < until {
        let start = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(session.run(&inputs, &[]).unwrap());
        }
        let each = start.elapsed() / rounds;
        times.push(each);
        // Rounds of about a millisecond, so that reading the clock does not count.
        rounds = (Duration::from_millis(1).as_nanos() / each.as_nanos().max(1)).clamp(1, 10_000) as u32;
    }
    times.sort_unstable();
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    println!(
        "{} batch {batch}: {} median {:.1} µs, best {:.1} µs",
        model.rsplit('/').next().unwrap(),
        session.engine(),
        micros(times[times.len() / 2]),
        micros(times[0])
    );
}

/// Noise in the shape of the model's inputs; open dimensions are the batch first, and 1 elsewhere.
fn input(spec: &gantry_tensor::TensorSpec, batch: usize) -> Tensor {
    let shape: Vec<usize> = spec
        .shape
        .iter()
        .enumerate()
        .map(|(i, &d)| {
            if d >= 0 {
                d as usize
            } else if i == 0 {
                batch
            } else {
                1
            }
        })
        .collect();
    let n = shape.iter().product();
    let mut state = 0x1234_5678_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let elements = match spec.datatype {
        DataType::Fp32 => Elements::Fp32((0..n).map(|_| noise()).collect()),
        DataType::Fp64 => Elements::Fp64((0..n).map(|_| f64::from(noise())).collect()),
        DataType::Int64 => Elements::Int64((0..n).map(|_| (noise() * 10.0) as i64).collect()),
        other => panic!("no noise for {other}"),
    };
    Tensor::new(spec.name.clone(), shape, elements).unwrap()
}
