//! Files and downloads: bounded in size and time.

use crate::{config::KeySource, jwk::MAX_KEY_SET};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use std::{error::Error as _, io::Read as _, path::Path, sync::Arc, time::Duration};

const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CERTIFICATES: usize = 1 << 20;

/// A whole file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: usize) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut content = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut content).map_err(|e| e.to_string())?;
    if content.len() > limit {
        return Err(format!("is larger than {limit} bytes"));
    }
    Ok(content)
}

/// Downloads a key set. A redirect is an error: the configured server decides which tokens are valid, not another one.
pub(crate) async fn fetch(source: &KeySource) -> Result<Bytes, String> {
    let KeySource::Url { url, ca } = source else { return Err("is not a URL".to_owned()) };
    let fetching = async {
        let uri: Uri = url.parse().map_err(|_| "is not a URL".to_owned())?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(FETCH_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(ca.as_deref())?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(0)
            .build::<_, Empty<Bytes>>(connector);
        let request = Request::get(uri)
            .header(header::ACCEPT, "application/json")
            .body(Empty::new())
            .map_err(|e| e.to_string())?;
        let response = client.request(request).await.map_err(|e| match e.source() {
            Some(source) => format!("{e}: {source}"),
            None => e.to_string(),
        })?;
        if response.status() != StatusCode::OK {
            return Err(format!("the server responded with {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_KEY_SET).collect().await;
        Ok(body.map_err(|e| e.to_string())?.to_bytes())
    };
    let late = |_| Err(format!("no response within {} s", FETCH_TIMEOUT.as_secs()));
    tokio::time::timeout(FETCH_TIMEOUT, fetching).await.unwrap_or_else(late)
}

/// Public roots, and those of the file. The file is read for each download, so that it can be replaced.
fn tls(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca {
        let wrong = |error: String| format!("ca {}: {error}", path.display());
        let pem = read(path, MAX_CERTIFICATES).map_err(wrong)?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
            roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
