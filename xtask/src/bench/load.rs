//! Load generator: many connections from one thread, each with one request in flight.
//!
//! The thread visits the connections in turn, waits for the response, checks it and sends the next request at once. The
//! other requests stay in flight, so the server is never idle.

use super::wire::{grpc, http};
use crate::Failure;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// A request and its expected response.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    Grpc,
}

pub(crate) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

enum Connection {
    Rest(http::Connection),
    Grpc(Box<grpc::Connection>, u32),
}

impl Connection {
    fn open(protocol: Protocol, address: SocketAddr) -> Result<Self, Failure> {
        Ok(match protocol {
            Protocol::Rest => Self::Rest(http::Connection::open(address)?),
            Protocol::Grpc => Self::Grpc(Box::new(grpc::Connection::open(address)?), 0),
        })
    }

    fn send(&mut self, request: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Rest(connection) => connection.send(request),
            Self::Grpc(connection, stream) => {
                *stream = connection.send(INFER, request)?;
                Ok(())
            }
        }
    }

    fn check(&mut self, right: &[u8]) -> Result<(), Failure> {
        let wrong = |got: &[u8]| {
            let shown =
                String::from_utf8_lossy(got.get(..got.len().min(300)).unwrap_or_default()).into_owned();
            Failure::from(format!("a wrong response under load: {shown}"))
        };
        match self {
            Self::Rest(connection) => match connection.receive()? {
                (200, body) if body == right => Ok(()),
                (_, body) => Err(wrong(body)),
            },
            Self::Grpc(connection, stream) => {
                let message = connection.receive(*stream)?;
                if message == right { Ok(()) } else { Err(wrong(&message)) }
            }
        }
    }
}

/// Requests per second over `connections`; every response is checked.
pub(crate) fn rate(
    protocol: Protocol,
    address: SocketAddr,
    connections: usize,
    exchanges: &[Exchange],
    time: Duration,
) -> Result<f64, Failure> {
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(Connection::open(protocol, address)?);
    }
    let mut requests = exchanges.iter().cycle();
    let mut under_way = Vec::with_capacity(connections);
    for connection in &mut open {
        let exchange = requests.next().ok_or("nothing to ask")?;
        connection.send(&exchange.request)?;
        under_way.push(exchange);
    }
    // A tenth of the time is warm-up.
    let started = Instant::now();
    let mut counting = None;
    let mut answered = 0_u64;
    loop {
        for (connection, exchange) in open.iter_mut().zip(&mut under_way) {
            connection.check(&exchange.response)?;
            answered += 1;
            *exchange = requests.next().ok_or("nothing to ask")?;
            connection.send(&exchange.request)?;
        }
        match counting {
            None if started.elapsed() > time / 10 => counting = Some((Instant::now(), answered)),
            Some((since, before)) if started.elapsed() > time => {
                return Ok((answered - before) as f64 / since.elapsed().as_secs_f64());
            }
            _ => {}
        }
    }
}

/// Latencies of sequential requests on one connection, in microseconds. The exchanges are sent in a scattered order.
pub(crate) fn latencies(
    address: SocketAddr,
    exchanges: &[Exchange],
    count: usize,
) -> Result<Vec<f64>, Failure> {
    let mut connection = http::Connection::open(address)?;
    let mut times = Vec::with_capacity(count);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let warm = count / 10;
    for turn in 0..count + warm {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (random >> 33) as usize % exchanges.len().max(1);
        let exchange = exchanges.get(index).ok_or("nothing to ask")?;
        let time = latency(&mut connection, exchange)?;
        if turn >= warm {
            times.push(time);
        }
    }
    Ok(times)
}

/// Latencies of two exchanges, in microseconds, sent in turn in short blocks on one connection: threads of both sides are
/// placed alike for both, which decides over a factor of two or three when client and server may use all cores.
pub(crate) fn alternating_latencies(
    address: SocketAddr,
    exchanges: [&Exchange; 2],
    count: usize,
) -> Result<[Vec<f64>; 2], Failure> {
    const BLOCK: usize = 100;
    let mut connection = http::Connection::open(address)?;
    let mut times = [Vec::with_capacity(count), Vec::with_capacity(count)];
    for block in 0..=count / BLOCK {
        for (exchange, times) in exchanges.into_iter().zip(&mut times) {
            for _ in 0..BLOCK {
                let time = latency(&mut connection, exchange)?;
                // The first block warms up.
                if block > 0 {
                    times.push(time);
                }
            }
        }
    }
    Ok(times)
}

fn latency(connection: &mut http::Connection, exchange: &Exchange) -> Result<f64, Failure> {
    let start = Instant::now();
    connection.send(&exchange.request)?;
    let (status, body) = connection.receive()?;
    let took = start.elapsed();
    if status != 200 || body != exchange.response {
        let body = String::from_utf8_lossy(body);
        return Err(format!("a wrong response under load: {status} {body}").into());
    }
    Ok(took.as_secs_f64() * 1e6)
}
