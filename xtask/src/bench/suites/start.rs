//! Time from an empty directory to the first correct response, with everything built and installed.

use super::iris;
use crate::{
    Failure,
    bench::{
        Bench,
        machine::Core,
        servers::{self, Process},
        table::{Better, Row, divide, figure, median},
        wire::http,
    },
};
use std::{net::SocketAddr, time::Instant};

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = servers::Scratch::new("start")?;
    let model = iris::train(bench, &scratch)?;
    let programs = bench.servers()?;
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let started = Instant::now();
        let mut mlserver = servers::mlserver(&bench.machine, programs, &model)?;
        let address = mlserver.rest;
        first_response(&mut mlserver.process, address)?;
        theirs.push(started.elapsed().as_secs_f64());
        drop(mlserver);
        mine.push(ours(bench)?);
    }
    Ok(vec![Row {
        what: "empty directory to first response".into(),
        peer: "mlserver start".into(),
        ours: format!("{} s", figure(median(&mine))),
        theirs: format!("{} s", figure(median(&theirs))),
        rounds: divide(&mine, &theirs),
        unit: "x",
        better: Better::Lower,
        floor: Some(0.3),
        aim: Some(0.05),
    }])
}

fn ours(bench: &Bench) -> Result<f64, Failure> {
    let state = servers::Scratch::new("state")?;
    let address = servers::free_address()?;
    let mut command = bench.machine.command(Core::Server, &bench.gantry);
    command
        .arg("up")
        .arg(bench.root.join("examples/quickstart"))
        .arg("--state-dir")
        .arg(state.0.join("state"));
    command.args(["--inference-port", &address.port().to_string()]);
    command.args(["--admin-port", "0", "--scheduler-port", "0", "--agent-port", "0"]);
    let started = Instant::now();
    let mut process = Process::start(&mut command, state.0.join("out"))?;
    first_response(&mut process, address)?;
    let took = started.elapsed().as_secs_f64();
    drop(process);
    Ok(took)
}

/// Sends requests until the response is correct.
fn first_response(process: &mut Process, address: SocketAddr) -> Result<(), Failure> {
    let request = iris::request();
    process.until("the first response", |_| {
        let mut connection = http::Connection::open(address).ok()?;
        connection.call(&request).is_ok_and(iris::is_correct).then_some(())
    })
}
