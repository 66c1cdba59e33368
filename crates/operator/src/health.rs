//! State of the watches, for readiness and diagnosis.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The watches of one operator, by name.
#[derive(Clone, Debug, Default)]
pub struct Health {
    watches: Arc<Mutex<BTreeMap<String, Watch>>>,
}

#[derive(Debug, Default)]
struct Watch {
    /// Whether its first list is complete.
    listed: bool,
    error: Option<String>,
}

impl Health {
    /// Registers a watch; names are `models` or `models in ml`.
    pub fn watch(&self, name: String) -> WatchReport {
        self.edit(&name, |_| {});
        WatchReport { health: self.clone(), name }
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Watch)) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        change(watches.entry(name.to_owned()).or_default());
    }

    /// Watches without a complete list, with the reason; empty when the operator is ready.
    pub fn not_ready(&self) -> Vec<String> {
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches
            .iter()
            .filter(|(_, watch)| !watch.listed)
            .map(|(name, watch)| match &watch.error {
                Some(error) => format!("{name}: {error}"),
                None => format!("{name}: being listed"),
            })
            .collect()
    }
}

/// Reports the state of one watch.
#[derive(Clone, Debug)]
pub struct WatchReport {
    health: Health,
    name: String,
}

impl WatchReport {
    pub fn synced(&self) {
        self.health.edit(&self.name, |watch| {
            watch.listed = true;
            if watch.error.take().is_some() {
                tracing::info!(watch = %self.name, "watch recovered");
            }
        });
    }

    /// The API server does not serve the kind, which is optional.
    pub fn not_served(&self) {
        self.health.edit(&self.name, |watch| {
            watch.listed = true;
            watch.error = None;
        });
    }

    pub fn failed(&self, error: &str) {
        let error = with_remedy(&self.name, error);
        self.health.edit(&self.name, |watch| {
            // Logged once per error, not per retry.
            if watch.error.as_deref() != Some(&error) {
                tracing::warn!(watch = %self.name, "watch failed: {error}");
            }
            watch.error = Some(error);
        });
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
        return format!("not allowed to list or watch {watch}: update the operator's Role to this version");
    }
    error.to_owned()
}
