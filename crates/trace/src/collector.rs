//! A collector for tests: it listens on a free port and keeps what it is told.

use crate::otlp::{self, Any};
use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context as TaskContext, Poll},
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::Service,
    server::{Grpc, NamedService, UnaryService},
    transport::server::TcpIncoming,
};
use tonic_prost::ProstCodec;

/// A span as a collector sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which part told it.
    pub service: String,
    /// What it is called.
    pub name: String,
    /// The number of its kind: 2 is a server's, 3 a client's.
    pub kind: i32,
    /// The trace's id.
    pub trace: Vec<u8>,
    /// Its own id.
    pub span: Vec<u8>,
    /// The id of the span that it belongs to; empty for the first.
    pub parent: Vec<u8>,
    /// What was said about it.
    pub attributes: Vec<(String, String)>,
    /// Whether it went wrong.
    pub failed: bool,
    /// Whether it ended after it began.
    pub has_length: bool,
}

/// Something that takes spans.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Where it listens.
    pub address: SocketAddr,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Collector {
    /// Starts one; it ends with the runtime.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let told = Arc::default();
        let service = Takes(Arc::clone(&told));
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
        Ok(Self { address, told })
    }

    /// What it was told so far.
    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Clone)]
struct Takes(Arc<Mutex<Vec<Told>>>);

impl NamedService for Takes {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for Takes {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Answering<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let codec: ProstCodec<otlp::ExportResponse, otlp::ExportRequest> = ProstCodec::default();
            Ok(Grpc::new(codec).unary(this, request).await)
        })
    }
}

impl UnaryService<otlp::ExportRequest> for Takes {
    type Response = otlp::ExportResponse;
    type Future = Answering<Response<Self::Response>, Status>;

    fn call(&mut self, request: Request<otlp::ExportRequest>) -> Self::Future {
        let told = request.into_inner().resource_spans.into_iter().flat_map(|from| {
            let named = from.resource.unwrap_or_default().attributes;
            let service =
                words(&named).into_iter().find(|(key, _)| key == "service.name").unwrap_or_default().1;
            let spans = from.scope_spans.into_iter().flat_map(|s| s.spans);
            spans.map(move |span| one(&service, span)).collect::<Vec<_>>()
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(told);
        Box::pin(std::future::ready(Ok(Response::new(otlp::ExportResponse::default()))))
    }
}

fn one(service: &str, span: otlp::Span) -> Told {
    Told {
        service: service.to_owned(),
        kind: span.kind,
        attributes: words(&span.attributes),
        failed: span.status.is_some_and(|s| s.code == 2),
        has_length: span.end_time_unix_nano > span.start_time_unix_nano,
        name: span.name,
        trace: span.trace_id,
        span: span.span_id,
        parent: span.parent_span_id,
    }
}

fn words(pairs: &[otlp::KeyValue]) -> Vec<(String, String)> {
    let word = |value: Option<Any>| match value {
        Some(Any::Text(text)) => text,
        Some(Any::Int(number)) => number.to_string(),
        Some(Any::Bool(is)) => is.to_string(),
        None => String::new(),
    };
    pairs.iter().map(|p| (p.key.clone(), word(p.value.clone().and_then(|v| v.value)))).collect()
}
