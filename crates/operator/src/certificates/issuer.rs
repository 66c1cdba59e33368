//! The loop that keeps the certificates of every namespace: only the leader writes.

use super::{
    authorities::Authorities,
    clients::{IssuedClients, SchedulerTls},
    policy::{Lifetimes, State, Step, Wanted, next_step, renew_at},
    secrets::{files, is_ours, recovered, view},
    server_time, sign,
    wanted::{SECRETS, operator, wanted},
};
use crate::{
    cluster::{ApiError, Custom, KindId, MANAGED_BY, SeldonRuntime, Server},
    context::Context,
    workload::{Owner, certificates},
};
use gantry_tls::Client as TlsClient;
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const FIELD_MANAGER: &str = "gantry/certificates";
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the search for new namespaces and Servers in the caches.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
const MIN_REVIEW_INTERVAL: Duration = Duration::from_secs(1);
const MAX_REVIEW_INTERVAL: Duration = Duration::from_secs(30);
/// More than any state needs; the rest follows in the next round.
const MAX_STEPS: usize = 16;
/// Kubernetes' limit of a Secret, with room for metadata.
const MAX_SECRET_SIZE: usize = 1_000_000;
/// A shorter certificate could expire before its successor is distributed.
pub const MIN_LIFETIME: Duration = Duration::from_mins(5);

/// What the operator issues, and where it keeps its authorities.
#[derive(Clone, Debug)]
pub struct CertificateSettings {
    /// The Secret with the authorities, in the operator's namespace.
    pub secret: String,
    /// Lifetime of a certificate; it is renewed after two thirds.
    pub lifetime: Duration,
    /// The operator's connections use these.
    pub clients: IssuedClients,
}

pub(super) struct Issuer {
    pub(super) context: Arc<Context>,
    pub(super) client: Client,
    pub(super) settings: CertificateSettings,
}

/// What a namespace needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) wanted: Wanted,
    /// The runtime that owns the Secrets.
    pub(super) owner: (String, String),
}

/// The operator's own certificate of a namespace.
pub(super) struct Own {
    pub(super) authorities: Authorities,
    pub(super) renew_at: Timestamp,
    pub(super) client: TlsClient,
}

/// Keeps certificates until stopped; failures are logged and retried.
pub(crate) async fn run(
    context: Arc<Context>,
    client: Client,
    settings: CertificateSettings,
    stop: CancellationToken,
) {
    let review = (settings.lifetime / 120).clamp(MIN_REVIEW_INTERVAL, MAX_REVIEW_INTERVAL);
    let issuer = Issuer { context, client, settings };
    let mut own: BTreeMap<String, Own> = BTreeMap::new();
    let mut reviewed: BTreeMap<String, (Need, Instant)> = BTreeMap::new();
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let needs = issuer.needs();
        for (namespace, need) in &needs {
            let is_due =
                reviewed.get(namespace).is_none_or(|(before, at)| before != need || at.elapsed() >= review);
            if is_due && issuer.context.may_write() {
                let outcome = issuer.review(namespace, need, &mut own).await;
                log(namespace, outcome.err(), &mut failures);
                reviewed.insert(namespace.clone(), (need.clone(), Instant::now()));
            }
            issuer.publish(namespace, own.get(namespace));
        }
        for namespace in reviewed.keys().filter(|namespace| !needs.contains_key(*namespace)) {
            issuer.context.metrics.forget_issued(namespace);
        }
        reviewed.retain(|namespace, _| needs.contains_key(namespace));
        own.retain(|namespace, _| needs.contains_key(namespace));
        failures.retain(|namespace, _| needs.contains_key(namespace));
        issuer.settings.clients.retain(|namespace| needs.contains_key(namespace));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SEARCH_INTERVAL) => {}
        }
    }
}

/// A failure that repeats is logged once.
fn log(namespace: &str, failure: Option<String>, failures: &mut BTreeMap<String, String>) {
    match failure {
        None => {
            if failures.remove(namespace).is_some() {
                tracing::info!(namespace, "certificates are issued again");
            }
        }
        Some(failure) => {
            if failures.get(namespace) != Some(&failure) {
                tracing::warn!(namespace, "failed to issue certificates: {failure}");
                failures.insert(namespace.to_owned(), failure);
            }
        }
    }
}

