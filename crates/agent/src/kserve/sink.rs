//! The receiver of events, over HTTP or HTTPS.

use bytes::Bytes;
use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use std::{error::Error as _, sync::Arc, time::Duration};

/// Bytes of a response that are read, so that its connection can be used again.
const MAX_RESPONSE: usize = 64 << 10;

pub(super) struct Sink {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    timeout: Duration,
}

impl Sink {
    /// `ca` has certificates in PEM that are trusted besides the public ones.
    pub(super) fn new(url: &str, ca: Option<&[u8]>, timeout: Duration) -> Result<Self, String> {
        let wrong = || format!("\"{}\" is no URL of a sink: use http:// or https://", url.escape_debug());
        let url: Uri = url.parse().map_err(|_| wrong())?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(ca)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { client, url, timeout })
    }

    /// Posts an event. The error is for the log.
    pub(super) async fn send(&self, headers: HeaderMap, body: Bytes) -> Result<(), String> {
        let mut request = Request::post(self.url.clone()).body(Full::new(body)).map_err(|e| e.to_string())?;
        *request.headers_mut() = headers;
        let sending = async {
            let cause = |e: hyper_util::client::legacy::Error| match e.source() {
                Some(source) => format!("{e}: {source}"),
                None => e.to_string(),
            };
            let response = self.client.request(request).await.map_err(cause)?;
            let status = response.status();
            let _ = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
            if status.is_success() { Ok(()) } else { Err(format!("the sink responded with {status}")) }
        };
        let sent = tokio::time::timeout(self.timeout, sending).await;
        sent.unwrap_or_else(|_| Err(format!("the sink did not respond within {:?}", self.timeout)))
            .map_err(|error| format!("{}: {error}", self.url))
    }
}

fn tls(ca: Option<&[u8]>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for certificate in ca.map(CertificateDer::pem_slice_iter).into_iter().flatten() {
        let wrong = |error: String| format!("the certificates of the sink: {error}");
        let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
        roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
