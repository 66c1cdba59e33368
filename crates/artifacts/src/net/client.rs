//! Requests: a small pool of connections, redirects, and answers turned into classified errors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, HOST, HeaderValue, IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE, RETRY_AFTER, USER_AGENT,
};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use url::Url;

use super::body::chain;
use super::connect::{Connector, Resolve, Stream};
use super::{Body, Timeouts};
use crate::error::{ErrorKind, FetchError};
use crate::network_policy::NetPolicy;
use crate::uri::redact;

const MAX_REDIRECTS: usize = 5;
const MAX_IDLE_PER_ORIGIN: usize = 8;
const MAX_ERROR_BODY: usize = 16 << 10;

type Origin = (bool, String, u16);

/// A connection between two requests.
pub(crate) struct Idle {
    origin: Origin,
    sender: SendRequest<Full<Bytes>>,
}

/// Connections that may be used again, by origin.
#[derive(Default)]
pub(crate) struct Pool(Mutex<HashMap<Origin, Vec<Idle>>>);

impl Pool {
    pub(super) fn put_idle(&self, idle: Idle) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool.entry(idle.origin.clone()).or_default();
        if kept.len() < MAX_IDLE_PER_ORIGIN && !idle.sender.is_closed() {
            kept.push(idle);
        }
    }

    fn take(&self, origin: &Origin) -> Option<Idle> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool.get_mut(origin)?;
        while let Some(idle) = kept.pop() {
            if !idle.sender.is_closed() {
                return Some(idle);
            }
        }
        None
    }
}

/// Whether redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Up to five, dropping credentials when the origin changes.
    Redirects,
    /// Never: a signed request is valid for one place only.
    Nothing,
}

/// An answer with a success status (2xx) or 304.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

/// The HTTP client that everything in this crate uses.
pub(crate) struct Client {
    connector: Connector,
    timeouts: Timeouts,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(
        policy: NetPolicy,
        resolver: Arc<dyn Resolve>,
        timeouts: Timeouts,
        extra_roots_pem: Option<&[u8]>,
    ) -> Result<Self, FetchError> {
        let connector = Connector::new(policy, resolver, extra_roots_pem)?;
        Ok(Self { connector, timeouts, pool: Arc::default() })
    }

    /// A GET request; anything but 2xx and 304 becomes an error.
    pub(crate) async fn get(
        &self,
        url: &Url,
        headers: HeaderMap,
        follow: Follow,
    ) -> Result<Response, FetchError> {
        let mut url = url.clone();
        let mut headers = headers;
        for _ in 0..=MAX_REDIRECTS {
            let place = redact(&url);
            let sent = self.send(Method::GET, &url, headers.clone(), Bytes::new(), false).await;
            let (status, answer_headers, body) = sent.map_err(|error| error.at(&place))?;
            if status.is_success() || status == StatusCode::NOT_MODIFIED {
                return Ok(Response { status, headers: answer_headers, body });
            }
            let location = answer_headers.get(LOCATION).and_then(|value| value.to_str().ok());
            match location {
                Some(location) if is_redirect(status) && follow == Follow::Redirects => {
                    let next = redirect_target(&url, location)
                        .map_err(|error| error.at(&place).with_status(status.as_u16()))?;
                    if next.origin() != url.origin() {
                        headers = without_credentials(&headers);
                    }
                    url = next;
                }
                _ => return Err(refusal(status, &answer_headers, body).await.at(&place)),
            }
        }
        Err(FetchError::permanent(format!("more than {MAX_REDIRECTS} redirects")).at(redact(&url)))
    }

    /// One request and its answer, whatever the status. `exempt` skips the network policy.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
        exempt: bool,
    ) -> Result<(StatusCode, HeaderMap, Body), FetchError> {
        let tls = url.scheme() == "https";
        let host = url.host_str().ok_or_else(|| FetchError::permanent("the URL has no host"))?;
        let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
        let origin: Origin = (tls, host.to_owned(), port);
        let request = || build_request(&method, url, host, headers.clone(), body.clone());
        if !exempt && let Some(mut idle) = self.pool.take(&origin) {
            // A kept connection may have been closed meanwhile: then, and only then, a new one is tried at once.
            if let Ok(response) = self.send_on(&mut idle.sender, request()?).await {
                return Ok(self.parts(response, Some(idle)));
            }
        }
        let connecting = self.connector.connect(host, port, tls, exempt);
        let stream = tokio::time::timeout(self.timeouts.connect, connecting).await.map_err(|_| {
            FetchError::transient(format!("no connection to {host} within {:?}", self.timeouts.connect))
        })??;
        let mut sender = handshake(stream).await?;
        let response = self.send_on(&mut sender, request()?).await?;
        let idle = (!exempt).then_some(Idle { origin, sender });
        Ok(self.parts(response, idle))
    }

    async fn send_on(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        request: http::Request<Full<Bytes>>,
    ) -> Result<http::Response<Incoming>, FetchError> {
        let exchange = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match tokio::time::timeout(self.timeouts.idle, exchange).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                Err(FetchError::transient(format!("no answer from the server: {}", chain(&error))))
            }
            Err(_) => Err(FetchError::transient(format!(
                "no answer from the server within {:?}",
                self.timeouts.idle
            ))),
        }
    }

    fn parts(&self, response: http::Response<Incoming>, idle: Option<Idle>) -> (StatusCode, HeaderMap, Body) {
        let (parts, incoming) = response.into_parts();
        let connection = idle.map(|idle| (Arc::clone(&self.pool), idle));
        (parts.status, parts.headers, Body::new(incoming, self.timeouts, connection))
    }
}

