//! A replica with a constant response, for measuring proxies.
//!
//! `cargo run --release -p gantry-gateway --example fake_upstream -- PORT`

#![allow(clippy::print_stdout, reason = "prints its address")]

use bytes::Bytes;
use gantry_oip::server::{grpc_reply, json};
use gantry_proto::inference::ModelInferResponse;
use http::{Request, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use std::{convert::Infallible, error::Error};

const ANSWER: &[u8] = br#"{"model_name":"iris_1","model_version":"1","outputs":[{"name":"label","shape":[1],"datatype":"INT64","data":[0]}]}"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).as_deref().unwrap_or("0").parse()?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                let is_grpc = request.uri().path().starts_with("/inference.");
                let _ = http_body_util::BodyExt::collect(request.into_body()).await;
                Ok::<_, Infallible>(if is_grpc {
                    grpc_reply(&ModelInferResponse { model_name: "iris_1".into(), ..Default::default() })
                } else {
                    json(StatusCode::OK, Bytes::from_static(ANSWER))
                })
            });
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
