//! Latency that a gateway adds in front of the same upstream: Gantry and Envoy.

use crate::{
    Failure,
    bench::{
        Bench, fake_servers,
        load::{self, Exchange},
        note, servers,
        table::{Better, Row, divide, figure, median},
        upstream,
        wire::http,
    },
};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

const MANY: usize = 10_000;

/// A request of about a kilobyte; both gateways route by header.
fn exchanges(models: &[String]) -> Vec<Exchange> {
    let body = upstream::request();
    let response = upstream::response().into_bytes();
    let exchange = |model: &String| {
        let header = format!("seldon-model: {model}\r\n");
        let request = http::post(&format!("/v2/models/{model}/infer"), &header, &body);
        Exchange { request, response: response.clone() }
    };
    models.iter().map(exchange).collect()
}

/// Requests every model, and retries those that are not routed yet.
fn until_routed(address: SocketAddr, exchanges: &[Exchange]) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_mins(2);
    let mut connection = http::Connection::open(address)?;
    for exchange in exchanges {
        loop {
            connection.send(&exchange.request)?;
            let (status, body) = connection.receive()?;
            if status == 200 && body == exchange.response {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "not routed after two minutes: {status} {}",
                    String::from_utf8_lossy(body)
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Two gateways in front of one upstream, with the same models.
struct Pair {
    _upstream: servers::Process,
    upstream: SocketAddr,
    ours: servers::Gantry,
    envoy: servers::Envoy,
    exchanges: Vec<Exchange>,
}

fn pair(bench: &Bench, models: usize) -> Result<Pair, Failure> {
    let (process, upstream) = servers::upstream(&bench.machine)?;
    let names = fake_servers::names(models);
    let exchanges = exchanges(&names);
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[])?;
    fake_servers::load(&ours, upstream, &names)?;
    until_routed(ours.inference, &exchanges)?;
    let mut envoy = servers::envoy(&bench.machine, &bench.servers()?.join("envoy"), upstream, &names)?;
    let last = exchanges.last().ok_or("no models")?.request.clone();
    servers::wait_for_response(&mut envoy.process, envoy.address, &last)?;
    Ok(Pair { _upstream: process, upstream, ours, envoy, exchanges })
}

impl Pair {
    /// p50 of `count` requests, in microseconds.
    fn p50(&self, address: SocketAddr, count: usize) -> Result<f64, Failure> {
        Ok(median(&load::latencies(address, &self.exchanges, count)?))
    }
}

pub(crate) fn one(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let pair = pair(bench, 1)?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds.max(5) {
        let straight = pair.p50(pair.upstream, 4000)?;
        mine.push(pair.p50(pair.ours.inference, 4000)? - straight);
        theirs.push(pair.p50(pair.envoy.address, 4000)? - straight);
    }
    Ok(vec![Row {
        what: "gateway, added p50, 1 model".into(),
        peer: "Envoy".into(),
        ours: format!("{} µs", figure(median(&mine))),
        theirs: format!("{} µs", figure(median(&theirs))),
        rounds: divide(&mine, &theirs),
        unit: "x",
        better: Better::Lower,
        floor: Some(1.3),
        aim: Some(0.8),
    }])
}

/// Many models, a random one per request; and our own latency with one model in the same rounds.
pub(crate) fn many(bench: &Bench) -> Result<Vec<Row>, Failure> {
    note("routing 10,000 models");
    let many = pair(bench, MANY)?;
    let single = pair(bench, 1)?;
    let (mut mine, mut theirs, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    note("measuring");
    for _ in 0..bench.rounds.max(5) {
        // Each load is also measured directly on the upstream: many different requests are slower by themselves.
        let straight_to_one = single.p50(single.upstream, 2000)?;
        let straight = many.p50(many.upstream, 2000)?;
        alone.push(single.p50(single.ours.inference, 2000)? - straight_to_one);
        mine.push(many.p50(many.ours.inference, 2000)? - straight);
        theirs.push(many.p50(many.envoy.address, 2000)? - straight);
    }
    let ours = format!("{} µs", figure(median(&mine)));
    Ok(vec![
        Row {
            what: "gateway, added p50, random of 10,000 models".into(),
            peer: "Envoy, a route each".into(),
            ours: ours.clone(),
            theirs: format!("{} µs", figure(median(&theirs))),
            rounds: divide(&mine, &theirs),
            unit: "x",
            better: Better::Lower,
            floor: Some(0.3),
            aim: Some(0.1),
        },
        Row {
            what: "the same, 10,000 models against 1".into(),
            peer: "ourselves with 1".into(),
            ours,
            theirs: format!("{} µs", figure(median(&alone))),
            rounds: divide(&mine, &alone),
            unit: "x",
            better: Better::Lower,
            floor: None,
            aim: Some(1.05),
        },
    ])
}
