//! The webhook over real sockets and TLS.

use super::{
    rotation::{api_server, operator, prepare, webhook},
    *,
};
use crate::cluster::WriteFence;
use bytes::Bytes;
use http::{Method, Request as HttpRequest, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use std::net::SocketAddr;
use tokio::net::TcpStream;

struct RunningWebhook {
    at: SocketAddr,
    kube: gantry_kube_sim::Server,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

impl RunningWebhook {
    async fn new() -> Self {
        let kube = api_server(k8s_openapi::jiff::Timestamp::now());
        prepare(&kube, json!({ "url": "https://127.0.0.1:1/validate" })).await;
        let operator = operator(&kube, "operator", WriteFence::always_open());
        operator.context().caches.of::<crate::cluster::Server>().replace("", Vec::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let lifetime = Duration::from_hours(1);
        let ended = tokio::spawn(operator.webhook(webhook(lifetime), listener, stop.clone()).unwrap());
        let running = Self { at, kube, stop, ended };
        while running.connect("h2").await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        running
    }

    /// A TLS connection like the API server's; `None` while the certificate is missing or untrusted.
    async fn connect(&self, protocol: &str) -> Option<tokio_rustls::client::TlsStream<TcpStream>> {
        use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
        let api: kube::Api<ValidatingWebhookConfiguration> = kube::Api::all(self.kube.client("user", OWN));
        let found = api.get("hook").await.unwrap();
        let bundle = found.webhooks?.first()?.client_config.ca_bundle.clone()?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&bundle.0) {
            roots.add(authority.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.at).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()
    }

    async fn send(&self, method: Method, path: &str, body: impl Into<Bytes>) -> (StatusCode, String) {
        let stream = self.connect("h2").await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = HttpRequest::builder().method(method).uri(path).body(Full::new(body.into())).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let code = answer.status();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(text.to_vec()).unwrap())
    }
}

fn review_body(spec: Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "q1", "operation": "CREATE", "name": "m", "namespace": "ml", "userInfo": {},
            "kind": { "group": "mlops.seldon.io", "version": "v1alpha1", "kind": "Model" },
            "resource": { "group": "mlops.seldon.io", "version": "v1alpha1", "resource": "models" },
            "object": object("Model", "ml/m", spec), "oldObject": null, "dryRun": true, "options": {},
        },
    })
    .to_string()
}

#[tokio::test]
async fn reviews_are_served_over_http1_and_http2() {
    let running = RunningWebhook::new().await;
    let body = review_body(json!({ "storageUri": "gs://x", "server": "nowhere" }));
    let (code, text) = running.send(Method::POST, "/validate?timeout=2s", body.clone()).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &answer["response"]["uid"], &answer["response"]["allowed"]),
        (StatusCode::OK, &json!("q1"), &json!(true))
    );
    assert!(
        answer["response"]["warnings"][0].as_str().unwrap().contains("Server \"nowhere\" not found"),
        "{text}"
    );

    let stream = running.connect("http/1.1").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // Several requests per connection.
    for _ in 0..3 {
        let request =
            HttpRequest::post("/validate").header("host", "hook").body(Full::new(Bytes::from(body.clone())));
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body().collect().await.unwrap();
        sender.ready().await.unwrap();
    }
    running.stop.cancel();
    running.ended.await.unwrap();
}

#[tokio::test]
async fn invalid_bodies_are_rejected() {
    let running = RunningWebhook::new().await;
    let review = |request: Value| {
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
            .to_string()
    };
    let unknown = json!({ "group": "g", "version": "v1", "kind": "K", "resource": "ks" });
    let request = |uid: Value| json!({ "uid": uid, "kind": unknown, "resource": unknown, "operation": "CREATE", "userInfo": {} });
    for (body, code, expected) in [
        (String::new(), 400, "invalid AdmissionReview"),
        ("{".into(), 400, "invalid AdmissionReview"),
        ("[]".into(), 400, "invalid AdmissionReview"),
        ("null".into(), 400, "invalid AdmissionReview"),
        ("{}".into(), 400, "invalid AdmissionReview"),
        (
            json!({ "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview" }).to_string(),
            400,
            "admission.k8s.io/v1beta1",
        ),
        (review(Value::Null), 400, "request is missing"),
        (review(json!({})), 400, "missing field `uid`"),
        (review(request(json!(""))), 400, "request.uid is empty"),
        (review(request(json!(7))), 400, "invalid type: integer"),
        (format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)), 400, "invalid AdmissionReview"),
        ("x".repeat(5 << 20), 413, "exceeds 4 MiB"),
        (review(request(json!("q"))), 200, "\"allowed\":true"),
    ] {
        let (got, text) = running.send(Method::POST, "/validate", body.clone()).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!(got.as_u16(), code, "{shown}: {text}");
        assert!(text.contains(expected), "{shown}: {text}");
    }
    assert_eq!(running.send(Method::GET, "/validate", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(running.send(Method::POST, "/", "").await.0, StatusCode::NOT_FOUND);
    // Idle connections and plain HTTP do not block other requests.
    let silent: Vec<TcpStream> =
        futures::future::join_all((0..20).map(|_| async { TcpStream::connect(running.at).await.unwrap() }))
            .await;
    tokio::io::AsyncWriteExt::write_all(
        &mut TcpStream::connect(running.at).await.unwrap(),
        b"GET / HTTP/1.1\r\n\r\n",
    )
    .await
    .unwrap();
    assert_eq!(
        running.send(Method::POST, "/validate", review_body(json!({ "storageUri": "gs://x" }))).await.0,
        StatusCode::OK
    );
    drop(silent);
    running.stop.cancel();
    running.ended.await.unwrap();
}

#[tokio::test]
async fn endless_body_times_out() {
    let running = RunningWebhook::new().await;
    let stream = running.connect("h2").await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let never = futures::stream::pending::<Result<Frame<Bytes>, std::convert::Infallible>>();
    let request = HttpRequest::post("/validate").body(StreamBody::new(never)).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    running.stop.cancel();
    running.ended.await.unwrap();
}
