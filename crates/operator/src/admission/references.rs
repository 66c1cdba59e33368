//! Names of other objects: those that are not there, and those that would be missed.
//!
//! A reference is never refused. Files are applied in any order, a model may wait for its server, and what is gone can
//! come back: nothing here is more than a word to whoever types. Deleting a configuration that is in use is no
//! exception: what was made from it runs on, and whoever takes everything away at once (Helm, a namespace) does so in an
//! order of its own.

use crate::{
    cluster::{
        Cache, Custom, CustomKind, Experiment, Key, Model, Pipeline, SeldonConfig, SeldonRuntime, Server,
        ServerConfig,
    },
    plan::Known,
    caches::Caches,
};
use gantry_api::ResourceType;

/// Users of something that are told by name.
const TOLD: usize = 3;

/// A kind whose objects name others, or are named.
pub(crate) trait Referring: CustomKind {
    /// What an object names that is not there.
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String>;
    /// Who would miss an object that goes.
    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String>;
}

impl Referring for Model {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let mut warnings = Vec::new();
        if let Some(server) = &spec.server
            && is_absent(&caches.of::<Server>(), caches, namespace, server)
            // Agents may join a scheduler without a Server that the operator made.
            && !matches!(caches.schedulers.server(&Key::new(namespace.clone(), server.clone())), Known::Present(_))
        {
            warnings.push(format!(
                "spec.server: there is no Server \"{server}\" in namespace {namespace}: the model waits until there is one"
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
                warnings.extend(unknown(&format!("spec.{field}"), is_model, caches, namespace, name));
            }
        }
        warnings
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let mut warnings = Vec::new();
        let pipelines = users(&caches.of::<Pipeline>(), &key.namespace, |p| {
            p.spec.as_ref().is_ok_and(|spec| spec.steps.iter().any(|step| step.name == key.name))
        });
        let experiments = users(&caches.of::<Experiment>(), &key.namespace, |e| {
            e.spec.as_ref().is_ok_and(|s| s.resource_type == ResourceType::Model && compares(s, &key.name))
        });
        for (kind, names) in [("Pipelines", pipelines), ("Experiments", experiments)] {
            if !names.is_empty() {
                warnings.push(format!("Model \"{}\" is used by {kind} {}", key.name, listed(&names)));
            }
        }
        warnings
    }
}

impl Referring for Server {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let Ok(spec) = &object.spec else { return Vec::new() };
        let (name, place) = (&spec.server_config, &caches.settings.namespace);
        if !is_absent(&caches.of::<ServerConfig>(), caches, place, name) {
            return Vec::new();
        }
        vec![format!(
            "spec.serverConfig: there is no ServerConfig \"{name}\" in namespace {place}, where they are looked up: no \
             pods are made until there is one"
        )]
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let models = users(&caches.of::<Model>(), &key.namespace, |m| {
            m.spec.as_ref().is_ok_and(|spec| spec.server.as_deref() == Some(key.name.as_str()))
        });
        if models.is_empty() {
            return Vec::new();
        }
        let (name, models) = (&key.name, listed(&models));
        vec![format!(
            "Models {models} are for Server \"{name}\" only (spec.server): nothing serves them until there is one of that \
             name"
        )]
    }
}

impl Referring for ServerConfig {
    fn dangling(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let is_user = |s: &Custom<Server>| s.spec.as_ref().is_ok_and(|s| s.server_config == key.name);
        left_without("ServerConfig", &key, caches, "Servers", &everywhere(&caches.of::<Server>(), is_user))
    }
}

impl Referring for SeldonRuntime {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), key) = (&object.spec, object.key()) else { return Vec::new() };
        let mut warnings = Vec::new();
        let (name, place) = (&spec.seldon_config, &caches.settings.namespace);
        if is_absent(&caches.of::<SeldonConfig>(), caches, place, name) {
            warnings.push(format!(
                "spec.seldonConfig: there is no SeldonConfig \"{name}\" in namespace {place}, where they are looked up: \
                 no components are made until there is one"
            ));
        }
        if let Some(Ok(config)) =
            caches.of::<SeldonConfig>().get(&Key::new(place.clone(), name.clone())).as_deref().map(|c| &c.spec)
        {
            let is_there = |name: &str| config.components.iter().any(|c| c.name == name);
            let without = spec.overrides.iter().enumerate().filter(|(_, o)| !is_there(&o.name));
            warnings.extend(without.map(|(i, over)| {
                format!(
                    "spec.overrides[{i}].name: SeldonConfig \"{name}\" has no component \"{}\": the override does nothing",
                    over.name
                )
            }));
        }
        let others = users(&caches.of::<SeldonRuntime>(), &key.namespace, |r| r.key().name != key.name);
        if let Some(other) = others.first() {
            warnings.push(format!(
                "namespace {} has SeldonRuntime \"{other}\" too: only the older of the two is made",
                key.namespace
            ));
        }
        warnings
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let servers = users(&caches.of::<Server>(), &key.namespace, |_| true);
        let others = users(&caches.of::<SeldonRuntime>(), &key.namespace, |r| r.key().name != key.name);
        if servers.is_empty() || !others.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "SeldonRuntime \"{}\" stays until the Servers of its namespace are deleted: {}",
            key.name,
            listed(&servers)
        )]
    }
}

