//! ONNX networks: time in the model in our server, and in ONNX Runtime in process.

use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange, Protocol},
        note,
        servers::{self, Peer},
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Maximum difference from ONNX Runtime's outputs.
const TOLERANCE: f64 = 1e-5;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("onnx")?;
    let mut peer =
        Peer::start(&bench.machine, bench.libraries()?, &bench.root.join("xtask/peers/libraries.py"))?;
    let files = peer.call(
        &json!({ "ask": "onnx-make", "folder": scratch.0, "nets": bench.root.join("testdata/onnx") }),
    )?;
    let files = files.as_object().ok_or("no networks were made")?;
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[&scratch.0])?;
    let mut rows = Vec::new();
    for (name, file) in files {
        note(name);
        let described = peer.call(&json!({ "ask": "onnx-describe", "file": file }))?;
        let exchange = exchange(ours.inference, name, &described)?;
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        let seconds = bench.turn.as_secs_f64();
        for _ in 0..bench.rounds {
            let response = peer.call(&json!({ "ask": "onnx-time", "file": file, "seconds": seconds }))?;
            theirs.push(response.get("mean_ns").and_then(Value::as_f64).ok_or("no time")? / 1e3);
            let before = spent(ours.inference, name)?;
            load::rate(Protocol::Rest, ours.inference, 1, std::slice::from_ref(&exchange), bench.turn)?;
            let after = spent(ours.inference, name)?;
            mine.push((after.1 - before.1) / (after.0 - before.0) / 1e3);
        }
        rows.push(Row {
            what: format!("ONNX {name}, time in the server, batch 1"),
            peer: "onnxruntime in process".into(),
            ours: format!("{} µs", figure(median(&mine))),
            theirs: format!("{} µs", figure(median(&theirs))),
            rounds: divide(&mine, &theirs),
            unit: "x",
            better: Better::Lower,
            floor: Some(1.5),
            aim: Some(1.1),
        });
    }
    Ok(rows)
}

/// The request and our response, after comparing it with ONNX Runtime's.
fn exchange(address: SocketAddr, name: &str, described: &Value) -> Result<Exchange, Failure> {
    let inputs = described.get("request").ok_or("no request")?;
    let request =
        http::post(&format!("/v2/models/{name}/infer"), "", &json!({ "inputs": inputs }).to_string());
    let response = http::Connection::open(address)?.call(&request)?.to_vec();
    let parsed: Value = serde_json::from_slice(&response)?;
    for output in parsed.get("outputs").and_then(Value::as_array).ok_or("no outputs")? {
        let of = output.get("name").and_then(Value::as_str).unwrap_or_default();
        let numbers = |v: Option<&Value>| -> Vec<f64> {
            v.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let mine = numbers(output.get("data"));
        let right = numbers(described.pointer(&format!("/outputs/{of}")));
        let near =
            mine.len() == right.len() && mine.iter().zip(&right).all(|(a, b)| (a - b).abs() <= TOLERANCE);
        if right.is_empty() || !near {
            return Err(format!("{name}: output {of} differs from ONNX Runtime's").into());
        }
    }
    Ok(Exchange { request, response })
}

/// Number of runs of a model, and their total nanoseconds.
fn spent(address: SocketAddr, name: &str) -> Result<(f64, f64), Failure> {
    let request = http::get(&format!("/v2/models/{name}/stats"));
    let response: Value = serde_json::from_slice(http::Connection::open(address)?.call(&request)?)?;
    let of = |key: &str| {
        response
            .pointer(&format!("/model_stats/0/inference_stats/compute_infer/{key}"))
            .and_then(Value::as_f64)
    };
    Ok((of("count").ok_or("no statistics")?, of("ns").ok_or("no statistics")?))
}
