//! Requests per second of the iris model: ours through the gateway, MLServer directly.

use crate::{
    Failure,
    bench::{
        Bench, fake_servers,
        load::{self, Exchange, INFER, Protocol},
        note, servers,
        table::{Better, Row, divide, figure, median},
        wire::{
            grpc, http,
            protobuf::{Message, varint},
        },
    },
};
use serde_json::Value;
use std::{net::SocketAddr, path::PathBuf, process::Command};

/// One sample per class: features and label.
pub(crate) const FLOWERS: [([f32; 4], i64); 3] =
    [([5.1, 3.5, 1.4, 0.2], 0), ([7.0, 3.2, 4.7, 1.4], 1), ([6.3, 3.3, 6.0, 2.5], 2)];
const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// A request with the first sample, for both servers.
pub(crate) fn request() -> Vec<u8> {
    rest(FLOWERS[0].0)
}

/// Whether the response to [`request`] is correct.
pub(crate) fn is_correct(response: &[u8]) -> bool {
    label(response) == Some(FLOWERS[0].1)
}

/// The model of MLServer, trained once per run.
pub(crate) fn train(bench: &Bench, scratch: &servers::Scratch) -> Result<PathBuf, Failure> {
    let file = scratch.0.join("iris.joblib");
    let script = bench.root.join("xtask/peers/train.py");
    let status = Command::new(bench.servers()?.join("python")).arg(script).arg(&file).status()?;
    if status.success() { Ok(file) } else { Err("the model for MLServer could not be trained".into()) }
}

fn rest(leaves: [f32; 4]) -> Vec<u8> {
    let [a, b, c, d] = leaves;
    let body = format!(
        "{{\"id\":\"1\",\"inputs\":[{{\"name\":\"X\",\"shape\":[1,4],\"datatype\":\"FP32\",\"data\":[{a},{b},{c},{d}]}}]}}"
    );
    http::post("/v2/models/iris/infer", "", &body)
}

pub(crate) fn message(leaves: [f32; 4]) -> Vec<u8> {
    let values: Vec<u8> = leaves.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut shape = Vec::new();
    varint(&mut shape, 1);
    varint(&mut shape, 4);
    let tensor = Message::new().text(1, "X").text(2, "FP32").bytes(3, &shape);
    let tensor = tensor.message(5, &Message::new().bytes(6, &values));
    Message::new().text(1, "iris").text(3, "1").message(5, &tensor).done()
}

fn label(response: &[u8]) -> Option<i64> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let mut data = response.pointer("/outputs/0/data/0")?;
    while let Some(inner) = data.get(0) {
        data = inner;
    }
    data.as_i64()
}

/// The requests with the server's responses, after checking them.
pub(crate) fn exchanges(protocol: Protocol, address: SocketAddr) -> Result<Vec<Exchange>, Failure> {
    let mut checked = Vec::new();
    for (leaves, right) in FLOWERS {
        let (request, response, actual) = match protocol {
            Protocol::Rest => {
                let request = rest(leaves);
                let response = http::Connection::open(address)?.call(&request)?.to_vec();
                let actual = label(&response);
                (request, response, actual)
            }
            Protocol::Grpc => {
                let request = message(leaves);
                let response = grpc::Connection::open(address)?.call(INFER, &request)?;
                let actual = fake_servers::first_label(&response);
                (request, response, actual)
            }
        };
        if actual != Some(right) {
            return Err(format!("{address} classified {leaves:?} as {actual:?}, expected {right}").into());
        }
        checked.push(Exchange { request, response });
    }
    Ok(checked)
}

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("iris")?;
    let model = train(bench, &scratch)?;
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[&bench.root.join("examples/quickstart")])?;
    let mut theirs = servers::mlserver(&bench.machine, bench.servers()?, &model)?;
    servers::wait_for_response(&mut theirs.process, theirs.rest, &request())?;
    let mut rows = Vec::new();
    for (protocol, name, at) in [(Protocol::Rest, "REST", theirs.rest), (Protocol::Grpc, "gRPC", theirs.grpc)]
    {
        let (our_requests, their_requests) = (exchanges(protocol, ours.inference)?, exchanges(protocol, at)?);
        for connections in CONNECTIONS {
            note(&format!("{name}, {connections} connections"));
            let (mut mine, mut peers) = (Vec::new(), Vec::new());
            for _ in 0..bench.rounds {
                peers.push(load::rate(protocol, at, connections, &their_requests, bench.turn)?);
                mine.push(load::rate(protocol, ours.inference, connections, &our_requests, bench.turn)?);
            }
            rows.push(Row {
                what: format!("iris over {name}, {connections} connections"),
                peer: "MLServer, directly".into(),
                ours: format!("{} /s", figure(median(&mine))),
                theirs: format!("{} /s", figure(median(&peers))),
                rounds: divide(&mine, &peers),
                unit: "x",
                better: Better::Higher,
                floor: Some(8.0),
                aim: Some(25.0),
            });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_found_in_nested_data() {
        for (response, expected) in [
            (r#"{"outputs":[{"name":"label","data":[2]}]}"#, Some(2)),
            (r#"{"outputs":[{"name":"label","data":[[1]]}]}"#, Some(1)),
            (r#"{"error":"no"}"#, None),
        ] {
            assert_eq!(label(response.as_bytes()), expected);
        }
    }
}
