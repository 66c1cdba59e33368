//! Latency of a good client while others attack the same gateway: slow connections, unread responses, compressed bodies
//! that expand a thousandfold.

use super::iris;
use crate::{
    Failure,
    bench::{
        Bench,
        load::{self, Exchange, INFER, Protocol},
        note, servers,
        table::{Better, Row, divide, figure},
        wire::{grpc, http},
    },
};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

const SLOW_CONNECTIONS: usize = 1000;
const UNREAD_STREAMS: usize = 200;
const STREAMS_PER_CONNECTION: usize = 100;
/// Bytes of JSON in a compressed body.
const EXPANDED: usize = 30 << 20;
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn measure(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let ours = servers::gantry(&bench.machine, &bench.gantry, &[&bench.root.join("examples/quickstart")])?;
    let exchanges = iris::exchanges(Protocol::Rest, ours.inference)?;
    let bomb = bomb()?;
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        note(&format!("round {round}"));
        quiet.push(p99(ours.inference, &exchanges, bench.turn * 3)?);
        attacked
            .push(under_attack(ours.inference, &bomb, || p99(ours.inference, &exchanges, bench.turn * 3))?);
    }
    let micros = |values: &[f64]| format!("{} µs", figure(crate::bench::table::median(values)));
    Ok(vec![Row {
        what: "gateway under attack, p99 of a good client".into(),
        peer: "the same without".into(),
        ours: micros(&attacked),
        theirs: micros(&quiet),
        rounds: divide(&attacked, &quiet),
        unit: "x",
        better: Better::Lower,
        floor: Some(1.5),
        aim: Some(1.1),
    }])
}

fn p99(address: SocketAddr, exchanges: &[Exchange], time: Duration) -> Result<f64, Failure> {
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < time {
        times.extend(load::latencies(address, exchanges, 500)?);
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().ok_or_else(|| "no requests".into())
}

/// Measures while the attack runs; fails if the attack does not reach its size.
fn under_attack<T>(
    address: SocketAddr,
    bomb: &[u8],
    measure: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let stop = AtomicBool::new(false);
    let (slow, bombs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| slow_connections(address, &stop, &slow));
        let unread = unread_streams(address);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                bombs.fetch_add(usize::from(send_bomb(address, bomb).is_ok()), Ordering::Relaxed);
                std::thread::sleep(INTERVAL.saturating_sub(started.elapsed()));
            }
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        while slow.load(Ordering::Relaxed) < SLOW_CONNECTIONS && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        let (slow, bombs) = (slow.load(Ordering::Relaxed), bombs.load(Ordering::Relaxed));
        unread?;
        if slow < SLOW_CONNECTIONS || bombs == 0 {
            return Err(format!("the attack had {slow} slow connections and {bombs} large bodies").into());
        }
        measured
    })
}

/// Sends a byte of a request head per second on each connection, and reopens those that the server closes.
fn slow_connections(address: SocketAddr, stop: &AtomicBool, open: &AtomicUsize) {
    let connect = || -> Option<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&address, INTERVAL).ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.write_all(b"POST /v2/models/iris/infer HTTP/1.1\r\nx-slow: ").ok()?;
        Some(stream)
    };
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    connections.resize_with(SLOW_CONNECTIONS, connect);
    while !stop.load(Ordering::Relaxed) {
        let mut count = 0;
        for connection in &mut connections {
            let is_open = connection.as_mut().is_some_and(|stream| {
                stream.write_all(b"x").is_ok() && !matches!(stream.read(&mut [0]), Ok(0))
            });
            if !is_open {
                *connection = connect();
            }
            count += usize::from(connection.is_some());
        }
        open.fetch_max(count, Ordering::Relaxed);
        std::thread::sleep(INTERVAL);
    }
}

/// Calls whose responses may not be sent, because the client opens no window. Open until dropped.
fn unread_streams(address: SocketAddr) -> Result<Vec<grpc::Connection>, Failure> {
    let request = iris::message(iris::FLOWERS[0].0);
    let mut connections = Vec::new();
    for _ in 0..UNREAD_STREAMS / STREAMS_PER_CONNECTION {
        let mut connection = grpc::Connection::open_with_window(address, 0)?;
        for _ in 0..STREAMS_PER_CONNECTION {
            connection.send(INFER, &request)?;
        }
        connections.push(connection);
    }
    Ok(connections)
}

/// A small request whose body is large after decompression.
fn bomb() -> Result<Vec<u8>, Failure> {
    let mut gzip = Command::new("gzip").arg("-c9").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = gzip.stdin.take().ok_or("gzip has no input")?;
    let writing = std::thread::spawn(move || -> std::io::Result<()> {
        let head = r#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":["#;
        input.write_all(head.as_bytes())?;
        input.write_all(&b"0,".repeat(EXPANDED / 2))?;
        input.write_all(b"0]}]}")
    });
    let body = gzip.wait_with_output()?.stdout;
    writing.join().map_err(|_| "gzip failed")??;
    let head = format!(
        "POST /v2/models/iris/infer HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
         content-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Ok([head.as_bytes(), &body].concat())
}

fn send_bomb(address: SocketAddr, bomb: &[u8]) -> Result<u16, Failure> {
    let mut connection = http::Connection::open(address)?;
    connection.send(bomb)?;
    Ok(connection.receive()?.0)
}
