//! Warnings about references: dangling ones on write, dependents on delete.
//!
//! References are never rejected: manifests are applied in any order, and Helm or a namespace deletion removes objects in
//! any order. Pods created from a deleted configuration keep running.

use crate::{
    caches::Caches,
    cluster::{
        Cache, Custom, CustomKind, Experiment, InferenceService, Key, Model, Pipeline, RolloutPolicy,
        SeldonConfig, SeldonRuntime, Server, ServerConfig,
    },
    controllers::rollout_policy::{Conflict, Facts},
    plan::Known,
    schedulers::{ServerView, is_under_way, target_name},
};
use gantry_api::{PipelineSpec, ResourceType, TargetKind};

/// Dependents listed by name.
const MAX_LISTED: usize = 3;

/// A kind whose objects reference others or are referenced.
pub(crate) trait References: CustomKind {
    /// Warnings about references to missing objects.
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String>;
    /// Warnings about objects that depend on a deleted one.
    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String>;
}

impl References for Model {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let mut warnings = Vec::new();
        if let Some(server) = &spec.server
            && is_absent(&caches.of::<Server>(), caches, namespace, server)
            // Agents may connect to a scheduler without a Server object.
            && !matches!(caches.schedulers.get::<ServerView>(&Key::new(namespace.clone(), server.clone())), Known::Present(_))
        {
            warnings.push(format!(
                "spec.server: Server \"{server}\" not found in namespace {namespace}; the model is not scheduled until it exists"
            ));
        }
        let explainer = spec.explainer.iter().flat_map(|e| {
            [("explainer.modelRef", true, &e.model_ref), ("explainer.pipelineRef", false, &e.pipeline_ref)]
        });
        let llm = spec.llm.iter().flat_map(|l| {
            [("llm.modelRef", true, &l.model_ref), ("llm.pipelineRef", false, &l.pipeline_ref)]
        });
        for (field, is_model, name) in explainer.chain(llm) {
            if let Some(name) = name {
                warnings.extend(missing(
                    &format!("spec.{field}"),
                    of_kind(is_model),
                    caches,
                    namespace,
                    name,
                ));
            }
        }
        warnings
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let pipelines = users(&caches.of::<Pipeline>(), &key.namespace, |p| {
            p.spec.as_ref().is_ok_and(|spec| spec.steps.iter().any(|step| step.name == key.name))
        });
        let experiments = users(&caches.of::<Experiment>(), &key.namespace, |e| {
            e.spec.as_ref().is_ok_and(|s| s.resource_type == ResourceType::Model && compares(s, &key.name))
        });
        used_by("Model", &key, &[("Pipelines", pipelines), ("Experiments", experiments)])
    }
}

impl References for Server {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let Ok(spec) = &object.spec else { return Vec::new() };
        let (name, place) = (&spec.server_config, &caches.settings.namespace);
        if !is_absent(&caches.of::<ServerConfig>(), caches, place, name) {
            return Vec::new();
        }
        vec![format!(
            "spec.serverConfig: ServerConfig \"{name}\" not found in the operator's namespace {place}; no pods are created \
             until it exists"
        )]
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let models = users(&caches.of::<Model>(), &key.namespace, |m| {
            m.spec.as_ref().is_ok_and(|spec| spec.server.as_deref() == Some(key.name.as_str()))
        });
        if models.is_empty() {
            return Vec::new();
        }
        let (name, models) = (&key.name, listed(&models));
        vec![format!(
            "Models {models} are pinned to Server \"{name}\" (spec.server); they are unavailable until it is recreated"
        )]
    }
}

impl References for ServerConfig {
    fn dangling(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let is_user = |s: &Custom<Server>| s.spec.as_ref().is_ok_and(|s| s.server_config == key.name);
        config_in_use(
            "ServerConfig",
            &key,
            caches,
            "Servers",
            &users_in_all_namespaces(&caches.of::<Server>(), is_user),
        )
    }
}

