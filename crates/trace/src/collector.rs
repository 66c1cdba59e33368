//! An in-memory OTLP collector for tests, on a free port.

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

/// A span as received by the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSpan {
    pub service: String,
    pub name: String,
    /// 2 is a server span, 3 a client span.
    pub kind: i32,
    pub trace: Vec<u8>,
    pub span: Vec<u8>,
    /// Empty for a root span.
    pub parent: Vec<u8>,
    pub attributes: Vec<(String, String)>,
    pub failed: bool,
    /// Whether the span ended after it started.
    pub has_length: bool,
}

#[derive(Clone, Debug)]
pub struct Collector {
    pub address: SocketAddr,
    spans: Arc<Mutex<Vec<ReceivedSpan>>>,
}

impl Collector {
    /// Starts a collector that ends with the tokio runtime.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let collector = Self { address: listener.local_addr()?, spans: Arc::default() };
        let service = TraceServiceServer::new(collector.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Ok(collector)
    }

    /// The spans received so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut received = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        for resource_spans in request.into_inner().resource_spans {
            let resource = pairs(&resource_spans.resource.unwrap_or_default().attributes);
            let service = resource.into_iter().find(|(key, _)| key == "service.name").unwrap_or_default().1;
            let spans = resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
            received.extend(spans.map(|span| ReceivedSpan::new(&service, span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl ReceivedSpan {
    fn new(service: &str, span: Span) -> Self {
        Self {
            service: service.to_owned(),
            kind: span.kind,
            attributes: pairs(&span.attributes),
            failed: span.status.is_some_and(|s| s.code == 2),
            has_length: span.end_time_unix_nano > span.start_time_unix_nano,
            name: span.name,
            trace: span.trace_id,
            span: span.span_id,
            parent: span.parent_span_id,
        }
    }
}

fn pairs(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        _ => String::new(),
    };
    attributes.iter().map(|a| (a.key.clone(), text(a))).collect()
}
