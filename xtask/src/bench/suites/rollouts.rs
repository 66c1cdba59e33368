//! Cost of the statistics of a rollout: the same gateway and model with and without them.

use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange},
        machine::Core,
        servers::{self, Scratch},
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
};

/// Of each model in a round.
const REQUESTS: usize = 10_000;

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let program = bench.build_example("gantry-gateway", "bench_gateway")?;
    let scratch = Scratch::new("rollouts")?;
    // Any port, one worker, two models on the in-process server, the second one with a rollout.
    let mut command = bench.machine.command(Core::Server, program);
    command.args(["0", "1", "2", "0", "1"]);
    let mut process = servers::Process::start(&mut command, scratch.0.join("out"))?;
    let address = process.until("the gateway's start", |p| p.output().lines().next()?.parse().ok())?;
    let exchange = |model: &str| -> Result<Exchange, Failure> {
        let request = http::post(&format!("/v2/models/{model}/infer"), "", "{\"inputs\":[]}");
        let response = http::Connection::open(address)?.call(&request)?.to_vec();
        Ok(Exchange { request, response })
    };
    let (plain, counted) = (exchange("m0")?, exchange("m1")?);
    let (mut mine, mut without) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds.max(5) {
        let [with, plain] = load::alternating_latencies(address, [&counted, &plain], REQUESTS)?;
        mine.push(median(&with));
        without.push(median(&plain));
    }
    Ok(vec![Row {
        what: "gateway, p50 with statistics of a rollout".into(),
        peer: "ourselves without".into(),
        ours: format!("{} µs", figure(median(&mine))),
        theirs: format!("{} µs", figure(median(&without))),
        rounds: divide(&mine, &without),
        unit: "x",
        better: Better::Lower,
        floor: Some(1.05),
        aim: Some(1.01),
    }])
}
