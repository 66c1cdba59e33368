//! Credentials applied to a request.

use std::sync::Arc;

use base64::Engine as _;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::azure::{AzureAuthorizer, AzureCredentialProvider};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::gcp::GcpCredentialProvider;
use url::Url;

use crate::error::FetchError;
use crate::secret::Secret;

/// Authorization of requests to one source.
pub(crate) enum Auth {
    /// Public.
    None,
    /// Fixed headers, sent to one origin only.
    Headers(HeaderMap),
    /// AWS signature, version 4; without a provider, anonymous.
    S3 { provider: Option<AwsCredentialProvider>, region: String },
    /// OAuth bearer token.
    Gs(Option<GcpCredentialProvider>),
    /// Shared key, shared access signature or bearer token.
    Azure { provider: Option<AzureCredentialProvider>, account: String },
}

impl Auth {
    /// A bearer token.
    pub(crate) fn bearer(token: &str) -> Result<Self, FetchError> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, sensitive(&format!("Bearer {token}"))?);
        Ok(Self::Headers(headers))
    }

    /// HTTP headers of a secret; sent only to the host that the secret names.
    pub(crate) fn http(secret: Option<&Secret>, url: &Url) -> Result<Self, FetchError> {
        let Some(secret) = secret.filter(|secret| secret.has_any("http.")) else { return Ok(Self::None) };
        let bound = secret.get("http.url").unwrap_or_default();
        let bound_host = bound
            .split_once("://")
            .map_or(bound, |(_, rest)| rest)
            .split(['/', ':'])
            .next()
            .unwrap_or_default();
        if bound_host.is_empty() || !url.host_str().is_some_and(|host| host.eq_ignore_ascii_case(bound_host))
        {
            return Err(FetchError::denied("the storage secret does not belong to this host")
                .remedy("set `url` (or https-host) of the secret to the host of storageUri"));
        }
        let mut headers = HeaderMap::new();
        if let Some(token) = secret.get("http.token") {
            headers.insert(AUTHORIZATION, sensitive(&format!("Bearer {token}"))?);
        }
        for (name, value) in header_list(secret.get("http.headers").unwrap_or_default()) {
            let name: HeaderName = name
                .parse()
                .map_err(|_| FetchError::permanent("a header name in the storage secret is not valid"))?;
            headers.insert(name, sensitive(&value)?);
        }
        Ok(Self::Headers(headers))
    }

    /// S3 announces the MD5 of an object as its `ETag` unless it was uploaded in parts.
    pub(crate) fn etag_is_md5(&self) -> bool {
        matches!(self, Self::S3 { .. })
    }

    /// Signs a GET request.
    pub(crate) async fn apply(
        &self,
        url: Url,
        mut headers: HeaderMap,
    ) -> Result<(Url, HeaderMap), FetchError> {
        match self {
            Self::None
            | Self::Gs(None)
            | Self::S3 { provider: None, .. }
            | Self::Azure { provider: None, .. } => {}
            Self::Headers(fixed) => headers.extend(fixed.clone()),
            Self::Gs(Some(provider)) => {
                let credential =
                    provider.get_credential().await.map_err(|error| crate::cloud::store_error(&error))?;
                if !credential.bearer.is_empty() {
                    headers.insert(AUTHORIZATION, sensitive(&format!("Bearer {}", credential.bearer))?);
                }
            }
            Self::S3 { provider: Some(provider), region } => {
                let credential =
                    provider.get_credential().await.map_err(|error| crate::cloud::store_error(&error))?;
                let mut request = unsigned(&url, headers)?;
                AwsAuthorizer::new(&credential, "s3", region)
                    .try_authorize(&mut request, None)
                    .map_err(|_| FetchError::permanent("the request cannot be signed"))?;
                return Ok(signed(&url, request));
            }
            Self::Azure { provider: Some(provider), account } => {
                let credential =
                    provider.get_credential().await.map_err(|error| crate::cloud::store_error(&error))?;
                let mut request = unsigned(&url, headers)?;
                AzureAuthorizer::new(&credential, account)
                    .try_authorize(&mut request)
                    .map_err(|_| FetchError::permanent("the request cannot be signed"))?;
                return Ok(signed(&url, request));
            }
        }
        Ok((url, headers))
    }
}

fn unsigned(url: &Url, headers: HeaderMap) -> Result<HttpRequest, FetchError> {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() =
        url.as_str().parse().map_err(|_| FetchError::permanent("the URL cannot be sent in a request"))?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn signed(url: &Url, request: HttpRequest) -> (Url, HeaderMap) {
    let mut url = url.clone();
    url.set_query(request.uri().query());
    let (parts, _) = request.into_parts();
    let mut headers = parts.headers;
    if let Some(value) = headers.get_mut(AUTHORIZATION) {
        value.set_sensitive(true);
    }
    (url, headers)
}

fn sensitive(text: &str) -> Result<HeaderValue, FetchError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| FetchError::permanent("a credential has a character that cannot be sent in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `{"Name": "value"}` as KServe writes it, or `Name,value,Name,value` as rclone does.
fn header_list(text: &str) -> Vec<(String, String)> {
    if let Ok(map) = serde_json::from_str::<std::collections::BTreeMap<String, String>>(text) {
        return map.into_iter().collect();
    }
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    fields
        .chunks_exact(2)
        .filter_map(|pair| Some(((*pair.first()?).to_owned(), (*pair.get(1)?).to_owned())))
        .collect()
}

/// The account key of Azure must be base64; the signing code would fail later and less clearly.
pub(crate) fn is_base64(text: &str) -> bool {
    base64::engine::general_purpose::STANDARD.decode(text).is_ok()
}

/// Credentials that never change.
pub(crate) fn fixed<T>(credential: T) -> Arc<object_store::StaticCredentialProvider<T>>
where
    T: std::fmt::Debug + Send + Sync,
{
    Arc::new(object_store::StaticCredentialProvider::new(credential))
}
