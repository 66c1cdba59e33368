//! Keeping the certificate: reads and writes the Secret, announces the authority, shows what is to be shown.

use super::{
    Webhook, certificate,
    keeping::{self, Seen, Step, Stored},
};
use crate::{
    cluster::{WriteFence, ApiError},
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

/// Whom the `caBundle` belongs to: nothing else of the configuration is touched.
const MANAGER: &str = "gantry/webhook";
/// The Secret's only key.
const DATA: &str = "certificates.json";
/// How long one call may take.
const CALL_TIME: Duration = Duration::from_secs(5);
/// How often it is looked whether there is something to do.
const SHORTEST_PERIOD: Duration = Duration::from_millis(250);
const LONGEST_PERIOD: Duration = Duration::from_secs(15);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Names {
    /// The namespace of the Secret: the operator's own.
    pub namespace: String,
    /// The Secret that the replicas share.
    pub secret: String,
    /// The `ValidatingWebhookConfiguration` that leads here.
    pub configuration: String,
}

pub(super) struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<ValidatingWebhookConfiguration>,
    webhook: Webhook,
    shown: InMemoryCertificate,
    fence: WriteFence,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// What is remembered from one look to the next.
#[derive(Default)]
struct RecentFailures {
    /// The `caBundle` that was seen last, and since when it has been that.
    bundle: Option<(String, Timestamp)>,
    /// The certificate that is shown.
    certificate: String,
    /// The last trouble that was told.
    told: String,
}

impl Keeper {
    pub(super) fn new(client: Client, context: &Arc<Context>, webhook: Webhook, shown: InMemoryCertificate) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &webhook.names.namespace),
            configurations: Api::all(client),
            shown,
            fence: context.fence.clone(),
            metrics: Arc::clone(&context.metrics),
            clock: Arc::clone(&context.clock),
            webhook,
        }
    }

    /// Looks, for ever. Nothing that goes wrong here ends it: the API server does without.
    pub(super) async fn run(self) {
        let mut recent_failures = RecentFailures::default();
        let period = (self.webhook.lifetime / 120).clamp(SHORTEST_PERIOD, LONGEST_PERIOD);
        loop {
            let outcome = self.look(&mut recent_failures).await;
            let rests = !matches!(outcome, Ok(true));
            let trouble = outcome.err().unwrap_or_default();
            if trouble != recent_failures.told {
                // The same trouble is told once, not with each look.
                if trouble.is_empty() {
                    tracing::info!("the webhook works again");
                } else {
                    tracing::warn!("webhook: {trouble}");
                }
                recent_failures.told = trouble;
            }
            if rests {
                tokio::time::sleep(period).await;
            }
        }
    }

    /// Shows what the Secret says, and as leader does what is to be done next. `true` when something was done.
    async fn look(&self, recent_failures: &mut RecentFailures) -> Result<bool, String> {
        let secret = self.secret().await?;
        let stored = secret.as_ref().map(read).transpose();
        if let Ok(Some(Some(stored))) = &stored {
            self.show(stored, recent_failures)?;
        }
        if self.fence.remaining().is_none() {
            return stored.map(|_| false);
        }
        let stored = stored.unwrap_or_else(|why| {
            tracing::warn!("webhook: {why}; it is made anew");
            None
        });
        let stored = stored.flatten();
        let configuration = self.configuration().await?;
        let names = callers(&configuration);
        if names.is_empty() {
            return Err(format!(
                "ValidatingWebhookConfiguration {} says neither a service nor a url: nobody asks",
                self.webhook.names.configuration
            ));
        }
        let now = (self.clock)();
        let bundle = bundle(&configuration);
        let since = match &recent_failures.bundle {
            Some((known, since)) if *known == bundle => *since,
            _ => now,
        };
        recent_failures.bundle = Some((bundle.clone(), since));
        let seen = Seen { stored: stored.as_ref(), bundle: &bundle, since: Some(since), names: &names, now };
        let issue = || certificate::issue(&names, now, self.webhook.lifetime);
        let next = match (keeping::step(&seen), stored) {
            (Step::Rest, _) => return Ok(false),
            (Step::Announce(bundle), _) => {
                self.announce(&configuration, &bundle).await?;
                tracing::info!("the webhook's authority is in the configuration");
                return Ok(true);
            }
            (Step::Prepare, Some(stored)) => stored.preparing(issue()?),
            (Step::Promote, Some(stored)) => stored.promoted(),
            (Step::Forget, Some(stored)) => stored,
            (Step::Begin | Step::Prepare | Step::Promote | Step::Forget, _) => Stored::new(issue()?),
        };
        let next = next.tidied(now);
        self.write(secret, &next).await?;
        self.show(&next, recent_failures)?;
        Ok(true)
    }

    fn show(&self, stored: &Stored, recent_failures: &mut RecentFailures) -> Result<(), String> {
        let serving = &stored.serving;
        if serving.certificate == recent_failures.certificate {
            return Ok(());
        }
        let place = format!("Secret {}", self.webhook.names.secret);
        self.shown.set(&place, &serving.certificate, &serving.key).map_err(|e| e.to_string())?;
        recent_failures.certificate.clone_from(&serving.certificate);
        self.metrics.certificate_until(serving.until);
        tracing::info!(until = %serving.until, "the webhook shows a new certificate");
        Ok(())
    }

    async fn secret(&self) -> Result<Option<Secret>, String> {
        let name = &self.webhook.names.secret;
        timed(self.secrets.get_opt(name)).await.map_err(|t| format!("Secret {name} cannot be read: {t}"))
    }

    async fn configuration(&self) -> Result<ValidatingWebhookConfiguration, String> {
        let name = &self.webhook.names.configuration;
        let found = timed(self.configurations.get_opt(name)).await;
        let found =
            found.map_err(|t| format!("ValidatingWebhookConfiguration {name} cannot be read: {t}"))?;
        found.ok_or_else(|| {
            format!(
                "there is no ValidatingWebhookConfiguration {name}, so nobody asks: install it (webhook.enabled=true in \
                 the chart), or name another with --webhook-configuration"
            )
        })
    }

    /// Writes what all replicas are to show. The version makes it a test as well: of two who write, one is refused.
    async fn write(&self, secret: Option<Secret>, stored: &Stored) -> Result<(), String> {
        let name = &self.webhook.names.secret;
        let wrong = |t: ApiError| format!("Secret {name} cannot be written: {t}");
        let text = serde_json::to_vec(stored).map_err(|e| e.to_string())?;
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        if let Some(mut secret) = secret {
            secret.data.get_or_insert_default().insert(DATA.into(), ByteString(text));
            timed(self.secrets.replace(name, &params, &secret)).await.map_err(wrong)?;
        } else {
            let secret = Secret {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                data: Some(BTreeMap::from([(DATA.into(), ByteString(text))])),
                ..Secret::default()
            };
            timed(self.secrets.create(&params, &secret)).await.map_err(|trouble| {
                let namespace = &self.webhook.names.namespace;
                format!(
                    "{}; make an empty one: kubectl create secret generic {name} -n {namespace}",
                    wrong(trouble)
                )
            })?;
        }
        Ok(())
    }

    /// Puts the authorities into the configuration, as the owner of that field and of no other. Not by force: where
    /// somebody else says what the `caBundle` is, the two would take turns for ever.
    async fn announce(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        bundle: &str,
    ) -> Result<(), String> {
        let name = &self.webhook.names.configuration;
        let webhooks: Vec<serde_json::Value> = hooks(configuration)
            .map(|hook| json!({ "name": hook.name, "clientConfig": { "caBundle": ByteString(bundle.into()) } }))
            .collect();
        let patch = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name, "uid": configuration.metadata.uid },
            "webhooks": webhooks,
        });
        let params = PatchParams::apply(MANAGER);
        let sent = timed(self.configurations.patch(name, &params, &Patch::Apply(&patch))).await;
        match sent {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict) => Err(format!(
                "somebody else says what the caBundle of ValidatingWebhookConfiguration {name} is: kubectl get \
                 validatingwebhookconfiguration {name} -o yaml --show-managed-fields says who; leave it out there"
            )),
            Err(t) => Err(format!("ValidatingWebhookConfiguration {name} cannot be patched: {t}")),
        }
    }
}

