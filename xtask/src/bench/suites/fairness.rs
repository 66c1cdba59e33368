//! Latency of a fast model while another one in the same process is saturated, compared with the same without load.
//!
//! Without a peer and on all cores: the server shares them between its models.

use super::iris;
use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange},
        note, servers,
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
};
use std::{
    fs,
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Connections to the slow model, each with a request in flight.
const CONNECTIONS: usize = 64;
const REQUESTS: usize = 2000;
/// Rows of a request to the trees, and turns of the network's loop: some milliseconds each.
const ROWS: usize = 3000;
const TURNS: usize = 10_000;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    bench.machine.on_all_cores(|| measure_unpinned(bench))
}

fn measure_unpinned(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("fairness")?;
    for (name, file) in [
        ("iris.onnx", "examples/quickstart/iris/model.onnx"),
        ("demand.lgb", "examples/quickstart/demand/model.txt"),
        ("turning.onnx", "testdata/onnx/hostile/turning/model.onnx"),
    ] {
        fs::copy(bench.root.join(file), scratch.0.join(name))?;
    }
    let ours = servers::start_gantry(Command::new(&bench.gantry), &[&scratch.0])?;
    let address = ours.inference;
    let response = http::Connection::open(address)?.call(&iris::request())?.to_vec();
    if !iris::is_correct(&response) {
        return Err("iris gives a wrong response".into());
    }
    let fast = [Exchange { request: iris::request(), response }];
    let slow = [("trees", trees()), ("a network in its own process", network())];
    let mut rows = Vec::new();
    for (what, request) in slow {
        note(what);
        // Fails here if the model rejects the request.
        http::Connection::open(address)?.call(&request)?;
        let (mut alone, mut loaded) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            alone.push(quantiles(load::latencies(address, &fast, REQUESTS)?));
            loaded.push(beside(address, &request, || {
                Ok(quantiles(load::latencies(address, &fast, REQUESTS)?))
            })?);
        }
        for (index, name) in ["p50", "p99"].into_iter().enumerate() {
            let of = |rounds: &[[f64; 2]]| -> Vec<f64> {
                rounds.iter().filter_map(|quantiles| quantiles.get(index).copied()).collect()
            };
            let (loaded, alone) = (of(&loaded), of(&alone));
            rows.push(Row {
                what: format!("iris beside {what} with {CONNECTIONS} connections, {name}"),
                peer: "ourselves without them".into(),
                ours: format!("{} µs", figure(median(&loaded))),
                theirs: format!("{} µs", figure(median(&alone))),
                rounds: divide(&loaded, &alone),
                unit: "x",
                better: Better::Lower,
                floor: Some(2.0),
                aim: Some(1.2),
            });
        }
    }
    Ok(rows)
}

/// A request of many rows, all zeros, in binary form: it is small, and its run is long.
fn trees() -> Vec<u8> {
    let size = ROWS * 4 * size_of::<f32>();
    let json = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"shape\":[{ROWS},4],\"datatype\":\"FP32\",\"parameters\":{{\"binary_data_size\":{size}}}}}]}}"
    );
    let header = format!("inference-header-content-length: {}\r\n", json.len());
    http::post("/v2/models/demand/infer", &header, &(json + &"\0".repeat(size)))
}

fn network() -> Vec<u8> {
    let body = format!(
        "{{\"inputs\":[{{\"name\":\"n\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[{TURNS}]}}]}}"
    );
    http::post("/v2/models/turning/infer", "", &body)
}

/// p50 and p99.
fn quantiles(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|share| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN))
}

/// Measures while the slow model is saturated.
fn beside<T>(
    address: SocketAddr,
    request: &[u8],
    measure: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let load = scope.spawn(|| saturate(address, request, &stop, &answered).map_err(|e| e.to_string()));
        let deadline = Instant::now() + Duration::from_secs(30);
        while answered.load(Ordering::Relaxed) < CONNECTIONS
            && !load.is_finished()
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        match load.join() {
            Ok(Ok(())) => measured,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err("the load generator panicked".into()),
        }
    })
}

/// Keeps a request in flight on each connection until `stop` is set.
fn saturate(
    address: SocketAddr,
    request: &[u8],
    stop: &AtomicBool,
    answered: &AtomicUsize,
) -> Result<(), Failure> {
    let mut open = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut connection = http::Connection::open(address)?;
        connection.send(request)?;
        open.push(connection);
    }
    loop {
        for connection in &mut open {
            let (status, body) = connection.receive()?;
            if status != 200 {
                return Err(
                    format!("the slow model responded {status}: {}", String::from_utf8_lossy(body)).into()
                );
            }
            answered.fetch_add(1, Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            connection.send(request)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_taken_from_sorted_times() {
        let [p50, p99] = quantiles((0..100).rev().map(f64::from).collect());
        assert!((p50 - 50.0).abs() + (p99 - 99.0).abs() < 1e-9, "{p50} {p99}");
    }
}
