//! A fake server with many models: an agent that reports every model as loaded, with the upstream as its endpoint. The
//! gateway gets its routes from the scheduler as usual.

use super::{
    servers::Gantry,
    wire::{
        grpc::{Connection, StreamEvent, take_message},
        protobuf::{self, Message, Value},
    },
};
use crate::Failure;
use std::net::SocketAddr;

const SUBSCRIBE: &str = "/seldon.mlops.agent.AgentService/Subscribe";
const EVENT: &str = "/seldon.mlops.agent.AgentService/AgentEvent";
const LOAD: &str = "/seldon.mlops.scheduler.Scheduler/LoadModel";
const SERVER: &str = "fake";
const LOADED: u64 = 2;
const UNLOADED: u64 = 4;

pub(crate) fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("model-{i:05}")).collect()
}

/// Subscribes as a server whose only replica is the upstream, and loads the models there.
pub(crate) fn load(gantry: &Gantry, upstream: SocketAddr, models: &[String]) -> Result<(), Failure> {
    let mut orders = Connection::open(gantry.agents)?;
    orders.disable_read_timeout()?;
    let memory = 1 << 40;
    let config = Message::new()
        .text(1, &upstream.ip().to_string())
        // REST alone.
        .number(2, u64::from(upstream.port()))
        .number(4, memory)
        .text(5, SERVER);
    let hello = Message::new().text(1, SERVER).number(2, 1).message(4, &config).number(6, memory).done();
    orders.send(SUBSCRIBE, &hello)?;
    let mut reports = Connection::open(gantry.agents)?;
    // Ends with the gantry process.
    std::thread::spawn(move || handle_orders(&mut orders, &mut reports));
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
    for batch in requests.chunks(64) {
        scheduler.call_all(LOAD, batch)?;
    }
    Ok(())
}

/// Reports success for every order.
fn handle_orders(orders: &mut Connection, reports: &mut Connection) -> Option<()> {
    let mut body = Vec::new();
    loop {
        if let Some(StreamEvent::Data(_, bytes)) = orders.step().ok()? {
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
            reports.call(EVENT, &event.done()).ok()?;
        }
    }
}

/// The first element of the first output of a gRPC inference response.
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
    fn first_label_reads_typed_and_raw_outputs() {
        let contents = Message::new().bytes(3, &[2, 1]);
        let typed = Message::new().message(5, &Message::new().text(1, "label").message(5, &contents)).done();
        assert_eq!(first_label(&typed), Some(2));
        let raw = Message::new().bytes(6, &1_i64.to_le_bytes()).done();
        assert_eq!(first_label(&raw), Some(1));
        assert_eq!(first_label(&[]), None);
    }

    #[test]
    fn names_have_a_fixed_width() {
        assert_eq!(names(3), ["model-00000", "model-00001", "model-00002"]);
    }
}
