//! Routes of services.

use super::Invalid;
use gantry_core::{
    rollout::Readiness,
    scheduling::{DeliveredVersion, Delivery, ServiceRecord},
};
use gantry_proto::gantry::{
    PodEndpoint, ServiceBackend, ServiceComponent, ServiceDelivery, ServiceRoute, service_backend,
    service_component::Role,
};
use prost::Message as _;
use std::{collections::BTreeSet, fmt::Display, net::IpAddr, sync::Arc};

const MAX_LABEL: usize = 63;
const MAX_HOST: usize = 253;
const MAX_HOSTS: usize = 64;
const MAX_BACKENDS: usize = 64;
const MAX_PODS: usize = 5_000;
const MAX_MODELS: usize = 10_000;
const MAX_REASON: usize = 4 << 10;
const MAX_ROUTE: usize = 2 << 20;

/// The name of a service in the state.
pub(crate) fn service_key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

pub(crate) fn service(route: &ServiceRoute) -> Result<ServiceRecord, Invalid> {
    label("namespace", &route.namespace)?;
    label("name", &route.name)?;
    at_most("hosts", "hosts", route.hosts.len(), MAX_HOSTS)?;
    for (i, host) in route.hosts.iter().enumerate() {
        check(is_host(host), format_args!("hosts[{i}]"), || {
            format!("{host:?} is not a host name in lower case without a port")
        })?;
    }
    check(route.graph.is_empty() != route.components.is_empty(), "components", || {
        "a route has either components or a graph".to_owned()
    })?;
    at_most("models", "models", route.models.len(), MAX_MODELS)?;
    for (i, model) in route.models.iter().enumerate() {
        check(!model.is_empty() && model.len() <= MAX_HOST, format_args!("models[{i}]"), || {
            "is empty or too long".to_owned()
        })?;
    }
    let mut roles = BTreeSet::new();
    for (i, component) in route.components.iter().enumerate() {
        let known = Role::try_from(component.role).is_ok();
        check(known && roles.insert(component.role), format_args!("components[{i}].role"), || {
            format!("{} is unknown, or the role of another component", component.role)
        })?;
        check_component(&format!("components[{i}]"), component)?;
    }
    let backends = || route.components.iter().flat_map(|component| &component.backends);
    at_most("components", "backends", backends().count(), MAX_BACKENDS)?;
    at_most("components", "pods", backends().map(|backend| backend.pods.len()).sum(), MAX_PODS)?;
    at_most("route", "bytes", route.encoded_len(), MAX_ROUTE)?;
    check(route.rollout.is_none() && route.rollout_generation == 0, "rollout", || {
        "is the scheduler's own".to_owned()
    })?;
    check(route.delivery.is_none() || route.algorithm.is_none(), "algorithm", || {
        "a route of an Algorithm has no delivery".to_owned()
    })?;
    if route.delivery.is_some() {
        check_versions(route)?;
    }
    accepted_service(route)
}

/// A route that was validated when it was accepted.
pub(crate) fn accepted_service(route: &ServiceRoute) -> Result<ServiceRecord, Invalid> {
    Ok(ServiceRecord {
        name: service_key(&route.namespace, &route.name),
        sleeps: route.components.iter().any(|component| component.sleeps),
        idle_timeout: route.idle_timeout_ms,
        delivery: route.delivery.as_ref().map(|delivery| self::delivery(delivery, route)).transpose()?,
        rollout: None,
        route: route.encode_to_vec().into(),
    })
}

/// The backends that a rollout policy delivers.
fn versions(route: &ServiceRoute) -> impl Iterator<Item = &ServiceBackend> {
    let backends = route.components.iter().flat_map(|component| &component.backends);
    backends.filter(|backend| !backend.revision.is_empty())
}

