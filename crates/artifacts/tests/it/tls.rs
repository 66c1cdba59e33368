//! HTTPS with a test CA.

use std::net::IpAddr;
use std::sync::Arc;

use gantry_artifacts::{ErrorKind, Resolve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::Harness;

const AUTHORITY: &[u8] = include_bytes!("fixtures/ca.pem");

/// Resolves every name to loopback.
struct Here;

#[async_trait::async_trait]
impl Resolve for Here {
    async fn resolve(&self, _host: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(vec!["127.0.0.1".parse().unwrap()])
    }
}

/// A server with the certificate of `models.example` that gives the same answer to everything.
async fn serve(answer: String) -> u16 {
    let certificates = CertificateDer::pem_slice_iter(include_bytes!("fixtures/server.pem"))
        .collect::<Result<_, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("fixtures/server.key")).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

fn harness(authority: Option<&[u8]>) -> Harness {
    Harness::with(|config| {
        config.resolver = Arc::new(Here);
        config.extra_roots_pem = authority.map(<[u8]>::to_vec);
    })
}

#[tokio::test]
async fn certificate_ca_and_name_are_verified() {
    let port = serve("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nmodel".into()).await;
    let fetched =
        harness(Some(AUTHORITY)).fetch(&format!("https://models.example:{port}/m.bin")).await.unwrap();
    assert_eq!(fetched.bytes, 5);
    for (authority, host) in
        [(None, "models.example"), (Some(AUTHORITY), "other.example"), (Some(AUTHORITY), "127.0.0.1")]
    {
        let error = harness(authority).fetch(&format!("https://{host}:{port}/m.bin")).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Permanent && error.to_string().contains("SSL_CERT_FILE"),
            "{host}: {error}"
        );
    }
    // Unencrypted text where TLS is expected.
    let plain = crate::server::Server::script([crate::server::Response::ok("x")]).await;
    assert!(
        harness(Some(AUTHORITY))
            .fetch(&format!("https://models.example:{}/m.bin", plain.port()))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn redirect_to_plaintext_http_is_rejected() {
    let port = serve(
        "HTTP/1.1 302 Found\r\nlocation: http://models.example/m.bin\r\ncontent-length: 0\r\n\r\n".into(),
    )
    .await;
    let error =
        harness(Some(AUTHORITY)).fetch(&format!("https://models.example:{port}/m.bin")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("unencrypted"), "{error}");
}

#[tokio::test]
async fn invalid_ca_file_is_reported_at_startup() {
    let dir = tempfile::tempdir().unwrap();
    let start = |change: &dyn Fn(&mut gantry_artifacts::Config)| {
        gantry_artifacts::Fetcher::new(crate::config(dir.path(), |config| change(config)))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(start(&|config| config.extra_roots_pem = Some(broken.to_vec())).contains("root certificates"));
    assert!(
        start(&|config| config.env = crate::env(&[("SSL_CERT_FILE", "/nonexistent.pem")]))
            .contains("SSL_CERT_FILE")
    );
}
