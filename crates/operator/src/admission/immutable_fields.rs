//! Changes of immutable fields: the volume claim templates of a `StatefulSet`.
//!
//! The operator updates or replaces all other objects, but never deletes a `StatefulSet` because of its volumes: the
//! apply would fail (`ApplyRefused`). Such a change is rejected, or only warned about when the object requests it.

use super::validate::WARN_ONLY;
use crate::{
    caches::Caches,
    cluster::{
        Custom, CustomKind, Experiment, Key, Model, OwnedObject, Pipeline, ResourceKind, RolloutPolicy,
        SeldonConfig, SeldonRuntime, Server, ServerConfig, is_subset,
    },
};
use gantry_api::{SeldonConfigSpec, SeldonRuntimeSpec, VolumeClaimTemplate};
use serde_json::{Value, json};
use std::sync::Arc;

/// `StatefulSets` listed by name.
const MAX_LISTED: usize = 3;

/// A change that Kubernetes would reject for some `StatefulSets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImmutableChange {
    problem: String,
    first: Key,
}

impl ImmutableChange {
    fn recreate_command(&self) -> String {
        format!("kubectl delete statefulset {} -n {} --cascade=orphan", self.first.name, self.first.namespace)
    }

    pub(super) fn rejection(&self) -> String {
        let (annotation, value) = WARN_ONLY;
        format!(
            "{}: use another name; or annotate this object with {annotation}={value}, apply it, and recreate them ({})",
            self.problem,
            self.recreate_command()
        )
    }

    pub(super) fn warning(&self) -> String {
        format!("{}: recreate them now ({})", self.problem, self.recreate_command())
    }
}

