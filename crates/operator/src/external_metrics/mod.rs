//! The external metrics API (`external.metrics.k8s.io/v1beta1`): the latency of Algorithms, for their autoscalers.
//!
//! ```text
//! autoscaler ─▶ API server ──client certificate, X-Remote-User──▶ server ─▶ front_proxy: who asks
//!                   ▲                                               ├────▶ access: may they (SubjectAccessReview)
//!                   └── APIService: caBundle ─ CertRotator          └────▶ latency: statistics of gateways, or Prometheus
//! ```
//!
//! Only the leader has statistics: it points the `EndpointSlice` of the Service to itself. An `APIService` of another provider
//! is left alone.

mod access;
mod api;
mod front_proxy;
mod latency;
mod leader_endpoint;
mod registration;
mod server;

pub(crate) use api::labels;
pub use api::{API_SERVICE, METRIC};

use crate::{
    Operator,
    admission::{CertRotator, RotatedCertificate},
    evidence::EvidenceSources,
    https,
};
use access::Access;
use front_proxy::FrontProxy;
use gantry_tls::{InMemoryCertificate, InMemoryClientCa, Server};
use latency::Latencies;
use leader_endpoint::LeaderEndpoint;
use registration::ApiServiceRegistration;
use server::MetricsHandler;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Where the API is served, and by which objects the API server finds it.
#[derive(Clone, Debug)]
pub struct ExternalMetrics {
    /// The operator's namespace, with the Service and the Secret.
    pub namespace: String,
    /// Name of the Service that the `APIService` names.
    pub service: String,
    /// Name of the Secret with the certificate, shared by the replicas.
    pub secret: String,
    /// Lifetime of a certificate; it is replaced after two thirds of it.
    pub lifetime: Duration,
    /// Address of this pod, for the `EndpointSlice` of the Service; `None` where the Service has endpoints of its own.
    pub pod_ip: Option<IpAddr>,
}

impl Operator {
    /// Serves the API until stopped, with a certificate that it issues and rotates itself.
    pub fn external_metrics(
        &self,
        settings: &ExternalMetrics,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + 'static + use<>, String> {
        let (certificate, client_ca) = (InMemoryCertificate::default(), InMemoryClientCa::default());
        let tls = Server::with_certificate(certificate.clone(), Some(client_ca.clone()), &["h2", "http/1.1"]);
        let tls = tls.map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        let (context, client) = (self.context(), self.client());
        let rotated = RotatedCertificate {
            namespace: settings.namespace.clone(),
            secret: settings.secret.clone(),
            lifetime: settings.lifetime,
            expiry: context.metrics.external_metrics_certificate(),
        };
        let registration = ApiServiceRegistration::new(client.clone(), settings);
        let rotator = CertRotator::new(client.clone(), &context, rotated, registration, certificate);
        let front_proxy = Arc::new(FrontProxy::new(client.clone(), client_ca));
        let endpoint = LeaderEndpoint::new(client.clone(), context.fence.clone(), settings, port);
        let sources = EvidenceSources::new(Arc::clone(&context), self.evidence_provider());
        let handler = MetricsHandler {
            front_proxy: Arc::clone(&front_proxy),
            access: Access::new(client),
            latencies: Latencies::new(context, sources),
        };
        Ok(async move {
            tokio::select! {
                () = rotator.run() => {}
                () = front_proxy.run() => {}
                () = endpoint.run() => {}
                () = https::serve(listener, tls, Arc::new(handler), stop) => {}
            }
        })
    }
}
