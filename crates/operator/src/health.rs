//! State of the watches, for readiness and diagnosis.

use crate::metrics::Metrics;
use kube::runtime::watcher;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The watches of one operator. A scope is a namespace, or `""` for the whole cluster.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
    metrics: Arc<Metrics>,
    /// The operator cannot work without these scopes.
    required: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct State {
    /// By name.
    watches: BTreeMap<String, Watch>,
    /// Scopes in which every first list was complete.
    synced: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Watch {
    scope: String,
    /// Whether its first list is complete.
    listed: bool,
    error: Option<WatchError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WatchError {
    message: String,
    cause: ErrorCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorCause {
    /// The API server is unreachable or fails.
    Outage,
    /// RBAC does not allow it. The operator's Role goes with its namespace.
    Forbidden,
    Other,
}

/// What a list or an event of a watch changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncChange {
    /// A list is complete.
    pub is_listed: bool,
    /// It completed the first lists of its scope.
    pub is_scope_synced: bool,
    /// The API server failed before.
    pub is_recovered: bool,
}

impl Health {
    /// `own` is the operator's namespace.
    pub fn new(own: &str, metrics: Arc<Metrics>) -> Self {
        let required = BTreeSet::from([String::new(), own.to_owned()]);
        Self { state: Arc::default(), metrics, required }
    }

    /// Registers a watch of a kind in a scope.
    pub fn watch(&self, plural: &str, scope: &str) -> WatchReport {
        let name = if scope.is_empty() { plural.to_owned() } else { format!("{plural} in {scope}") };
        let watch = Watch { scope: scope.to_owned(), ..Watch::default() };
        let mut state = self.lock();
        state.watches.insert(name.clone(), watch);
        self.update_metric(&state, scope);
        drop(state);
        WatchReport { health: self.clone(), name }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_metric(&self, state: &State, scope: &str) {
        let mut watches = state.watches.values().filter(|watch| watch.scope == scope);
        self.metrics.set_scope_synced(scope, watches.all(|watch| watch.listed && watch.error.is_none()));
    }

    /// Whether every watch of a scope has a complete list: an object missing from a cache without one is unknown, not
    /// absent.
    pub fn is_synced(&self, scope: &str) -> bool {
        self.lock().synced.contains(scope)
    }

    /// Watches without a complete list, with the reason; empty when the operator is ready. A namespace in which the
    /// operator has no permissions does not make it unready: the others are reconciled.
    pub fn not_ready(&self) -> Vec<String> {
        let state = self.lock();
        let is_skipped = |watch: &Watch| {
            !self.required.contains(&watch.scope)
                && watch.error.as_ref().is_some_and(|error| error.cause == ErrorCause::Forbidden)
        };
        let unlisted = state.watches.iter().filter(|(_, watch)| !watch.listed && !is_skipped(watch));
        unlisted
            .map(|(name, watch)| match &watch.error {
                Some(error) => format!("{name}: {}", error.message),
                None => format!("{name}: being listed"),
            })
            .collect()
    }

    /// The last error of a watch, until it recovers.
    pub fn failure(&self) -> Option<String> {
        let state = self.lock();
        state.watches.values().find_map(|watch| watch.error.as_ref().map(|error| error.message.clone()))
    }
}

/// Reports the state of one watch.
#[derive(Clone, Debug)]
pub struct WatchReport {
    health: Health,
    name: String,
}

impl WatchReport {
    fn edit(&self, change: impl FnOnce(&mut Watch)) -> bool {
        let mut state = self.health.lock();
        let Some(watch) = state.watches.get_mut(&self.name) else { return false };
        change(watch);
        let scope = watch.scope.clone();
        self.health.update_metric(&state, &scope);
        let mut watches = state.watches.values().filter(|watch| watch.scope == scope);
        watches.all(|watch| watch.listed) && state.synced.insert(scope)
    }

    /// A list is complete, or an event arrived.
    pub fn synced(&self) -> SyncChange {
        let mut error = None;
        let is_scope_synced = self.edit(|watch| {
            watch.listed = true;
            error = watch.error.take();
        });
        if error.is_some() {
            tracing::info!(watch = %self.name, "watch recovered");
        }
        let is_recovered = error.is_some_and(|e| e.cause == ErrorCause::Outage);
        SyncChange { is_listed: false, is_scope_synced, is_recovered }
    }

    /// The watch works again, without an event so far.
    pub fn recovered(&self) -> SyncChange {
        if self.health.lock().watches.get(&self.name).is_some_and(|watch| watch.listed) {
            self.synced()
        } else {
            SyncChange::default()
        }
    }

    /// The API server does not serve the kind, which is optional.
    pub fn not_served(&self) -> SyncChange {
        let is_scope_synced = self.edit(|watch| {
            watch.listed = true;
            watch.error = None;
        });
        SyncChange { is_scope_synced, ..SyncChange::default() }
    }

    pub fn failed(&self, error: &watcher::Error) {
        let cause = match code(error) {
            Some(403) => ErrorCause::Forbidden,
            Some(code) if code < 500 => ErrorCause::Other,
            _ => ErrorCause::Outage,
        };
        self.record(WatchError { message: with_remedy(&self.name, &error.to_string()), cause });
    }

    pub fn discovery_failed(&self, message: &str) {
        self.record(WatchError { message: with_remedy(&self.name, message), cause: ErrorCause::Outage });
    }

    fn record(&self, error: WatchError) {
        self.edit(|watch| {
            // Logged once per error, not per retry.
            if watch.error.as_ref() != Some(&error) {
                tracing::warn!(watch = %self.name, "watch failed: {}", error.message);
            }
            watch.error = Some(error);
        });
    }
}

/// The HTTP status with which the API server answered.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

/// Replaces the usual errors by what to do about them.
fn with_remedy(watch: &str, error: &str) -> String {
    let is_missing = ["404", "NotFound", "could not find the requested resource"];
    if is_missing.iter().any(|text| error.contains(text)) {
        return format!(
            "the API server does not serve {watch}: install the CRDs with `gantry install --crds | kubectl apply -f -`"
        );
    }
    if error.contains("Forbidden") || error.contains("forbidden") {
        return format!(
            "not allowed to list or watch {watch}: create the namespace and the operator's Role in it, or update the \
             Role to this version"
        );
    }
    error.to_owned()
}