impl Issuer {
    /// Namespaces with a runtime, once the caches know them completely.
    fn needs(&self) -> BTreeMap<String, Need> {
        let caches = &self.context.caches;
        let mut owners: BTreeMap<String, Arc<Custom<SeldonRuntime>>> = BTreeMap::new();
        let age = |runtime: &Custom<SeldonRuntime>| {
            (runtime.metadata.creation_timestamp.as_ref().map(|time| time.0), runtime.key().name)
        };
        for runtime in caches.of::<SeldonRuntime>().all() {
            let namespace = runtime.key().namespace;
            let is_first = owners.get(&namespace).is_none_or(|other| age(&runtime) < age(other));
            if is_first && !runtime.is_deleted() && self.context.is_synced(&namespace) {
                owners.insert(namespace, runtime);
            }
        }
        let need = |(namespace, owner): (String, Arc<Custom<SeldonRuntime>>)| {
            let servers = caches.of::<Server>().in_namespace(&namespace);
            let servers: BTreeSet<String> =
                servers.iter().filter(|s| !s.is_deleted()).map(|server| server.key().name).collect();
            let wanted = wanted(&namespace, servers.iter().map(String::as_str));
            let owner = (owner.key().name, owner.uid().to_owned());
            (namespace, Need { wanted, owner })
        };
        owners.into_iter().map(need).collect()
    }

    /// Connections of the operator use TLS where the scheduler's pods have certificates.
    pub(super) fn publish(&self, namespace: &str, own: Option<&Own>) {
        let scheduler = certificates::live_scheduler(&self.context.caches, namespace);
        let clients = &self.settings.clients;
        match own {
            _ if scheduler.as_ref().is_some_and(|live| !certificates::are_mounted(live)) => {
                clients.set(namespace, SchedulerTls::Plaintext);
            }
            Some(own) => clients.set(namespace, SchedulerTls::Mutual(own.client.clone())),
            None => {}
        }
    }

