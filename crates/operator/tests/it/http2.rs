//! Connections to the API server.

use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kube::{Client, Config, client::Body};
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Watches of one namespace.
const WATCHES: usize = 15;

/// An API server whose watches never end, and the number of its open connections.
async fn server(protocols: &[&str]) -> (Config, Arc<AtomicUsize>) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.root_cert = Some(vec![own.cert.der().to_vec()]);
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, open) = (acceptor.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                open.fetch_add(1, Ordering::SeqCst);
                let serving = auto::Builder::new(TokioExecutor::new());
                let _ = serving.serve_connection(TokioIo::new(stream), service_fn(watch)).await;
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (config, open)
}

async fn watch(
    _: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = bytes::Bytes, Error = Infallible>>, Infallible> {
    let first = futures::stream::iter([Ok(Frame::data(bytes::Bytes::from_static(b"{}\n")))]);
    Ok(Response::new(StreamBody::new(first.chain(futures::stream::pending()))))
}

/// Opens the watches of a namespace, all at the same time.
async fn watches(client: &Client) -> Vec<Response<Body>> {
    let opening = (0..WATCHES).map(|number| {
        let request = Request::get(format!("/apis/kind{number}?watch=true")).body(Body::empty()).unwrap();
        client.send(request)
    });
    futures::future::try_join_all(opening).await.unwrap()
}

async fn until_open(open: &AtomicUsize, expected: usize) {
    while open.load(Ordering::SeqCst) != expected {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn watches_share_one_connection() {
    let (config, open) = server(&["h2", "http/1.1"]).await;
    let client = gantry_operator::connect(config, "test").unwrap();
    let watches = watches(&client).await;
    assert_eq!(watches.len(), WATCHES);
    // Connections that were opened before the first one had negotiated HTTP/2 are closed.
    until_open(&open, 1).await;
}

#[tokio::test]
async fn api_server_without_http2_gets_a_connection_for_each_watch() {
    let (config, open) = server(&[]).await;
    let client = gantry_operator::connect(config, "test").unwrap();
    let watches = watches(&client).await;
    until_open(&open, watches.len()).await;
}
