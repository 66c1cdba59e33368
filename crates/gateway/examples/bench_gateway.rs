//! Load-test target: a gateway with models `m0`, `m1`, … on an upstream port or on an in-process server. The last `ROLLOUTS`
//! models have a rollout, whose statistics are collected as often as for a scheduler.
//!
//! `cargo run --release -p gantry-gateway --example bench_gateway -- PORT WORKERS MODELS [UPSTREAM_PORT [ROLLOUTS]]`

#![allow(clippy::print_stdout, reason = "prints its address")]

use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_gateway::{Config, Gateway};
use gantry_oip::server::{InferenceServer, Reply, json};
use gantry_proto::gantry::{Endpoint, Route, RouteEvent, RouteVersion, route_event::Event};
use http::{Request, Response, StatusCode};
use std::{error::Error, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const ANSWER: &[u8] = br#"{"model_name":"iris_1","model_version":"1","outputs":[{"name":"label","shape":[1],"datatype":"INT64","data":[0]}]}"#;

struct ConstantServer;

impl InferenceServer for ConstantServer {
    fn call(&self, _: Request<Bytes>) -> BoxFuture<'_, Response<Reply>> {
        Box::pin(std::future::ready(json(StatusCode::OK, Bytes::from_static(ANSWER))))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| -> Result<u32, Box<dyn Error>> {
        Ok(arguments.next().map_or(Ok(default), |a| a.parse())?)
    };
    let (port, workers, models, upstream) = (number(0)?, number(1)?, number(1)?, number(0)?);
    let rollouts = number(0)?;
    let listen = format!("127.0.0.1:{port}").parse()?;
    let gateway = Gateway::bind(Config { listen, workers: workers as usize, ..Config::default() })?;
    if upstream == 0 {
        gateway.register_local("s", 0, Arc::new(ConstantServer));
    }
    let endpoint = Endpoint {
        server: "s".into(),
        replica: 0,
        host: "127.0.0.1".into(),
        http_port: upstream,
        grpc_port: upstream,
        ..Endpoint::default()
    };
    for i in 0..models {
        let version = RouteVersion { version: 1, weight: 100, endpoints: vec![endpoint.clone()] };
        let rollout_generation = u64::from(i + rollouts >= models);
        let (model, versions) = (format!("m{i}"), vec![version]);
        let route = Route { model, versions, rollout_generation, ..Route::default() };
        gateway.routes().apply(RouteEvent {
            epoch: 1,
            event: Some(Event::Upsert(route)),
            ..Default::default()
        });
    }
    let routes = gateway.routes();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            std::hint::black_box(routes.take_traffic());
        }
    });
    println!("{}", gateway.local_addr());
    gateway.serve(CancellationToken::new()).await?;
    Ok(())
}
