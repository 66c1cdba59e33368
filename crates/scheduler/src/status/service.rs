//! Statuses and routes of services.

use crate::read_model::ServiceSnapshot;
use gantry_core::scheduling::Service;
use gantry_proto::gantry::{ServiceName, ServiceRoute, ServiceState};
use prost::Message as _;

pub(crate) fn service_route(snapshot: &ServiceSnapshot) -> ServiceRoute {
    // Encoded by `convert::service`, so decoding cannot fail.
    ServiceRoute::decode(&*snapshot.service.route).unwrap_or_default()
}

pub(crate) fn service(snapshot: &ServiceSnapshot) -> ServiceState {
    let Service { admitted, waiting, idle, .. } = snapshot.service;
    let reason = if admitted { String::new() } else { snapshot.obstacle.to_owned() };
    ServiceState { route: Some(service_route(snapshot)), admitted, reason, waiting, idle }
}

/// From `namespace/name`.
pub(crate) fn service_name(key: &str) -> ServiceName {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    ServiceName { namespace: namespace.to_owned(), name: name.to_owned() }
}
