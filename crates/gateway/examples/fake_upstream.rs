//! A replica with a constant response, for measuring proxies.
//!
//! `cargo run --release -p gantry-gateway --example fake_upstream -- PORT`

#![allow(clippy::print_stdout, reason = "prints its address")]

use bytes::Bytes;
use gantry_oip::server::{Reply, grpc_reply, json};
use gantry_proto::inference::ModelInferResponse;
use gantry_transport::{Protocol, ServerOptions};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use std::error::Error;
use tokio_util::sync::CancellationToken;

const ANSWER: &[u8] = br#"{"model_name":"iris_1","model_version":"1","outputs":[{"name":"label","shape":[1],"datatype":"INT64","data":[0]}]}"#;

async fn respond(request: Request<Incoming>) -> Response<Reply> {
    let protocol = Protocol::of(request.headers());
    let _ = http_body_util::BodyExt::collect(request.into_body()).await;
    match protocol {
        Protocol::Grpc => {
            grpc_reply(&ModelInferResponse { model_name: "iris_1".into(), ..Default::default() })
        }
        Protocol::Rest => json(StatusCode::OK, Bytes::from_static(ANSWER)),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = std::env::args().nth(1).as_deref().unwrap_or("0").parse()?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("{}", listener.local_addr()?);
    gantry_transport::serve(listener, ServerOptions::default(), respond, CancellationToken::new()).await;
    Ok(())
}
