//! What cannot be changed once it is there: the volumes of a `StatefulSet`.
//!
//! Everything else that the operator makes can be changed in place, or is replaced by it. The volumes of a
//! `StatefulSet` cannot, and the operator does not take one down by itself: the change would leave the object stuck
//! (`ApplyRefused`). That is said while it is written, unless the object asks for warnings only; then whoever wrote it
//! replaces the `StatefulSet`.

use super::judge::LENIENT;
use crate::{
    cluster::{
        OwnedObject, ResourceKind, Custom, CustomKind, Experiment, Key, Model, Pipeline, SeldonConfig, SeldonRuntime,
        Server, ServerConfig, holds,
    },
    caches::Caches,
};
use gantry_api::{SeldonConfigSpec, SeldonRuntimeSpec, VolumeClaimTemplate};
use serde_json::{Value, json};
use std::sync::Arc;

/// `StatefulSets` that are told by name.
const TOLD: usize = 3;

/// A change that would leave `StatefulSets` stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    problem: String,
    first: Key,
}

impl Stuck {
    fn replacing(&self) -> String {
        format!("kubectl delete statefulset {} -n {} --cascade=orphan", self.first.name, self.first.namespace)
    }

    /// For whoever may not.
    pub(super) fn refusal(&self) -> String {
        let (annotation, value) = LENIENT;
        format!(
            "{}: use another name; or annotate this object with {annotation}={value}, apply it, and replace them ({})",
            self.problem,
            self.replacing()
        )
    }

    /// For whoever wants to all the same.
    pub(super) fn warning(&self) -> String {
        format!("{}: now replace them ({})", self.problem, self.replacing())
    }
}

