//! Statuses and routes of services.

use crate::read_model::ServiceSnapshot;
use gantry_core::scheduling::Service;
use gantry_proto::gantry::{ServiceName, ServiceRoute, ServiceState};
use prost::Message as _;

fn as_put(snapshot: &ServiceSnapshot) -> ServiceRoute {
    // Encoded by `convert::service`, so decoding cannot fail.
    ServiceRoute::decode(&*snapshot.service.route).unwrap_or_default()
}

/// The route for gateways: a rollout sets the weights of its versions.
pub(crate) fn service_route(snapshot: &ServiceSnapshot) -> ServiceRoute {
    let (mut route, service) = (as_put(snapshot), &snapshot.service);
    // The weights are the operator's or those of a rollout, never both.
    let of_algorithm = route.algorithm.take().map(|algorithm| algorithm.generation);
    route.rollout_generation = of_algorithm.unwrap_or_else(|| service.rollout_generation());
    for backend in route.components.iter_mut().flat_map(|component| &mut component.backends) {
        if let Some(percent) = service.percent(&backend.revision).filter(|_| !backend.revision.is_empty()) {
            backend.weight = percent;
        }
    }
    ServiceRoute { delivery: None, ..route }
}

/// Whether the route leads to an Algorithm.
pub(crate) fn is_algorithm(snapshot: &ServiceSnapshot) -> bool {
    as_put(snapshot).algorithm.is_some()
}

pub(crate) fn service(snapshot: &ServiceSnapshot) -> ServiceState {
    let Service { admitted, waiting, idle, .. } = snapshot.service;
    let reason = if admitted { String::new() } else { snapshot.obstacle.to_owned() };
    ServiceState { route: Some(as_put(snapshot)), admitted, reason, waiting, idle }
}

/// From `namespace/name`.
pub(crate) fn service_name(key: &str) -> ServiceName {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    ServiceName { namespace: namespace.to_owned(), name: name.to_owned() }
}