pub(crate) trait ImmutableFields: CustomKind {
    fn immutable_change(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<ImmutableChange>;
}

macro_rules! without_immutable_fields {
    ($($kind:ty),*) => {$(
        impl ImmutableFields for $kind {
            fn immutable_change(_: &Custom<Self>, _: &Custom<Self>, _: &Caches) -> Option<ImmutableChange> {
                None
            }
        }
    )*};
}

without_immutable_fields!(Model, Pipeline, Experiment, RolloutPolicy);

impl ImmutableFields for Server {
    fn immutable_change(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<ImmutableChange> {
        let (Ok(now), Ok(before)) = (&new.spec, &old.spec) else { return None };
        if now.server_config == before.server_config {
            return None;
        }
        let key = Key::new(caches.settings.namespace.clone(), now.server_config.clone());
        let config = caches.of::<ServerConfig>().get(&key);
        let Some(Ok(config)) = config.as_deref().map(|c| &c.spec) else { return None };
        let changed = changed_in_server(old, &config.volume_claim_templates, caches);
        immutable_change("spec.serverConfig", &format!("ServerConfig \"{}\"", key.name), changed.as_slice())
    }
}

impl ImmutableFields for ServerConfig {
    fn immutable_change(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<ImmutableChange> {
        let (Ok(now), Ok(before), key) = (&new.spec, &old.spec, new.key()) else { return None };
        let is_same = now.volume_claim_templates == before.volume_claim_templates;
        if is_same || key.namespace != caches.settings.namespace {
            return None;
        }
        let is_user = |s: &Custom<Server>| s.spec.as_ref().is_ok_and(|s| s.server_config == key.name);
        let servers = caches.of::<Server>().all().into_iter().filter(|server| is_user(server));
        let changed: Vec<Key> =
            servers.filter_map(|s| changed_in_server(&s, &now.volume_claim_templates, caches)).collect();
        immutable_change("spec.volumeClaimTemplates", "this change", &changed)
    }
}

impl ImmutableFields for SeldonRuntime {
    fn immutable_change(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<ImmutableChange> {
        let (Ok(now), Ok(before)) = (&new.spec, &old.spec) else { return None };
        if now.seldon_config == before.seldon_config {
            return None;
        }
        let key = Key::new(caches.settings.namespace.clone(), now.seldon_config.clone());
        let config = caches.of::<SeldonConfig>().get(&key);
        let Some(Ok(config)) = config.as_deref().map(|c| &c.spec) else { return None };
        let changed = changed_in_runtime(old, now, config, caches);
        immutable_change("spec.seldonConfig", &format!("SeldonConfig \"{}\"", key.name), &changed)
    }
}

impl ImmutableFields for SeldonConfig {
    fn immutable_change(new: &Custom<Self>, old: &Custom<Self>, caches: &Caches) -> Option<ImmutableChange> {
        let (Ok(now), Ok(before), key) = (&new.spec, &old.spec, new.key()) else { return None };
        let claims = |spec: &SeldonConfigSpec| -> Vec<(String, Vec<VolumeClaimTemplate>)> {
            let components = spec.components.iter();
            components.map(|c| (c.name.clone(), c.volume_claim_templates.clone())).collect()
        };
        if claims(now) == claims(before) || key.namespace != caches.settings.namespace {
            return None;
        }
        let mut changed = Vec::new();
        for runtime in caches.of::<SeldonRuntime>().all() {
            if let Some(spec) = runtime.spec.as_ref().ok().filter(|s| s.seldon_config == key.name) {
                changed.extend(changed_in_runtime(&runtime, spec, now, caches));
            }
        }
        immutable_change("spec.components", "this change", &changed)
    }
}

/// The Server's `StatefulSet`, if its claim templates differ.
fn changed_in_server(
    server: &Custom<Server>,
    claims: &[VolumeClaimTemplate],
    caches: &Caches,
) -> Option<Key> {
    let live = owned(caches, &server.key(), server.uid())?;
    differ(claims, &live).then(|| server.key())
}

/// The `StatefulSets` of a runtime whose claim templates differ from those of the configuration.
fn changed_in_runtime(
    runtime: &Custom<SeldonRuntime>,
    spec: &SeldonRuntimeSpec,
    config: &SeldonConfigSpec,
    caches: &Caches,
) -> Vec<Key> {
    let is_off = |name: &str| spec.overrides.iter().any(|o| o.disable && o.name == name);
    // A component without volumes becomes a Deployment: its StatefulSet is deleted, not changed.
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

/// The `StatefulSet` of that name, if this object controls it.
fn owned(caches: &Caches, key: &Key, uid: &str) -> Option<Arc<OwnedObject>> {
    let live = caches.owned(ResourceKind::STATEFUL_SET).get(key)?;
    let is_controlled = !uid.is_empty() && live.controller().is_some_and(|(_, owner)| owner == uid);
    (is_controlled && live.metadata.deletion_timestamp.is_none()).then_some(live)
}

/// Whether the claim templates of a `StatefulSet` differ, ignoring defaults set by the API server.
fn differ(claims: &[VolumeClaimTemplate], live: &OwnedObject) -> bool {
    let none = Vec::new();
    let there = live.data.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).unwrap_or(&none);
    let is_there = |claim: &VolumeClaimTemplate| {
        let found = there.iter().find(|t| t.pointer("/metadata/name") == Some(&json!(claim.name)));
        found
            .and_then(|t| t.get("spec"))
            .is_some_and(|spec| is_subset(&claim.spec, spec) && !has_extra_fields(&claim.spec, spec))
    };
    claims.len() != there.len() || !claims.iter().all(is_there)
}

/// Whether the live template has fields that the desired one lacks.
fn has_extra_fields(desired: &Value, live: &Value) -> bool {
    let is_default = |name: &str, value: &Value| name == "volumeMode" && value == "Filesystem";
    let is_unset = |name: &str| desired.get(name).is_none_or(Value::is_null);
    let fields = live.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| !value.is_null())
        .any(|(name, value)| is_unset(name) && !is_default(name, value))
}

fn immutable_change(field: &str, source: &str, changed: &[Key]) -> Option<ImmutableChange> {
    let first = changed.first()?.clone();
    let few: Vec<String> = changed.iter().take(MAX_LISTED).map(Key::to_string).collect();
    let more = match changed.len().saturating_sub(few.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let problem = format!(
        "{field}: volumeClaimTemplates are immutable, and those of StatefulSets {}{more} differ from {source}",
        few.join(", ")
    );
    Some(ImmutableChange { problem, first })
}