/// A kind some of whose changes cannot be made.
pub(crate) trait Fixed: CustomKind {
    /// What a change would leave stuck, if anything.
    fn stuck(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<Stuck>;
}

macro_rules! free {
    ($($kind:ty),*) => {$(
        impl Fixed for $kind {
            fn stuck(_: &Custom<Self>, _: &Custom<Self>, _: &Caches) -> Option<Stuck> {
                None
            }
        }
    )*};
}

// The scheduler loads a changed Model beside the one that serves: nothing of it is fixed.
free!(Model, Pipeline, Experiment);

impl Fixed for Server {
    fn stuck(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<Stuck> {
        let (Ok(now), Ok(before)) = (&new.spec, &old.spec) else { return None };
        if now.server_config == before.server_config {
            return None;
        }
        let named = Key::new(caches.settings.namespace.clone(), now.server_config.clone());
        let config = caches.of::<ServerConfig>().get(&named);
        let Some(Ok(config)) = config.as_deref().map(|c| &c.spec) else { return None };
        let stuck = of_server(old, &config.volume_claim_templates, caches);
        said("spec.serverConfig", &format!("ServerConfig \"{}\"", named.name), stuck.as_slice())
    }
}

impl Fixed for ServerConfig {
    fn stuck(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<Stuck> {
        let (Ok(now), Ok(before), key) = (&new.spec, &old.spec, new.key()) else { return None };
        let is_same = now.volume_claim_templates == before.volume_claim_templates;
        if is_same || key.namespace != caches.settings.namespace {
            return None;
        }
        let is_user = |s: &Custom<Server>| s.spec.as_ref().is_ok_and(|s| s.server_config == key.name);
        let servers = caches.of::<Server>().all().into_iter().filter(|server| is_user(server));
        let stuck: Vec<Key> =
            servers.filter_map(|s| of_server(&s, &now.volume_claim_templates, caches)).collect();
        said("spec.volumeClaimTemplates", "this change", &stuck)
    }
}

impl Fixed for SeldonRuntime {
    fn stuck(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<Stuck> {
        let (Ok(now), Ok(before)) = (&new.spec, &old.spec) else { return None };
        if now.seldon_config == before.seldon_config {
            return None;
        }
        let named = Key::new(caches.settings.namespace.clone(), now.seldon_config.clone());
        let config = caches.of::<SeldonConfig>().get(&named);
        let Some(Ok(config)) = config.as_deref().map(|c| &c.spec) else { return None };
        let stuck = of_runtime(old, now, config, caches);
        said("spec.seldonConfig", &format!("SeldonConfig \"{}\"", named.name), &stuck)
    }
}

impl Fixed for SeldonConfig {
    fn stuck(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<Stuck> {
        let (Ok(now), Ok(before), key) = (&new.spec, &old.spec, new.key()) else { return None };
        let claims = |spec: &SeldonConfigSpec| -> Vec<(String, Vec<VolumeClaimTemplate>)> {
            let components = spec.components.iter();
            components.map(|c| (c.name.clone(), c.volume_claim_templates.clone())).collect()
        };
        if claims(now) == claims(before) || key.namespace != caches.settings.namespace {
            return None;
        }
        let mut stuck = Vec::new();
        for runtime in caches.of::<SeldonRuntime>().all() {
            if let Some(spec) = runtime.spec.as_ref().ok().filter(|s| s.seldon_config == key.name) {
                stuck.extend(of_runtime(&runtime, spec, now, caches));
            }
        }
        said("spec.components", "this change", &stuck)
    }
}

/// A Server's `StatefulSet`, if it has other volumes than these.
fn of_server(server: &Custom<Server>, claims: &[VolumeClaimTemplate], caches: &Caches) -> Option<Key> {
    let live = owned(caches, &server.key(), server.uid())?;
    differ(claims, &live).then(|| server.key())
}

/// The `StatefulSets` of a runtime that have other volumes than a configuration's components.
fn of_runtime(
    runtime: &Custom<SeldonRuntime>,
    spec: &SeldonRuntimeSpec,
    config: &SeldonConfigSpec,
    caches: &Caches,
) -> Vec<Key> {
    let is_off = |name: &str| spec.overrides.iter().any(|o| o.disable && o.name == name);
    // A component without volumes becomes a Deployment: its StatefulSet is taken away, not changed.
    let components =
        config.components.iter().filter(|c| !c.volume_claim_templates.is_empty() && !is_off(&c.name));
    let namespace = runtime.key().namespace;
    components
        .filter_map(|component| {
            let key = Key::new(namespace.clone(), component.name.clone());
            let live = owned(caches, &key, runtime.uid())?;
            differ(&component.volume_claim_templates, &live).then_some(key)
        })
        .collect()
}

/// The `StatefulSet` of that name, if it belongs to this object.
fn owned(caches: &Caches, key: &Key, uid: &str) -> Option<Arc<OwnedObject>> {
    let live = caches.owned(ResourceKind::STATEFUL_SET).get(key)?;
    let is_its_own = !uid.is_empty() && live.controller().is_some_and(|(_, owner)| owner == uid);
    (is_its_own && live.metadata.deletion_timestamp.is_none()).then_some(live)
}

/// Whether a `StatefulSet` has other volumes than these. What the API server fills in does not count.
fn differ(claims: &[VolumeClaimTemplate], live: &OwnedObject) -> bool {
    let none = Vec::new();
    let there = live.data.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).unwrap_or(&none);
    let is_there = |claim: &VolumeClaimTemplate| {
        let found = there.iter().find(|t| t.pointer("/metadata/name") == Some(&json!(claim.name)));
        found
            .and_then(|t| t.get("spec"))
            .is_some_and(|spec| holds(&claim.spec, spec) && !is_more(&claim.spec, spec))
    };
    claims.len() != there.len() || !claims.iter().all(is_there)
}

/// Whether something is there that would have to go.
fn is_more(wanted: &Value, live: &Value) -> bool {
    let is_filled_in = |name: &str, value: &Value| name == "volumeMode" && value == "Filesystem";
    let is_unsaid = |name: &str| wanted.get(name).is_none_or(Value::is_null);
    let fields = live.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| !value.is_null())
        .any(|(name, value)| is_unsaid(name) && !is_filled_in(name, value))
}

/// One sentence for all that would be stuck.
fn said(field: &str, what: &str, stuck: &[Key]) -> Option<Stuck> {
    let first = stuck.first()?.clone();
    let few: Vec<String> = stuck.iter().take(TOLD).map(Key::to_string).collect();
    let more = match stuck.len().saturating_sub(few.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let problem = format!(
        "{field}: {what} has other volumeClaimTemplates than StatefulSets {}{more}, which cannot change theirs",
        few.join(", ")
    );
    Some(Stuck { problem, first })
}
