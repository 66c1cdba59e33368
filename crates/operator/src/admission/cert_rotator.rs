//! Rotates the serving certificate: shares it in a Secret, publishes its CA, serves the current one.

use super::{
    Webhook, certificate,
    rotation_policy::{self, RotationState, RotationStep, StoredCertificates},
};
use crate::{
    cluster::{ApiError, WriteFence},
    context::{Clock, Context},
    metrics::Metrics,
};
use gantry_tls::InMemoryCertificate;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Owns only the `caBundle` fields of the webhook configuration.
const FIELD_MANAGER: &str = "gantry/webhook";
const SECRET_KEY: &str = "certificates.json";
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

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

pub(super) struct CertRotator {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    webhook: Webhook,
    served: InMemoryCertificate,
    fence: WriteFence,
    metrics: Arc<Metrics>,
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

impl CertRotator {
    pub(super) fn new(
        client: Client,
        context: &Arc<Context>,
        webhook: Webhook,
        served: InMemoryCertificate,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &webhook.resources.namespace),
            configurations: Api::all(client),
            served,
            fence: context.fence.clone(),
            metrics: Arc::clone(&context.metrics),
            clock: Arc::clone(&context.clock),
            webhook,
        }
    }

    /// Never returns: errors are logged and retried.
    pub(super) async fn run(self) {
        let mut state = RotatorState::default();
        let period = (self.webhook.lifetime / 120).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        loop {
            let outcome = self.reconcile(&mut state).await;
            let is_settled = !matches!(outcome, Ok(true));
            let error = outcome.err().unwrap_or_default();
            // Repeated errors are logged once.
            if error != state.logged_error {
                if error.is_empty() {
                    tracing::info!("webhook certificate rotation recovered");
                } else {
                    tracing::warn!("webhook certificate rotation failed: {error}");
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
            tracing::warn!("{error}; issuing a new webhook certificate");
            None
        });
        let stored = stored.flatten();
        let configuration = self.configuration().await?;
        let names = host_names(&configuration);
        if names.is_empty() {
            return Err(format!(
                "ValidatingWebhookConfiguration {} has neither a service nor a url",
                self.webhook.resources.configuration
            ));
        }
        let now = (self.clock)();
        let bundle = bundle(&configuration);
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
        let issue = || certificate::issue(&names, now, self.webhook.lifetime);
        let next = match (rotation_policy::next_step(&rotation), stored) {
            (RotationStep::Wait, _) => return Ok(false),
            (RotationStep::PublishBundle(bundle), _) => {
                self.publish(&configuration, &bundle).await?;
                tracing::info!("published the webhook's caBundle");
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
        let source = format!("Secret {}", self.webhook.resources.secret);
        self.served.set(&source, &serving.certificate, &serving.key).map_err(|e| e.to_string())?;
        state.certificate.clone_from(&serving.certificate);
        self.metrics.set_certificate_expiry(serving.until);
        tracing::info!(until = %serving.until, "serving a new webhook certificate");
        Ok(())
    }

    async fn secret(&self) -> Result<Option<Secret>, String> {
        let name = &self.webhook.resources.secret;
        with_timeout(self.secrets.get_opt(name))
            .await
            .map_err(|e| format!("failed to read Secret {name}: {e}"))
    }

    async fn configuration(&self) -> Result<ValidatingWebhookConfiguration, String> {
        let name = &self.webhook.resources.configuration;
        let found = with_timeout(self.configurations.get_opt(name)).await;
        let found =
            found.map_err(|e| format!("failed to read ValidatingWebhookConfiguration {name}: {e}"))?;
        found.ok_or_else(|| {
            format!(
                "ValidatingWebhookConfiguration {name} not found: install it (webhook.enabled=true in the chart), or set \
                 --webhook-configuration"
            )
        })
    }

    /// The resource version makes it a compare-and-swap: of two concurrent writers, one fails.
    async fn write(&self, secret: Option<Secret>, stored: &StoredCertificates) -> Result<(), String> {
        let name = &self.webhook.resources.secret;
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
                let namespace = &self.webhook.resources.namespace;
                format!(
                    "{}; create an empty one: kubectl create secret generic {name} -n {namespace}",
                    failed(error)
                )
            })?;
        }
        Ok(())
    }

    /// Server-side apply of the `caBundle` only. Not forced: two owners of the field would overwrite each other forever.
    async fn publish(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        bundle: &str,
    ) -> Result<(), String> {
        let name = &self.webhook.resources.configuration;
        let webhooks: Vec<serde_json::Value> = hooks(configuration)
            .map(|hook| json!({ "name": hook.name, "clientConfig": { "caBundle": ByteString(bundle.into()) } }))
            .collect();
        let patch = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name, "uid": configuration.metadata.uid },
            "webhooks": webhooks,
        });
        let params = PatchParams::apply(FIELD_MANAGER);
        let sent = with_timeout(self.configurations.patch(name, &params, &Patch::Apply(&patch))).await;
        match sent {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict) => Err(format!(
                "the caBundle of ValidatingWebhookConfiguration {name} has another owner: find it with kubectl get \
                 validatingwebhookconfiguration {name} -o yaml --show-managed-fields, and remove the field there"
            )),
            Err(e) => Err(format!("failed to patch ValidatingWebhookConfiguration {name}: {e}")),
        }
    }
}

async fn with_timeout<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
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

fn hooks(configuration: &ValidatingWebhookConfiguration) -> impl Iterator<Item = &ValidatingWebhook> {
    configuration.webhooks.iter().flatten()
}

/// Host names used by API servers, for the certificate.
fn host_names(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    let of = |hook: &ValidatingWebhook| {
        let config = &hook.client_config;
        let service = config.service.as_ref().map(|s| format!("{}.{}.svc", s.name, s.namespace));
        let host = config.url.as_deref().and_then(|url| url.parse::<http::Uri>().ok());
        let host = host.and_then(|uri| uri.host().map(|h| h.trim_matches(['[', ']']).to_owned()));
        service.or(host)
    };
    hooks(configuration).filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The `caBundle` shared by all entries; empty when they differ.
fn bundle(configuration: &ValidatingWebhookConfiguration) -> String {
    let texts: BTreeSet<String> = hooks(configuration)
        .map(|hook| hook.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .collect();
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next()) {
        (Some(only), None) => only,
        _ => String::new(),
    }
}
