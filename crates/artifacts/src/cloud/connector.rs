//! Routes `object_store` requests through our client, so that the network policy applies to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use url::Url;

use crate::error::FetchError;
use crate::net::{Client, refusal};
use crate::uri::redact;

/// A page of a listing has at most 5,000 keys of 1 KiB; tokens are far smaller.
const MAX_ANSWER: usize = 16 << 20;

/// Stores list 1,000 files and more at once; even at 50, an artifact within its limit needs no more answers than this.
fn max_responses(max_files: usize) -> usize {
    100 + max_files / 50
}

/// Our client as an `object_store` connector.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) client: Arc<Client>,
    /// Whether the addresses where clouds serve instance credentials may be reached.
    pub(super) instance_credentials: bool,
    max_responses: usize,
    answers: Arc<AtomicUsize>,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.exchange(request).await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))
    }
}

impl Connector {
    pub(super) fn new(client: Arc<Client>, instance_credentials: bool, max_files: usize) -> Self {
        Self {
            client,
            instance_credentials,
            max_responses: max_responses(max_files),
            answers: Arc::default(),
        }
    }

    /// Counts an answer of the store, and stops a listing without end.
    fn count(&self) -> Result<(), FetchError> {
        if self.answers.fetch_add(1, Ordering::Relaxed) < self.max_responses {
            return Ok(());
        }
        Err(FetchError::too_large("the listing of the store does not end")
            .remedy("point storageUri at the folder of one model"))
    }

    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, FetchError> {
        let (parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string())
            .map_err(|_| FetchError::permanent("the endpoint of the store is not a URL"))?;
        let place = redact(&url);
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let exempt = self.instance_credentials && is_credential_endpoint(&url);
        let sent = self.client.send(parts.method, &url, parts.headers, body, exempt).await;
        let (status, headers, body) = sent.map_err(|error| error.at(&place))?;
        if !status.is_success() {
            return Err(refusal(status, &headers, body).await.at(place));
        }
        let body = body.collect(MAX_ANSWER).await.map_err(|error| error.at(&place))?;
        self.count().map_err(|error| error.at(&place))?;
        let mut response = HttpResponse::new(HttpResponseBody::from(Bytes::from(body)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(response)
    }
}

/// Credential endpoints of AWS, Google and Azure for instances and containers.
fn is_credential_endpoint(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let path = url.path();
    match host {
        "169.254.169.254" | "[fd00:ec2::254]" => {
            path == "/latest/api/token"
                || path.starts_with("/latest/meta-data/iam/security-credentials")
                || path.starts_with("/metadata/identity/oauth2/token")
                || path.starts_with("/computeMetadata/v1/instance/service-accounts/")
        }
        "metadata.google.internal" | "metadata" => {
            path.starts_with("/computeMetadata/v1/instance/service-accounts/")
        }
        "169.254.170.2" | "169.254.170.23" | "[fd00:ec2::23]" => true,
        _ => false,
    }
}

/// Our own error inside one of `object_store`, or a description without its text, which may quote a credential.
pub(crate) fn store_error(error: &object_store::Error) -> FetchError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(ours) = current.downcast_ref::<FetchError>() {
            return ours.clone();
        }
        cause = current.source();
    }
    match error {
        object_store::Error::NotFound { .. } => {
            FetchError::permanent("not found").remedy("check the spelling of storageUri")
        }
        object_store::Error::InvalidPath { .. } => {
            FetchError::permanent("the store has an object whose name cannot be a file name")
                .remedy("rename it or move it out of this folder")
        }
        object_store::Error::Generic { store, .. } => FetchError::permanent(format!(
            "the answer of {store} could not be read, or its credentials are malformed"
        ))
        .remedy("check the endpoint and the credentials"),
        _ => FetchError::permanent("the object store rejected the request"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_credentials_are_exempt_from_the_policy() {
        for (url, exempt) in [
            ("http://169.254.169.254/latest/api/token", true),
            ("http://169.254.169.254/latest/meta-data/iam/security-credentials/role", true),
            ("http://169.254.169.254/latest/user-data", false),
            ("http://169.254.169.254/metadata/identity/oauth2/token?resource=x", true),
            ("http://169.254.169.254/metadata/instance", false),
            (
                "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token",
                true,
            ),
            ("http://metadata.google.internal/computeMetadata/v1/instance/attributes/ssh-keys", false),
            ("http://169.254.170.2/v2/credentials/x", true),
            ("http://10.0.0.1/latest/api/token", false),
            ("http://127.0.0.1/latest/api/token", false),
        ] {
            assert_eq!(is_credential_endpoint(&Url::parse(url).unwrap()), exempt, "{url}");
        }
    }

    #[test]
    fn foreign_errors_are_described_without_their_text() {
        let text = "CANARY in the text of a parser";
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        assert!(!format!("{0} {0:?}", store_error(&error)).contains("CANARY"));
        let ours = FetchError::denied("ours");
        let wrapped = HttpError::new(HttpErrorKind::Unknown, ours.clone());
        let error = object_store::Error::Generic { store: "S3", source: Box::new(wrapped) };
        assert_eq!(store_error(&error), ours);
    }
}