impl Referring for SeldonConfig {
    fn dangling(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let is_user = |r: &Custom<SeldonRuntime>| r.spec.as_ref().is_ok_and(|s| s.seldon_config == key.name);
        left_without("SeldonConfig", &key, caches, "SeldonRuntimes", &everywhere(&caches.of::<SeldonRuntime>(), is_user))
    }
}

impl Referring for Pipeline {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let steps = spec.steps.iter().enumerate();
        steps
            .filter_map(|(i, step)| {
                unknown(&format!("spec.steps[{i}].name"), true, caches, namespace, &step.name)
            })
            .collect()
    }

    fn missed(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let key = object.key();
        let experiments = users(&caches.of::<Experiment>(), &key.namespace, |e| {
            e.spec.as_ref().is_ok_and(|s| s.resource_type == ResourceType::Pipeline && compares(s, &key.name))
        });
        if experiments.is_empty() {
            return Vec::new();
        }
        vec![format!("Pipeline \"{}\" is used by Experiments {}", key.name, listed(&experiments))]
    }
}

impl Referring for Experiment {
    fn dangling(object: &Custom<Self>, caches: &Caches) -> Vec<String> {
        let (Ok(spec), namespace) = (&object.spec, &object.key().namespace) else { return Vec::new() };
        let is_model = spec.resource_type == ResourceType::Model;
        let candidates = spec.candidates.iter().enumerate();
        let named = candidates.map(|(i, c)| (format!("spec.candidates[{i}].name"), &c.name));
        let mirror = spec.mirror.iter().map(|m| ("spec.mirror.name".to_owned(), &m.name));
        named
            .chain(mirror)
            .filter_map(|(field, name)| unknown(&field, is_model, caches, namespace, name))
            .collect()
    }

    fn missed(_: &Custom<Self>, _: &Caches) -> Vec<String> {
        Vec::new()
    }
}

fn compares(spec: &gantry_api::ExperimentSpec, name: &str) -> bool {
    spec.candidates.iter().any(|c| c.name == name) || spec.mirror.as_ref().is_some_and(|m| m.name == name)
}

/// A word on a model or pipeline that is not there.
fn unknown(field: &str, is_model: bool, caches: &Caches, namespace: &str, name: &str) -> Option<String> {
    let (kind, absent) = if is_model {
        ("Model", is_absent(&caches.of::<Model>(), caches, namespace, name))
    } else {
        ("Pipeline", is_absent(&caches.of::<Pipeline>(), caches, namespace, name))
    };
    absent.then(|| format!("{field}: there is no {kind} \"{name}\" in namespace {namespace}"))
}

/// Whether an object is known not to be there, or to be going. What is not looked at here is not known to be absent.
fn is_absent<K: CustomKind>(cache: &Cache<Custom<K>>, caches: &Caches, namespace: &str, name: &str) -> bool {
    let scopes = caches.settings.scope.watched(&caches.settings.namespace);
    let scope = scopes.iter().find(|scope| scope.is_empty() || scope.as_str() == namespace);
    let is_seen = scope.is_some_and(|scope| cache.is_listed([scope.as_str()]));
    // The schema has a word for an empty name.
    is_seen
        && !name.trim().is_empty()
        && cache.get(&Key::new(namespace, name)).is_none_or(|object| object.is_deleted())
}

/// Names of the objects of a namespace that are of a certain sort, and stay.
fn users<K: CustomKind>(
    cache: &Cache<Custom<K>>,
    namespace: &str,
    is_user: impl Fn(&Custom<K>) -> bool,
) -> Vec<String> {
    let all = cache.in_namespace(namespace);
    all.iter().filter(|o| !o.is_deleted() && is_user(o)).map(|o| o.key().name).collect()
}

/// The same for all namespaces, as `namespace/name`.
fn everywhere<K: CustomKind>(cache: &Cache<Custom<K>>, is_user: impl Fn(&Custom<K>) -> bool) -> Vec<String> {
    let all = cache.all();
    all.iter().filter(|o| !o.is_deleted() && is_user(o)).map(|o| o.key().to_string()).collect()
}

/// A word on a configuration that goes. Only those of the operator's own namespace are used.
fn left_without(kind: &str, key: &Key, caches: &Caches, users_kind: &str, users: &[String]) -> Vec<String> {
    if users.is_empty() || key.namespace != caches.settings.namespace {
        return Vec::new();
    }
    vec![format!(
        "{kind} \"{}\" is used by {users_kind} {}: their pods run on, and cannot be changed until there is one of that name",
        key.name,
        listed(users)
    )]
}

/// Names for a sentence: the first few, and how many more.
fn listed(names: &[String]) -> String {
    let few: Vec<&str> = names.iter().take(TOLD).map(String::as_str).collect();
    match names.len().saturating_sub(few.len()) {
        0 => few.join(", "),
        more => format!("{} and {more} more", few.join(", ")),
    }
}
