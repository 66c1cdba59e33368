//! HTTP/1.1 client with one keep-alive connection, for the gateway's REST API and the admin server.

use crate::address::Address;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1::{SendRequest, handshake},
};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::net::TcpStream;

/// Limit for response bodies, in bytes.
const MAX_BODY: usize = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpError {
    Refused,
    Timeout(Duration),
    /// The connection closed, or the peer does not speak HTTP.
    Failed(String),
}

/// Connects on the first request, and again after the peer closes the connection.
#[derive(Debug)]
pub struct Connection {
    address: Address,
    /// `Host` header, if it is not the address.
    host: Option<String>,
    deadline: Duration,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub const fn new(address: Address, deadline: Duration) -> Self {
        Self { address, host: None, deadline, open: None }
    }

    #[must_use]
    pub fn with_host(self, host: String) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Sends a request and reads the whole response.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, HttpError> {
        let deadline = self.deadline;
        let whole = async {
            let (parts, body) = self.start(method, path, headers, body).await?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await;
            let body = body.map_err(|e| HttpError::Failed(e.to_string()))?.to_bytes();
            Ok(Response::from_parts(parts, body))
        };
        let response =
            tokio::time::timeout(deadline, whole).await.unwrap_or(Err(HttpError::Timeout(deadline)));
        if response.is_err() {
            // Bytes left on the wire belong to the abandoned request.
            self.open = None;
        }
        response
    }

    pub async fn get(&mut self, path: &str) -> Result<Response<Bytes>, HttpError> {
        self.send(Method::GET, path, &HeaderMap::new(), Bytes::new()).await
    }

    /// Fetches a path with a streaming body.
    pub async fn stream(&mut self, path: &str) -> Result<Response<Incoming>, HttpError> {
        let deadline = self.deadline;
        let headers = HeaderMap::new();
        let start = self.start(Method::GET, path, &headers, Bytes::new());
        tokio::time::timeout(deadline, start).await.unwrap_or(Err(HttpError::Timeout(deadline)))
    }

    async fn start(
        &mut self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, HttpError> {
        let broken = |e: &dyn std::fmt::Display| HttpError::Failed(e.to_string());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.host.clone().unwrap_or_else(|| self.address.to_string()))
            .header(header::USER_AGENT, concat!("gantry/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|e| broken(&e))?;
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }
        let sender = match self.open.take() {
            Some(mut sender) if !sender.is_closed() => {
                sender.ready().await.map_err(|e| broken(&e))?;
                self.open.insert(sender)
            }
            _ => self.open.insert(connect(&self.address).await?),
        };
        sender.send_request(request).await.map_err(|e| broken(&e))
    }
}

async fn connect(address: &Address) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let stream = TcpStream::connect(address.to_string()).await.map_err(|_| HttpError::Refused)?;
    // Small requests must not wait for Nagle's algorithm.
    let _ = stream.set_nodelay(true);
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|e| HttpError::Failed(e.to_string()))?;
    tokio::spawn(async move {
        // Errors surface in the pending request.
        let _ = connection.await;
    });
    Ok(sender)
}

/// The message of an error response: `{"error": …}` of the protocol, or its text, truncated.
pub fn error_text(status: StatusCode, body: &[u8]) -> String {
    let from_json = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|v| v.get("error").and_then(|e| e.as_str().map(str::to_owned)));
    from_json.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        let line: String = text.trim().chars().take(200).collect();
        if line.is_empty() { status.canonical_reason().unwrap_or("no reason given").to_owned() } else { line }
    })
}
