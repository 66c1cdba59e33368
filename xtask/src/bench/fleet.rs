//! A server of many models that has no models: an agent that says "loaded" to every order, and an endpoint that is
//! the upstream. So the gateway gets its routes from the scheduler as it always does.

use super::{
    servers::Gantry,
    wire::{
        grpc::{Arrived, Connection, take_message},
        protobuf::{self, Message, Value},
    },
};
use crate::Failure;
use std::net::SocketAddr;

const SUBSCRIBE: &str = "/seldon.mlops.agent.AgentService/Subscribe";
const EVENT: &str = "/seldon.mlops.agent.AgentService/AgentEvent";
const LOAD: &str = "/seldon.mlops.scheduler.Scheduler/LoadModel";
const SERVER: &str = "fleet";
const LOADED: u64 = 2;
const UNLOADED: u64 = 4;

/// The names of so many models.
pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("model-{i:05}")).collect()
}

/// Joins as a server whose only replica is the upstream, and has the scheduler load the models there.
pub(crate) fn load(gantry: &Gantry, upstream: SocketAddr, models: &[String]) -> Result<(), Failure> {
    let mut orders = Connection::open(gantry.agents)?;
    orders.be_patient()?;
    let memory = 1 << 40;
    let config = Message::new()
        .text(1, &upstream.ip().to_string())
        .number(2, u64::from(upstream.port()))
        .number(3, u64::from(upstream.port()))
        .number(4, memory)
        .text(5, SERVER);
    let hello = Message::new().text(1, SERVER).number(2, 1).message(4, &config).number(6, memory).done();
    orders.send(SUBSCRIBE, &hello)?;
    let mut reports = Connection::open(gantry.agents)?;
    // Ends when gantry does.
    std::thread::spawn(move || obey(&mut orders, &mut reports));
    let mut scheduler = Connection::open(gantry.scheduler)?;
    let requests: Vec<Vec<u8>> = models
        .iter()
        .map(|name| {
            let spec = Message::new().text(1, "/nowhere").text(4, SERVER);
            let model = Message::new()
                .message(1, &Message::new().text(1, name))
                .message(2, &spec)
                .message(3, &Message::new().number(1, 1));
            Message::new().message(1, &model).done()
        })
        .collect();
    // Many at a time: the scheduler makes each durable, and several at once cost as much as one.
    for some in requests.chunks(64) {
        let mut waiting = Vec::with_capacity(some.len());
        for request in some {
            waiting.push(scheduler.send(LOAD, request)?);
        }
        while !waiting.is_empty() {
            if let Some(Arrived::End(stream)) = scheduler.step()? {
                waiting.retain(|w| *w != stream);
            }
        }
    }
    Ok(())
}

/// Answers every order with success.
fn obey(orders: &mut Connection, reports: &mut Connection) -> Option<()> {
    let mut body = Vec::new();
    loop {
        if let Some(Arrived::Data(_, bytes)) = orders.step().ok()? {
            body.extend_from_slice(&bytes);
        }
        while let Some(order) = take_message(&mut body) {
            let loads = protobuf::number(&order, 1) == 1;
            let model_version = protobuf::find(&order, 2)?;
            let version = protobuf::number(model_version, 2);
            let name = protobuf::find(protobuf::find(protobuf::find(model_version, 1)?, 1)?, 1)?;
            let event = Message::new()
                .text(1, SERVER)
                .bytes(3, name)
                .number(4, version)
                .number(5, if loads { LOADED } else { UNLOADED })
                .number(7, 1 << 40);
            reports.ask(EVENT, &event.done()).ok()?;
        }
    }
}

/// The label that an inference answered with over gRPC: the first element of the first output.
pub(crate) fn first_label(response: &[u8]) -> Option<i64> {
    if let Some(raw) = protobuf::find(response, 6) {
        return raw.first_chunk().map(|bytes| i64::from_le_bytes(*bytes));
    }
    let contents = protobuf::find(protobuf::find(response, 5)?, 5)?;
    protobuf::fields(contents).find_map(|(field, value)| match (field, value) {
        (3, Value::Number(number)) => Some(number.cast_signed()),
        (3, Value::Bytes(mut packed)) => protobuf::take_varint(&mut packed).map(u64::cast_signed),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_typed_and_raw() {
        let contents = Message::new().bytes(3, &[2, 1]);
        let typed = Message::new().message(5, &Message::new().text(1, "label").message(5, &contents)).done();
        assert_eq!(first_label(&typed), Some(2));
        let raw = Message::new().bytes(6, &1_i64.to_le_bytes()).done();
        assert_eq!(first_label(&raw), Some(1));
        assert_eq!(first_label(&[]), None);
    }

    #[test]
    fn names_sort_as_they_count() {
        assert_eq!(names(3), ["model-00000", "model-00001", "model-00002"]);
    }
}
