//! Metrics: labels are names of the configuration and reasons, never anything that a client sent.

use crate::Reason;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyLabels {
    key: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

const RESULTS: [&str; 3] = ["accepted", "forbidden", "limited"];

/// Counters of one key or grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: Counter,
    pub(crate) forbidden: Counter,
    pub(crate) limited: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Family<KeyLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
    reloads: Family<ResultLabels, Counter>,
    fetches: Family<ResultLabels, Counter>,
    names: Mutex<BTreeSet<Arc<str>>>,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "gantry_auth_requests",
            "Requests with a known credential, by the name of the key or grant",
            self.requests.clone(),
        );
        registry.register(
            "gantry_auth_refused",
            "Requests without a valid credential, by reason",
            self.refused.clone(),
        );
        registry.register(
            "gantry_auth_reloads",
            "Changes of the authentication configuration and its key sets that were read",
            self.reloads.clone(),
        );
        registry.register(
            "gantry_auth_key_set_fetches",
            "Downloads of the keys of token issuers",
            self.fetches.clone(),
        );
    }

    pub(crate) fn counters(&self, name: &Arc<str>) -> Counters {
        let counter =
            |result| self.requests.get_or_create(&KeyLabels { key: name.to_string(), result }).clone();
        let [accepted, forbidden, limited] = RESULTS.map(counter);
        Counters { accepted, forbidden, limited }
    }

    /// Removes the series of names that are no longer configured.
    pub(crate) fn retain(&self, names: BTreeSet<Arc<str>>) {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in known.difference(&names) {
            for result in RESULTS {
                self.requests.remove(&KeyLabels { key: gone.to_string(), result });
            }
        }
        *known = names;
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.refused.get_or_create(&ReasonLabels { reason: reason.label() }).inc();
    }

    pub(crate) fn reloaded(&self, is_ok: bool) {
        self.reloads.get_or_create(&ResultLabels { result: result(is_ok) }).inc();
    }

    pub(crate) fn fetched(&self, is_ok: bool) {
        self.fetches.get_or_create(&ResultLabels { result: result(is_ok) }).inc();
    }
}

const fn result(is_ok: bool) -> &'static str {
    if is_ok { "success" } else { "failure" }
}