    /// Takes steps until nothing is left to do.
    pub(super) async fn review(
        &self,
        namespace: &str,
        need: &Need,
        own: &mut BTreeMap<String, Own>,
    ) -> Result<(), String> {
        let lifetimes = Lifetimes { certificate: self.settings.lifetime };
        let mut store = self.read_store().await?;
        let mut authorities = stored(store.as_ref(), namespace);
        let mut live = self.read_secrets(namespace).await?;
        let foreign: Vec<&str> =
            live.iter().filter(|(_, secret)| !is_ours(secret)).map(|(name, _)| *name).collect();
        let mut wanted = need.wanted.clone();
        wanted.retain(|name, _| !foreign.contains(name));
        let foreign = foreign.join(", ");
        live.retain(|_, secret| is_ours(secret));
        let mut is_clock_checked = false;
        for _ in 0..MAX_STEPS {
            let now = (self.context.clock)();
            let secrets = live.iter().map(|(name, secret)| (*name, view(secret))).collect();
            let state =
                State { authorities: &authorities, wanted: &wanted, secrets: &secrets, now, lifetimes };
            let step = next_step(&state);
            if step != Step::Wait && !is_clock_checked {
                let check = server_time::compare(&self.client, now);
                tokio::time::timeout(CALL_TIMEOUT, check).await.unwrap_or_else(|_| Err(late()))?;
                is_clock_checked = true;
            }
            let new = || sign::authority(namespace, now, lifetimes.authority());
            let next = match step {
                Step::Wait => break,
                Step::Write { secret, renew } => {
                    let items = wanted.get(secret).cloned().unwrap_or_default();
                    let held = live.get(secret);
                    let data = files(held, &authorities, &items, &renew, now, lifetimes.certificate)?;
                    let written = self.write_secret(namespace, secret, held, data, &need.owner).await?;
                    tracing::info!(namespace, secret, renewed = renew.len(), "certificates written");
                    live.insert(secret, written);
                    continue;
                }
                Step::Create => authorities.clone().with_signing(new()?),
                Step::Prepare => {
                    let lost = authorities.signing.is_none();
                    let found =
                        if lost { recovered(&live.values().collect::<Vec<_>>(), now) } else { Vec::new() };
                    authorities.clone().with_retired(found).with_next(new()?)
                }
                Step::Announce => authorities.clone().announced_at(now),
                Step::Promote => authorities.clone().promoted(),
                Step::Prune => authorities.clone(),
            };
            let next = next.pruned(now);
            store = self.write_store(store, namespace, &next, now).await?;
            tracing::info!(namespace, signing = ?next.signing, next = ?next.next, "certificate authorities written");
            authorities = next;
        }
        self.renew_own(namespace, &authorities, own)?;
        let held = live.values().map(view).flat_map(|view| view.certificates.into_values());
        if let Some(until) = held.map(|held| held.until).min() {
            self.context.metrics.set_issued_until(namespace, until);
        }
        if foreign.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{foreign} exist in namespace {namespace} and are not managed by the operator: rename or delete them, and the \
             operator creates its own"
        ))
    }

    fn renew_own(
        &self,
        namespace: &str,
        authorities: &Authorities,
        own: &mut BTreeMap<String, Own>,
    ) -> Result<(), String> {
        let now = (self.context.clock)();
        if own.get(namespace).is_some_and(|own| own.authorities == *authorities && now < own.renew_at) {
            return Ok(());
        }
        if authorities.signer().is_none() {
            return Ok(());
        }
        let signed = sign::certificate(authorities, &operator(namespace), now, self.settings.lifetime)?;
        let origin = format!("the operator's certificate for namespace {namespace}");
        let client = TlsClient::from_pem(&origin, &authorities.bundle(), &signed.certificate, &signed.key)
            .map_err(|e| e.to_string())?;
        let until = super::policy::plus(now, self.settings.lifetime);
        let renew_at = renew_at(now, until);
        own.insert(namespace.to_owned(), Own { authorities: authorities.clone(), renew_at, client });
        Ok(())
    }

    fn store(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.context.caches.settings.namespace)
    }

    async fn read_store(&self) -> Result<Option<Secret>, String> {
        let name = &self.settings.secret;
        self.call(self.store().get_opt(name)).await.map_err(|e| format!("failed to read Secret {name}: {e}"))
    }

    /// The resource version makes it a compare-and-swap: of two concurrent writers, one fails.
    async fn write_store(
        &self,
        store: Option<Secret>,
        namespace: &str,
        authorities: &Authorities,
        now: Timestamp,
    ) -> Result<Option<Secret>, String> {
        let name = &self.settings.secret;
        let failed = |e: ApiError| format!("failed to write Secret {name}: {e}");
        let text = serde_json::to_vec(authorities).map_err(|e| e.to_string())?;
        let mut data = store.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        data.insert(file(namespace), ByteString(text));
        data.retain(|_, text| {
            !serde_json::from_slice::<Authorities>(&text.0).is_ok_and(|stored| stored.has_expired(now))
        });
        let size: usize = data.iter().map(|(name, text)| name.len() + text.0.len()).sum();
        if size > MAX_SECRET_SIZE {
            return Err(format!(
                "Secret {name} has no room for the authority of namespace {namespace}: watch fewer namespaces, or bring \
                 certificates of your own (tls.secretName)"
            ));
        }
        let secret = if let Some(mut secret) = store {
            secret.data = Some(data);
            self.call(self.store().replace(name, &post(), &secret)).await.map_err(failed)?
        } else {
            let body = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": name, "labels": { "app.kubernetes.io/name": "gantry" } },
                "data": data,
            });
            self.call(self.store().patch(name, &apply(), &Patch::Apply(&body))).await.map_err(failed)?
        };
        Ok(Some(secret))
    }

    async fn read_secrets(&self, namespace: &str) -> Result<BTreeMap<&'static str, Secret>, String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let mut found = BTreeMap::new();
        for name in SECRETS {
            let secret = self.call(api.get_opt(name)).await;
            let secret = secret.map_err(|e| format!("failed to read Secret {name}: {e}"))?;
            found.extend(secret.map(|secret| (name, secret)));
        }
        Ok(found)
    }

    /// A missing Secret is created by an apply, whose permission can be restricted to its name.
    async fn write_secret(
        &self,
        namespace: &str,
        name: &'static str,
        held: Option<&Secret>,
        data: BTreeMap<String, ByteString>,
        (owner, uid): &(String, String),
    ) -> Result<Secret, String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let failed = |e: ApiError| format!("failed to write Secret {name}: {e}");
        let owner = Owner { kind: KindId::of::<SeldonRuntime>(), name: owner, uid };
        let owners = serde_json::from_value(owner.references()).map_err(|e| e.to_string())?;
        let labels = BTreeMap::from([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())]);
        if let Some(held) = held {
            let mut secret = held.clone();
            secret.metadata.owner_references = Some(owners);
            secret.data = Some(data);
            return self.call(api.replace(name, &post(), &secret)).await.map_err(failed);
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels),
                owner_references: Some(owners),
                ..ObjectMeta::default()
            },
            data: Some(data),
            type_: Some("Opaque".into()),
            ..Secret::default()
        };
        self.call(api.patch(name, &apply(), &Patch::Apply(&secret))).await.map_err(failed)
    }

    /// A call must not take effect after the lease.
    async fn call<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
        let Some(remaining) = self.context.fence.remaining() else { return Err(ApiError::NotLeading) };
        match tokio::time::timeout(remaining.min(CALL_TIMEOUT), call).await {
            Ok(outcome) => outcome.map_err(ApiError::from),
            Err(_) => Err(ApiError::Transient(late())),
        }
    }
}

fn late() -> String {
    format!("timed out after {} s", CALL_TIMEOUT.as_secs())
}

/// The authorities of a namespace; damaged ones are missing.
fn stored(store: Option<&Secret>, namespace: &str) -> Authorities {
    let files = store.and_then(|secret| secret.data.as_ref());
    let Some(text) = files.and_then(|files| files.get(&file(namespace))) else {
        return Authorities::default();
    };
    // The error could quote a key.
    serde_json::from_slice(&text.0).unwrap_or_else(|_| {
        tracing::warn!(namespace, "the stored certificate authorities are damaged and are replaced");
        Authorities::default()
    })
}

fn file(namespace: &str) -> String {
    format!("{namespace}.json")
}

fn post() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() }
}

fn apply() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}
