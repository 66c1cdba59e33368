//! HTTP/1.1 over one connection that is kept: enough for the gateway's REST and for the admin endpoint.

use super::Address;
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

/// Largest answer that is read.
const LARGEST: usize = 256 << 20;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Nobody listens.
    Refused,
    /// It took too long.
    Late(Duration),
    /// The connection ended, or what came over it is not HTTP.
    Broken(String),
}

/// A connection, opened when it is needed and again when it ended.
#[derive(Debug)]
pub(crate) struct Connection {
    address: Address,
    /// What requests name as their host.
    host: Option<String>,
    deadline: Duration,
    open: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// A connection that is opened by the first request.
    pub(crate) const fn new(address: Address, deadline: Duration) -> Self {
        Self { address, host: None, deadline, open: None }
    }

    /// The same, with another host named in requests.
    pub(crate) fn with_host(self, host: String) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, Problem> {
        let deadline = self.deadline;
        let whole = async {
            let (parts, body) = self.start(method, path, headers, body).await?.into_parts();
            let body = Limited::new(body, LARGEST).collect().await;
            let body = body.map_err(|e| Problem::Broken(e.to_string()))?.to_bytes();
            Ok(Response::from_parts(parts, body))
        };
        let answer = tokio::time::timeout(deadline, whole).await.unwrap_or(Err(Problem::Late(deadline)));
        if answer.is_err() {
            // What is left on the wire belongs to a request that was given up.
            self.open = None;
        }
        answer
    }

    /// Fetches a path.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Response<Bytes>, Problem> {
        self.send(Method::GET, path, &HeaderMap::new(), Bytes::new()).await
    }

    /// Fetches a path and leaves the body to be read as it comes.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<Response<Incoming>, Problem> {
        let deadline = self.deadline;
        let headers = HeaderMap::new();
        let start = self.start(Method::GET, path, &headers, Bytes::new());
        tokio::time::timeout(deadline, start).await.unwrap_or(Err(Problem::Late(deadline)))
    }

    async fn start(
        &mut self,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Problem> {
        let broken = |e: &dyn std::fmt::Display| Problem::Broken(e.to_string());
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

async fn connect(address: &Address) -> Result<SendRequest<Full<Bytes>>, Problem> {
    let stream = TcpStream::connect(address.to_string()).await.map_err(|_| Problem::Refused)?;
    // Small requests must not wait for more to send with them.
    let _ = stream.set_nodelay(true);
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|e| Problem::Broken(e.to_string()))?;
    tokio::spawn(async move {
        // Whoever waits for an answer hears of the failure.
        let _ = connection.await;
    });
    Ok(sender)
}

/// What an error answer says: the protocol's `{"error": …}`, or its text, shortened.
pub(crate) fn error_text(status: StatusCode, body: &[u8]) -> String {
    let from_json = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|v| v.get("error").and_then(|e| e.as_str().map(str::to_owned)));
    from_json.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        let line: String = text.trim().chars().take(200).collect();
        if line.is_empty() { status.canonical_reason().unwrap_or("no reason given").to_owned() } else { line }
    })
}
