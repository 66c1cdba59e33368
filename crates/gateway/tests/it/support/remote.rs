//! A TCP replica with HTTP/1.1 and HTTP/2 on one port, backed by an in-process server.

use bytes::Bytes;
use gantry_oip::{
    Code, Error,
    server::{InferenceServer, Reply, grpc_error},
};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio_util::sync::CancellationToken;

pub(crate) struct FakeRemote {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) stop: CancellationToken,
}

impl FakeRemote {
    pub(crate) async fn start(server: Arc<impl InferenceServer + 'static>) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), server).await
    }

    pub(crate) async fn start_at(address: SocketAddr, server: Arc<impl InferenceServer + 'static>) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let remote = Self { address, connections: Arc::clone(&connections), stop: stop.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap(),
                    () = stop.cancelled() => return,
                };
                connections.fetch_add(1, Ordering::SeqCst);
                let (server, stop) = (Arc::clone(&server), stop.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| answer(Arc::clone(&server), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    tokio::select! {
                        _ = builder.serve_connection(TokioIo::new(stream), service) => {}
                        () = stop.cancelled() => {}
                    }
                });
            }
        });
        remote
    }
}

async fn answer(
    server: Arc<impl InferenceServer>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    if request.uri().path().ends_with("ModelStreamInfer") {
        return Ok(grpc_error(&Error::new(Code::Unimplemented, "this server does not support streams")));
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Response::new(Reply::default()));
    };
    let body: Bytes = body.to_bytes();
    Ok(server.call(Request::from_parts(parts, body)).await)
}
