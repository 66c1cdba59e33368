//! Validating admission webhook: reports at write time what CEL cannot check, because it depends on other objects.
//!
//! ```text
//! API server ──AdmissionReview──▶ server ──▶ review ──▶ validate(request, caches) ──▶ allowed, rejected, warnings
//!      ▲                            ▲                     references · immutable_fields
//!      └── caBundle ─ cert_rotator ─┘ certificate         (caches only)
//!                        └── rotation_policy: when to issue, publish, serve and prune certificates
//! ```
//!
//! Optional: its failure policy is `Ignore`, and required rules are also in the CRDs or controllers. A dangling
//! reference is only a warning, because manifests are applied in any order.

mod cert_rotator;
mod certificate;
mod immutable_fields;
mod references;
mod registration;
mod review;
mod rotation_policy;
mod server;
#[cfg(test)]
mod tests;
mod validate;

pub(crate) use cert_rotator::{CertRotator, Registration, RotatedCertificate, with_timeout};
pub use certificate::issue;
pub use review::{AdmissionRequest, Decision};
pub use rotation_policy::{IssuedCertificate, RotationState, RotationStep, StoredCertificates, next_step};
pub use validate::validate;
pub(crate) use validate::validate_kind;

use crate::{Operator, context::Context, https};
use gantry_tls::{InMemoryCertificate, Server};
use registration::WebhookRegistration;
use server::AdmissionHandler;
use std::{sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Kubernetes objects of the webhook.
#[derive(Clone, Debug)]
pub struct WebhookResources {
    /// The operator's namespace, with the Secret.
    pub namespace: String,
    /// Name of the Secret shared by the replicas.
    pub secret: String,
    /// Name of the `ValidatingWebhookConfiguration`.
    pub configuration: String,
}

#[derive(Clone, Debug)]
pub struct Webhook {
    pub resources: WebhookResources,
    /// Lifetime of a certificate; it is replaced after two thirds of it.
    pub lifetime: Duration,
}

/// A shorter certificate could expire before its successor is distributed.
pub const MIN_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(15);

impl Operator {
    /// Serves the webhook until stopped, with a certificate that it issues and rotates itself.
    pub fn webhook(
        &self,
        webhook: Webhook,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + 'static + use<>, String> {
        let certificate = InMemoryCertificate::default();
        let tls = Server::with_certificate(certificate.clone(), None, &["h2", "http/1.1"])
            .map_err(|e| e.to_string())?;
        let context: Arc<Context> = self.context();
        let rotator = self.webhook_rotator(webhook, certificate);
        Ok(async move {
            tokio::select! {
                () = rotator.run() => {}
                () = https::serve(listener, tls, Arc::new(AdmissionHandler::new(context)), stop) => {}
            }
        })
    }

    fn webhook_rotator(
        &self,
        webhook: Webhook,
        served: InMemoryCertificate,
    ) -> CertRotator<WebhookRegistration> {
        let (client, context) = (self.client(), self.context());
        let registration = WebhookRegistration::new(client.clone(), &webhook.resources);
        let certificate = RotatedCertificate {
            namespace: webhook.resources.namespace,
            secret: webhook.resources.secret,
            lifetime: webhook.lifetime,
            expiry: context.metrics.webhook_certificate(),
        };
        CertRotator::new(client, &context, certificate, registration, served)
    }
}