async fn handshake(stream: Stream) -> Result<SendRequest<Full<Bytes>>, FetchError> {
    let failed =
        |error: hyper::Error| FetchError::transient(format!("the connection broke: {}", chain(&error)));
    match stream {
        Stream::Plain(stream) => {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            Ok(sender)
        }
        Stream::Tls(stream) => {
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            tokio::spawn(connection);
            Ok(sender)
        }
    }
}

fn build_request(
    method: &Method,
    url: &Url,
    host: &str,
    headers: HeaderMap,
    body: Bytes,
) -> Result<http::Request<Full<Bytes>>, FetchError> {
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let invalid = || FetchError::permanent("the URL cannot be sent in a request");
    let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let mut request = http::Request::new(Full::new(body));
    *request.method_mut() = method.clone();
    *request.uri_mut() = target.parse().map_err(|_| invalid())?;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|_| invalid())?);
    headers
        .entry(USER_AGENT)
        .or_insert(HeaderValue::from_static(concat!("gantry/", env!("CARGO_PKG_VERSION"))));
    Ok(request)
}

/// What another origin may see: any other header can be a credential.
fn without_credentials(headers: &HeaderMap) -> HeaderMap {
    [ACCEPT_ENCODING, RANGE, IF_RANGE, IF_NONE_MATCH]
        .into_iter()
        .filter_map(|name| headers.get(&name).map(|value| (name, value.clone())))
        .collect()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn redirect_target(from: &Url, location: &str) -> Result<Url, FetchError> {
    let next = from
        .join(location)
        .map_err(|_| FetchError::permanent("the server redirects to something that is not a URL"))?;
    if !matches!(next.scheme(), "http" | "https") {
        return Err(FetchError::denied(format!("the server redirects to the scheme `{}`", next.scheme())));
    }
    if from.scheme() == "https" && next.scheme() == "http" {
        return Err(FetchError::denied("the server redirects from https to unencrypted http"));
    }
    if !next.username().is_empty() || next.password().is_some() {
        return Err(FetchError::denied("the server redirects to a URL with credentials in it"));
    }
    Ok(next)
}

/// The error for an answer that is not a success. Reads a little of the body for the store's error code.
pub(crate) async fn refusal(status: StatusCode, headers: &HeaderMap, body: Body) -> FetchError {
    let text = body.collect(MAX_ERROR_BODY).await.unwrap_or_default();
    let code = error_code(&String::from_utf8_lossy(&text));
    let detail = code.map(|code| format!(" ({code})")).unwrap_or_default();
    let region = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    let retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.trim().parse::<u64>().ok())
        .map(Duration::from_secs);
    let error = match status.as_u16() {
        401 => FetchError::denied(format!("the server requires credentials{detail}"))
            .remedy("name a storage secret (secretName) or set the credentials in the environment"),
        403 => FetchError::denied(format!("the server denied access{detail}"))
            .remedy("check that the credentials may read this place, and that it exists"),
        404 | 410 => {
            FetchError::permanent(format!("not found{detail}")).remedy("check the spelling of storageUri")
        }
        408 | 425 | 429 => FetchError::transient(format!("the server is busy{detail}")),
        500 | 502 | 503 | 504 => FetchError::transient(format!("the server failed{detail}")),
        300..=399 if region.is_some() => {
            FetchError::permanent(format!("the bucket is in another region{detail}")).remedy(format!(
                "set the region {} (AWS_REGION or `region` of the secret)",
                region.unwrap_or_default()
            ))
        }
        300..=399 => FetchError::permanent(format!("an unexpected redirect{detail}"))
            .remedy("check the endpoint and region of the store"),
        _ => FetchError::permanent(format!("the server rejected the request{detail}")),
    };
    let kind =
        if status.is_server_error() && status.as_u16() != 501 { ErrorKind::Transient } else { error.kind() };
    error.with_kind(kind).with_status(status.as_u16()).with_retry_after(retry_after)
}

/// `<Code>NoSuchKey</Code>` or `"error":"…"`: the short machine-readable part only, the rest may repeat the request.
fn error_code(text: &str) -> Option<String> {
    let after = text.split_once("<Code>").map(|(_, rest)| rest)?;
    let (code, _) = after.split_once("</Code>")?;
    (code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphanumeric())).then(|| code.to_owned())
}
