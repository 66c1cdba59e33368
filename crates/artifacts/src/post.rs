//! Sends small JSON documents to endpoints of others, under the network policy of downloads.

use crate::{
    error::{ErrorKind, FetchError},
    net::{Client, Resolve, SystemResolver, Timeouts},
    network_policy::NetPolicy,
    retry::RetryPolicy,
};
use http::{
    HeaderMap, HeaderName, Method, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use std::{path::Path, sync::Arc, time::Duration};
use url::Url;

/// The answer is read so that its connection can be used again.
const MAX_ANSWER: usize = 16 << 10;
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(10), min_bytes_per_idle: 1 };
/// Of one attempt, however the server answers.
const DEADLINE: Duration = Duration::from_secs(15);

/// Sends JSON documents. Redirects are not followed.
#[derive(Debug)]
pub struct Poster {
    client: Client,
    retry: RetryPolicy,
}

impl Poster {
    /// Trusts the public roots, and those of the file in `SSL_CERT_FILE`.
    pub fn new(policy: NetPolicy, retry: RetryPolicy) -> Result<Self, FetchError> {
        let roots = std::env::var("SSL_CERT_FILE").ok().map(|path| {
            std::fs::read(&path)
                .map_err(|error| FetchError::io("SSL_CERT_FILE cannot be read", Path::new(&path), &error))
        });
        let roots = roots.transpose()?;
        let resolver: Arc<dyn Resolve> = Arc::new(SystemResolver);
        Ok(Self { client: Client::new(policy, resolver, TIMEOUTS, roots.as_deref())?, retry })
    }

    /// Sends a document, again after transient failures. Errors name the origin of the URL only: its path may be a
    /// credential.
    pub async fn post(&self, url: &str, id: &str, document: &[u8]) -> Result<(), FetchError> {
        let url = Url::parse(url).map_err(|error| FetchError::permanent(format!("not a URL: {error}")))?;
        let mut attempt = 0;
        loop {
            let sent = tokio::time::timeout(DEADLINE, self.post_once(&url, id, document)).await;
            let late = || FetchError::transient(format!("no complete answer within {DEADLINE:?}"));
            let Err(error) = sent.unwrap_or_else(|_| Err(late())) else { return Ok(()) };
            let error = error.at(url.origin().ascii_serialization());
            if error.kind() != ErrorKind::Transient || attempt >= self.retry.retries {
                return Err(error);
            }
            tokio::time::sleep(self.retry.wait(attempt, error.retry_after())).await;
            attempt += 1;
        }
    }

    async fn post_once(&self, url: &Url, id: &str, document: &[u8]) -> Result<(), FetchError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(HeaderName::from_static("idempotency-key"), id);
        }
        let body = document.to_vec().into();
        let (status, headers, answer) = self.client.send(Method::POST, url, headers, body, false).await?;
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        // What it contains does not matter.
        let _ = answer.collect(MAX_ANSWER).await;
        if status.is_success() {
            return Ok(());
        }
        let error = format!("the endpoint answered {status}");
        Err(if is_transient(status) { FetchError::transient(error) } else { FetchError::permanent(error) }
            .with_status(status.as_u16())
            .with_retry_after(retry_after.map(Duration::from_secs)))
    }
}

fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429) || (status.is_server_error() && status.as_u16() != 501)
}
