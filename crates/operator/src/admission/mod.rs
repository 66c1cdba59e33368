//! Admission: what CEL cannot say about an object, because it depends on other objects, said while it is written.
//!
//! ```text
//! API server ──AdmissionReview──▶ serve ──▶ review ──▶ judge(request, world) ──▶ allowed, refused, warned
//!      ▲                            ▲                     references · fixed
//!      └── caBundle ── keeper ──────┘ certificate         (caches only)
//!                        └── keeping: when to make one, announce it, show it, forget it
//! ```
//!
//! Nothing depends on it. The API server goes on without it (`failurePolicy: Ignore`), every rule that must hold is in
//! the kinds' schemas or in the controllers too, and a reference to something that is not there yet is worth a warning
//! and no more: files are applied in any order.

mod certificate;
mod fixed;
mod judge;
mod keeper;
mod keeping;
mod references;
mod review;
mod serve;
#[cfg(test)]
mod tests;

pub use certificate::issue;
pub use judge::judge;
pub(crate) use judge::judge_kind;
pub use keeper::Names;
pub use keeping::{Pair, Seen, Step, Stored, step};
pub use review::{Request, Verdict};

use crate::{Operator, context::Context};
use gantry_tls::{InMemoryCertificate, Server};
use keeper::Keeper;
use std::{sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the webhook is told.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The `ValidatingWebhookConfiguration` and the Secret.
    pub names: Names,
    /// How long a certificate is good for; it is replaced after two thirds of that.
    pub lifetime: Duration,
}

/// The shortest lifetime: a shorter one could end before everybody has seen the next.
pub const SHORTEST: Duration = Duration::from_secs(15);

impl Operator {
    /// Answers the API server's questions, with a certificate that it makes and renews by itself, until it is told to
    /// stop. The error says why it cannot even begin.
    pub fn webhook(
        &self,
        webhook: Webhook,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + 'static + use<>, String> {
        let shown = InMemoryCertificate::default();
        let tls = Server::with_certificate(shown.clone(), &["h2", "http/1.1"]).map_err(|e| e.to_string())?;
        let context: Arc<Context> = self.context();
        let keeper = Keeper::new(self.client(), &context, webhook, shown);
        Ok(async move {
            tokio::select! {
                () = keeper.run() => {}
                () = serve::serve(listener, tls, context, stop.clone()) => {}
            }
        })
    }
}