async fn timed<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match tokio::time::timeout(CALL_TIME, call).await {
        Ok(outcome) => outcome.map_err(ApiError::from),
        Err(_) => Err(ApiError::Transient(format!("no answer within {} s", CALL_TIME.as_secs()))),
    }
}

/// What a Secret holds. One that is still empty holds nothing, which is no trouble.
fn read(secret: &Secret) -> Result<Option<Stored>, String> {
    let Some(text) = secret.data.as_ref().and_then(|data| data.get(DATA)) else { return Ok(None) };
    let name = secret.metadata.name.as_deref().unwrap_or_default();
    serde_json::from_slice(&text.0)
        .map(Some)
        .map_err(|e| format!("{DATA} of Secret {name} cannot be read: {e}"))
}

fn hooks(configuration: &ValidatingWebhookConfiguration) -> impl Iterator<Item = &ValidatingWebhook> {
    configuration.webhooks.iter().flatten()
}

/// The names by which API servers call, as the certificate must have them.
fn callers(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    let of = |hook: &ValidatingWebhook| {
        let config = &hook.client_config;
        let service = config.service.as_ref().map(|s| format!("{}.{}.svc", s.name, s.namespace));
        let host = config.url.as_deref().and_then(|url| url.parse::<http::Uri>().ok());
        let host = host.and_then(|uri| uri.host().map(|h| h.trim_matches(['[', ']']).to_owned()));
        service.or(host)
    };
    hooks(configuration).filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The `caBundle` that all entries have; empty when they differ, as it is to be written anew then.
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