impl References for SeldonRuntime {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), key) = (&object.spec, object.key()) else { return Vec::new() };
        let mut warnings = Vec::new();
        let (name, place) = (&spec.seldon_config, &caches.settings.namespace);
        if is_absent(&caches.of::<SeldonConfig>(), caches, place, name) {
            warnings.push(format!(
                "spec.seldonConfig: SeldonConfig \"{name}\" not found in the operator's namespace {place}; no components are \
                 created until it exists"
            ));
        }
        if let Some(Ok(config)) = caches
            .of::<SeldonConfig>()
            .get(&Key::new(place.clone(), name.clone()))
            .as_deref()
            .map(|c| &c.spec)
        {
            let is_there = |name: &str| config.components.iter().any(|c| c.name == name);
            let without = spec.overrides.iter().enumerate().filter(|(_, o)| !is_there(&o.name));
            warnings.extend(without.map(|(i, over)| {
                format!(
                    "spec.overrides[{i}].name: SeldonConfig \"{name}\" has no component \"{}\"; the override has no effect",
                    over.name
                )
            }));
        }
        let others = users(&caches.of::<SeldonRuntime>(), &key.namespace, |r| r.key().name != key.name);
        if let Some(other) = others.first() {
            warnings.push(format!(
                "namespace {} already has SeldonRuntime \"{other}\"; only the older of the two is reconciled",
                key.namespace
            ));
        }
        warnings
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let servers = users(&caches.of::<Server>(), &key.namespace, |_| true);
        let others = users(&caches.of::<SeldonRuntime>(), &key.namespace, |r| r.key().name != key.name);
        if servers.is_empty() || !others.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "SeldonRuntime \"{}\" is not removed before the Servers of its namespace: {}",
            key.name,
            listed(&servers)
        )]
    }
}

impl References for SeldonConfig {
    fn dangling(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let is_user = |r: &Custom<SeldonRuntime>| r.spec.as_ref().is_ok_and(|s| s.seldon_config == key.name);
        config_in_use(
            "SeldonConfig",
            &key,
            caches,
            "SeldonRuntimes",
            &users_in_all_namespaces(&caches.of::<SeldonRuntime>(), is_user),
        )
    }
}

impl References for Pipeline {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), key) = (&object.spec, object.key()) else { return Vec::new() };
        let steps = spec.steps.iter().enumerate();
        let steps = steps.map(|(i, step)| (format!("spec.steps[{i}].name"), true, step.name.as_str()));
        // Its own inputs and outputs are no reference.
        let sources = sources(spec).filter(|(_, name)| *name != key.name);
        let sources = sources.map(|(field, name)| (field, false, name));
        steps
            .chain(sources)
            .filter_map(|(field, is_model, name)| {
                missing(&field, of_kind(is_model), caches, &key.namespace, name)
            })
            .collect()
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let pipelines = users(&caches.of::<Pipeline>(), &key.namespace, |p| {
            let reads = |spec| sources(spec).any(|(_, name)| name == key.name);
            p.key().name != key.name && p.spec.as_ref().is_ok_and(reads)
        });
        let experiments = users(&caches.of::<Experiment>(), &key.namespace, |e| {
            e.spec.as_ref().is_ok_and(|s| s.resource_type == ResourceType::Pipeline && compares(s, &key.name))
        });
        used_by("Pipeline", &key, &[("Pipelines", pipelines), ("Experiments", experiments)])
    }
}

/// The pipelines that a pipeline takes its input from, each with the field that names it.
fn sources(spec: &PipelineSpec) -> impl Iterator<Item = (String, &str)> {
    let lists = spec.input.iter().flat_map(|input| {
        [("externalInputs", &input.external_inputs), ("externalTriggers", &input.external_triggers)]
    });
    lists.flat_map(|(list, sources)| {
        sources.iter().enumerate().map(move |(i, source)| {
            let pipeline = source.split('.').next().unwrap_or_default();
            (format!("spec.input.{list}[{i}]"), pipeline)
        })
    })
}

fn used_by(kind: &str, key: &Key, users: &[(&str, Vec<String>)]) -> Vec<String> {
    let used = users.iter().filter(|(_, names)| !names.is_empty());
    used.map(|(by, names)| format!("{kind} \"{}\" is used by {by} {}", key.name, listed(names))).collect()
}

impl References for Experiment {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let is_model = spec.resource_type == ResourceType::Model;
        let candidates = spec.candidates.iter().enumerate();
        let named = candidates.map(|(i, c)| (format!("spec.candidates[{i}].name"), &c.name));
        let mirror = spec.mirror.iter().map(|m| ("spec.mirror.name".to_owned(), &m.name));
        named
            .chain(mirror)
            .filter_map(|(field, name)| missing(&field, of_kind(is_model), caches, namespace, name))
            .collect()
    }

    fn dependents(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }
}

fn compares(spec: &gantry_api::ExperimentSpec, name: &str) -> bool {
    spec.candidates.iter().any(|c| c.name == name) || spec.mirror.as_ref().is_some_and(|m| m.name == name)
}

const fn of_kind(is_model: bool) -> TargetKind {
    if is_model { TargetKind::Model } else { TargetKind::Pipeline }
}

