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
mod review;
mod rotation_policy;
mod server;
#[cfg(test)]
mod tests;
mod validate;

pub use cert_rotator::WebhookResources;
pub use certificate::issue;
pub use review::{AdmissionRequest, Decision};
pub use rotation_policy::{IssuedCertificate, RotationState, RotationStep, StoredCertificates, next_step};
pub use validate::validate;
pub(crate) use validate::validate_kind;

use crate::{Operator, context::Context};
use cert_rotator::CertRotator;
use gantry_tls::{InMemoryCertificate, Server};
use std::{sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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
        let tls =
            Server::with_certificate(certificate.clone(), &["h2", "http/1.1"]).map_err(|e| e.to_string())?;
        let context: Arc<Context> = self.context();
        let rotator = CertRotator::new(self.client(), &context, webhook, certificate);
        Ok(async move {
            tokio::select! {
                () = rotator.run() => {}
                () = server::serve(listener, tls, context, stop.clone()) => {}
            }
        })
    }
}
