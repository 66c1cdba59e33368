//! Minimal HTTP clients.

use super::TEST_TIMEOUT;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
}

impl Client {
    pub(crate) const fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A keep-alive connection.
    pub(crate) async fn connect(&self) -> http1::SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Sends one request on a new connection.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut sender = self.connect().await;
        send(&mut sender, method, path, headers, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await
    }

    pub(crate) async fn infer(&self, model: &str) -> Answer {
        self.send("POST", &format!("/v2/models/{model}/infer"), &[], "{}").await
    }
}

type Parts = tokio::sync::mpsc::Sender<Result<http_body::Frame<Bytes>, std::convert::Infallible>>;
type PartsBody = http_body_util::StreamBody<
    tokio_stream::wrappers::ReceiverStream<Result<http_body::Frame<Bytes>, std::convert::Infallible>>,
>;

/// An HTTP/2 connection whose request bodies stay open until their sender is dropped.
pub(crate) struct Http2 {
    sender: hyper::client::conn::http2::SendRequest<PartsBody>,
}

impl Http2 {
    /// With a window of 0 the client reads no response body.
    pub(crate) async fn connect(address: SocketAddr, window: u32) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    /// Sends the headers and the first part of a body.
    pub(crate) async fn start(
        &mut self,
        path: &str,
        content_type: &str,
        first: impl Into<Bytes>,
    ) -> (Parts, BoxFuture<'static, hyper::Result<http::Response<hyper::body::Incoming>>>) {
        let (parts, receiver) = tokio::sync::mpsc::channel(4);
        parts.send(Ok(http_body::Frame::data(first.into()))).await.unwrap();
        let body = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
        let request = Request::post(format!("http://test{path}"))
            .header("content-type", content_type)
            .header("te", "trailers")
            .body(body)
            .unwrap();
        self.sender.ready().await.unwrap();
        (parts, Box::pin(self.sender.send_request(request)))
    }
}

/// Sends one request on an open connection.
pub(crate) async fn send(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", "test");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(body.into())).unwrap();
    let answering = async {
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, answering).await.expect("no answer")
}
