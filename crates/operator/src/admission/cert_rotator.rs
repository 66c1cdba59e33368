//! Rotates a serving certificate: shares it in a Secret, publishes its CA to the API server, serves the current one.

use super::{
    certificate,
    rotation_policy::{self, RotationState, RotationStep, StoredCertificates},
};
use crate::{
    cluster::{ApiError, WriteFence},
    context::{Clock, Context},
};
use gantry_tls::InMemoryCertificate;
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use prometheus_client::metrics::gauge::Gauge;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Owns the Secret.
const FIELD_MANAGER: &str = "gantry/webhook";
const SECRET_KEY: &str = "certificates.json";
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// By which object the API server finds a server of ours, with the CA of its certificate.
pub(crate) trait Registration: Send + Sync + 'static {
    /// The server, in log lines.
    const NAME: &'static str;
    type Found: Send + Sync;

    fn read(&self) -> impl Future<Output = Result<Self::Found, String>> + Send;

    /// Host names that the API server expects in the certificate; an error when there are none.
    fn hosts(&self, found: &Self::Found) -> Result<Vec<String>, String>;

    /// The published CA; empty without one.
    fn bundle(&self, found: &Self::Found) -> String;

    fn publish(&self, found: &Self::Found, bundle: &str) -> impl Future<Output = Result<(), String>> + Send;
}

/// Where the certificate is stored, and how long it is valid.
#[derive(Clone, Debug)]
pub(crate) struct RotatedCertificate {
    pub(crate) namespace: String,
    /// Name of the Secret shared by the replicas.
    pub(crate) secret: String,
    pub(crate) lifetime: Duration,
    /// When the served certificate expires, as Unix time.
    pub(crate) expiry: Gauge,
}

pub(crate) struct CertRotator<R> {
    secrets: Api<Secret>,
    registration: R,
    certificate: RotatedCertificate,
    served: InMemoryCertificate,
    fence: WriteFence,
    clock: Clock,
}

#[derive(Default)]
struct RotatorState {
    /// The last observed `caBundle` and when it was first observed.
    bundle: Option<(String, Timestamp)>,
    /// The served certificate.
    certificate: String,
    /// The last logged error.
    logged_error: String,
}