/// A warning about a missing object.
fn missing(field: &str, kind: TargetKind, caches: &Caches, namespace: &str, name: &str) -> Option<String> {
    let absent = match kind {
        TargetKind::Model => is_absent(&caches.of::<Model>(), caches, namespace, name),
        TargetKind::Pipeline => is_absent(&caches.of::<Pipeline>(), caches, namespace, name),
        TargetKind::InferenceService => is_absent(&caches.of::<InferenceService>(), caches, namespace, name),
        TargetKind::Algorithm => false,
    };
    let kind = kind.name();
    absent.then(|| format!("{field}: {kind} \"{name}\" not found in namespace {namespace}"))
}

impl References for RolloutPolicy {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let facts = Facts::of(caches, object);
        let kind = facts.kind.map_or("object", TargetKind::name);
        let mut warnings: Vec<String> = facts
            .conflicts
            .iter()
            .take(MAX_LISTED)
            .map(|Conflict { target, policy }| {
                format!("spec: {kind} \"{target}\" is selected by RolloutPolicy \"{policy}\", too, which is older and applies")
            })
            .collect();
        if let Some(target) = &spec.target_ref {
            warnings.extend(missing("spec.targetRef.name", target.kind, caches, namespace, &target.name));
        } else if warnings.is_empty()
            && facts.targets.is_empty()
            && facts.unsupported.is_empty()
            && match facts.kind {
                Some(TargetKind::Model) => is_synced(&caches.of::<Model>(), caches, namespace),
                Some(TargetKind::Pipeline) => is_synced(&caches.of::<Pipeline>(), caches, namespace),
                Some(TargetKind::InferenceService) => {
                    is_synced(&caches.of::<InferenceService>(), caches, namespace)
                }
                Some(TargetKind::Algorithm) | None => false,
            }
        {
            warnings.push(format!("spec.selector: selects no {kind} in namespace {namespace}"));
        }
        warnings
    }

    fn dependents(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let rollouts = caches.schedulers.rollouts_of(&key);
        let under_way = rollouts.iter().filter(|rollout| is_under_way(rollout));
        let names: Vec<String> = under_way.map(|rollout| target_name(rollout).to_owned()).collect();
        if names.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "RolloutPolicy \"{}\" has rollouts under way, which end: the latest versions of {} get all requests",
            key.name,
            listed(&names)
        )]
    }
}

/// Whether all objects of a kind in a namespace are known.
fn is_synced<K: CustomKind>(cache: &Cache<Custom<K>>, caches: &Caches, namespace: &str) -> bool {
    let scopes = caches.settings.scope.watched(&caches.settings.namespace);
    let scope = scopes.iter().find(|scope| scope.is_empty() || scope.as_str() == namespace);
    scope.is_some_and(|scope| cache.is_listed([scope.as_str()]))
}

/// Whether an object is known to be missing or terminating; unknown outside the watched namespaces.
fn is_absent<K: CustomKind>(cache: &Cache<Custom<K>>, caches: &Caches, namespace: &str, name: &str) -> bool {
    // An empty name is a schema error.
    is_synced(cache, caches, namespace)
        && !name.trim().is_empty()
        && cache.get(&Key::new(namespace, name)).is_none_or(|object| object.is_deleted())
}

/// Names of the matching objects of a namespace that are not terminating.
fn users<K: CustomKind>(
    cache: &Cache<Custom<K>>,
    namespace: &str,
    is_user: impl Fn(&Custom<K>) -> bool,
) -> Vec<String> {
    let all = cache.in_namespace(namespace);
    all.iter().filter(|o| !o.is_deleted() && is_user(o)).map(|o| o.key().name).collect()
}

/// The same for all namespaces, as `namespace/name`.
fn users_in_all_namespaces<K: CustomKind>(
    cache: &Cache<Custom<K>>,
    is_user: impl Fn(&Custom<K>) -> bool,
) -> Vec<String> {
    let all = cache.all();
    all.iter().filter(|o| !o.is_deleted() && is_user(o)).map(|o| o.key().to_string()).collect()
}

/// Only configurations in the operator's namespace are used.
fn config_in_use(kind: &str, key: &Key, caches: &Caches, users_kind: &str, users: &[String]) -> Vec<String> {
    if users.is_empty() || key.namespace != caches.settings.namespace {
        return Vec::new();
    }
    vec![format!(
        "{kind} \"{}\" is used by {users_kind} {}; their pods keep running, but are not updated until it is recreated",
        key.name,
        listed(users)
    )]
}

/// The first names, and the number of others.
fn listed(names: &[String]) -> String {
    let few: Vec<&str> = names.iter().take(MAX_LISTED).map(String::as_str).collect();
    match names.len().saturating_sub(few.len()) {
        0 => few.join(", "),
        more => format!("{} and {more} more", few.join(", ")),
    }
}