fn check_versions(route: &ServiceRoute) -> Result<(), Invalid> {
    let (mut revisions, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for ServiceBackend { name, revision, version, .. } in versions(route) {
        let is_unique = revisions.insert(revision) && numbers.insert(version);
        check(is_unique, format_args!("backend {name}"), || {
            format!("another backend has the revision {revision} or the version {version}")
        })?;
    }
    Ok(())
}

fn delivery(delivery: &ServiceDelivery, route: &ServiceRoute) -> Result<Delivery, Invalid> {
    let ServiceDelivery { policy, spec, desired_revision } = delivery;
    check(!desired_revision.is_empty(), "delivery.desired_revision", || "is empty".to_owned())?;
    let rules = super::rollout::rules("delivery", policy, spec)?;
    let version = |backend: &ServiceBackend| DeliveredVersion {
        revision: backend.revision.as_str().into(),
        number: backend.version,
        readiness: match backend.readiness() {
            service_backend::Readiness::Unknown => Readiness::Unknown,
            service_backend::Readiness::Ready => Readiness::Ready,
            service_backend::Readiness::NotReady => Readiness::NotReady,
        },
        pods: u32::try_from(backend.pods.len()).unwrap_or(u32::MAX),
    };
    Ok(Delivery {
        policy: policy.as_str().into(),
        rules: Arc::new(rules),
        desired: desired_revision.as_str().into(),
        versions: versions(route).map(version).collect(),
    })
}

fn check_component(at: &str, component: &ServiceComponent) -> Result<(), Invalid> {
    at_most(format_args!("{at}.reason"), "bytes", component.reason.len(), MAX_REASON)?;
    let mut names = BTreeSet::new();
    for (i, backend) in component.backends.iter().enumerate() {
        let at = format!("{at}.backends[{i}]");
        let ServiceBackend { name, weight, pods, .. } = backend;
        label(format_args!("{at}.name"), name)?;
        check(names.insert(name), format_args!("{at}.name"), || {
            format!("{name} is the name of another backend")
        })?;
        check(*weight <= 100, format_args!("{at}.weight"), || format!("{weight} is more than 100"))?;
        for (i, pod) in pods.iter().enumerate() {
            check_pod(&format!("{at}.pods[{i}]"), pod)?;
        }
    }
    let sum: u32 = component.backends.iter().map(|backend| backend.weight).sum();
    check(sum <= 100 || component.backends.len() == 1, format_args!("{at}.backends"), || {
        format!("the weights sum up to {sum}, at most 100 are possible")
    })
}

fn check_pod(
    at: &str,
    PodEndpoint { name, host, http_port, grpc_port }: &PodEndpoint,
) -> Result<(), Invalid> {
    check(!name.is_empty() && name.len() <= MAX_HOST, format_args!("{at}.name"), || {
        "is empty or too long".to_owned()
    })?;
    check(host.parse::<IpAddr>().is_ok() || is_host(host), format_args!("{at}.host"), || {
        format!("{host:?} is neither an IP address nor a host name")
    })?;
    for (field, port) in [("http_port", http_port), ("grpc_port", grpc_port)] {
        check(u16::try_from(*port).is_ok(), format_args!("{at}.{field}"), || {
            format!("{port} is not a port")
        })?;
    }
    check(*http_port > 0 || *grpc_port > 0, format_args!("{at}.http_port"), || {
        "the pod has neither an HTTP nor a gRPC port".to_owned()
    })
}

fn is_label(label: &str) -> bool {
    label.len() <= MAX_LABEL && gantry_api::check_name(label).is_ok()
}

fn is_host(host: &str) -> bool {
    host.len() <= MAX_HOST && host.split('.').all(is_label)
}

fn label(field: impl Display, name: &str) -> Result<(), Invalid> {
    check(is_label(name), field, || {
        format!("{name:?} is not a DNS label: use up to {MAX_LABEL} lower-case letters, digits and '-'")
    })
}

fn at_most(field: impl Display, things: &str, count: usize, limit: usize) -> Result<(), Invalid> {
    check(count <= limit, field, || format!("{count} {things}, at most {limit} are possible"))
}

fn check(holds: bool, field: impl Display, problem: impl FnOnce() -> String) -> Result<(), Invalid> {
    if holds { Ok(()) } else { Err(Invalid::new(format!("{field}: {}", problem()))) }
}