impl<R: Registration> CertRotator<R> {
    pub(crate) fn new(
        client: Client,
        context: &Arc<Context>,
        certificate: RotatedCertificate,
        registration: R,
        served: InMemoryCertificate,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client, &certificate.namespace),
            registration,
            certificate,
            served,
            fence: context.fence.clone(),
            clock: Arc::clone(&context.clock),
        }
    }

    /// Never returns: errors are logged and retried.
    pub(crate) async fn run(self) {
        let mut state = RotatorState::default();
        let period = (self.certificate.lifetime / 120).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        loop {
            let outcome = self.reconcile(&mut state).await;
            let is_settled = !matches!(outcome, Ok(true));
            let error = outcome.err().unwrap_or_default();
            // Repeated errors are logged once.
            if error != state.logged_error {
                if error.is_empty() {
                    tracing::info!("certificate rotation of the {} recovered", R::NAME);
                } else {
                    tracing::warn!("certificate rotation of the {} failed: {error}", R::NAME);
                }
                state.logged_error = error;
            }
            if is_settled {
                tokio::time::sleep(period).await;
            }
        }
    }

    /// Serves the certificate of the Secret and, as leader, takes the next rotation step. `true` when it took one.
    async fn reconcile(&self, state: &mut RotatorState) -> Result<bool, String> {
        let secret = self.secret().await?;
        let stored = secret.as_ref().map(read).transpose();
        if let Ok(Some(Some(stored))) = &stored {
            self.serve(stored, state)?;
        }
        if self.fence.remaining().is_none() {
            return stored.map(|_| false);
        }
        let stored = stored.unwrap_or_else(|error| {
            tracing::warn!("{error}; issuing a new certificate of the {}", R::NAME);
            None
        });
        let stored = stored.flatten();
        let found = self.registration.read().await?;
        let names = self.registration.hosts(&found)?;
        let now = (self.clock)();
        let bundle = self.registration.bundle(&found);
        let since = match &state.bundle {
            Some((known, since)) if *known == bundle => *since,
            _ => now,
        };
        state.bundle = Some((bundle.clone(), since));
        let rotation = RotationState {
            stored: stored.as_ref(),
            bundle: &bundle,
            since: Some(since),
            names: &names,
            now,
        };
        let issue = || certificate::issue(&names, now, self.certificate.lifetime);
        let next = match (rotation_policy::next_step(&rotation), stored) {
            (RotationStep::Wait, _) => return Ok(false),
            (RotationStep::PublishBundle(bundle), _) => {
                self.registration.publish(&found, &bundle).await?;
                tracing::info!("published the caBundle of the {}", R::NAME);
                return Ok(true);
            }
            (RotationStep::PrepareNext, Some(stored)) => stored.with_next(issue()?),
            (RotationStep::Promote, Some(stored)) => stored.promoted(),
            (RotationStep::PruneRetired, Some(stored)) => stored,
            (
                RotationStep::Issue
                | RotationStep::PrepareNext
                | RotationStep::Promote
                | RotationStep::PruneRetired,
                _,
            ) => StoredCertificates::new(issue()?),
        };
        let next = next.pruned(now);
        self.write(secret, &next).await?;
        self.serve(&next, state)?;
        Ok(true)
    }

    fn serve(&self, stored: &StoredCertificates, state: &mut RotatorState) -> Result<(), String> {
        let serving = &stored.serving;
        if serving.certificate == state.certificate {
            return Ok(());
        }
        let source = format!("Secret {}", self.certificate.secret);
        self.served.set(&source, &serving.certificate, &serving.key).map_err(|e| e.to_string())?;
        state.certificate.clone_from(&serving.certificate);
        self.certificate.expiry.set(serving.until.as_second());
        tracing::info!(until = %serving.until, "serving a new certificate of the {}", R::NAME);
        Ok(())
    }

    async fn secret(&self) -> Result<Option<Secret>, String> {
        let name = &self.certificate.secret;
        with_timeout(self.secrets.get_opt(name))
            .await
            .map_err(|e| format!("failed to read Secret {name}: {e}"))
    }

    /// The resource version makes it a compare-and-swap: of two concurrent writers, one fails.
    async fn write(&self, secret: Option<Secret>, stored: &StoredCertificates) -> Result<(), String> {
        let name = &self.certificate.secret;
        let failed = |e: ApiError| format!("failed to write Secret {name}: {e}");
        let text = serde_json::to_vec(stored).map_err(|e| e.to_string())?;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        if let Some(mut secret) = secret {
            secret.data.get_or_insert_default().insert(SECRET_KEY.into(), ByteString(text));
            with_timeout(self.secrets.replace(name, &params, &secret)).await.map_err(failed)?;
        } else {
            let secret = Secret {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                data: Some(BTreeMap::from([(SECRET_KEY.into(), ByteString(text))])),
                ..Secret::default()
            };
            with_timeout(self.secrets.create(&params, &secret)).await.map_err(|error| {
                let namespace = &self.certificate.namespace;
                format!(
                    "{}; create an empty one: kubectl create secret generic {name} -n {namespace}",
                    failed(error)
                )
            })?;
        }
        Ok(())
    }
}

pub(crate) async fn with_timeout<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(outcome) => outcome.map_err(ApiError::from),
        Err(_) => Err(ApiError::Transient(format!("timed out after {} s", CALL_TIMEOUT.as_secs()))),
    }
}

/// `None` for an empty Secret.
fn read(secret: &Secret) -> Result<Option<StoredCertificates>, String> {
    let Some(text) = secret.data.as_ref().and_then(|data| data.get(SECRET_KEY)) else { return Ok(None) };
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    serde_json::from_slice(&text.0)
        .map(Some)
        .map_err(|e| format!("invalid {SECRET_KEY} in Secret {name}: {e}"))
}
