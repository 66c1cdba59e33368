//! Services of a runtime: the scheduler, and the component that takes requests.

use super::objects::{Build, NAME};
use crate::cluster::{Desired, ResourceKind};
use gantry_api::SeldonConfiguration;
use serde_json::{Value, json};

/// The scheduler's component and Service.
pub(super) const SCHEDULER: &str = "seldon-scheduler";
/// Gantry's gateway.
pub(super) const GATEWAY: &str = "seldon-gateway";
/// Components that take inference requests, Gantry's own first.
const GATEWAYS: [&str; 2] = [GATEWAY, ENVOY];
/// Seldon's.
const ENVOY: &str = "seldon-envoy";
/// The label of pods that take inference requests.
const SERVES: (&str, &str) = ("gantry.dev/serves", "mesh");

/// gRPC ports of the scheduler.
const SCHEDULER_PORTS: [(&str, u16); 6] = [
    ("xds", 9002),
    ("scheduler", 9004),
    ("scheduler-mtls", 9044),
    ("agent", 9005),
    ("agent-mtls", 9055),
    ("dataflow", 9008),
];

/// The extra label of a component's pods.
pub(super) fn label(build: &Build<'_>, component: &str) -> Option<(&'static str, &'static str)> {
    (GATEWAYS.contains(&component) && mesh(build) == SERVES).then_some(SERVES)
}

/// The selector of the pods that take requests. Pods of Seldon's Envoy alone have no label of ours, and are not restarted
/// to get it.
fn mesh(build: &Build<'_>) -> (&'static str, &'static str) {
    match GATEWAYS.map(|gateway| build.has(gateway)) {
        [false, true] => (NAME, ENVOY),
        _ => SERVES,
    }
}

pub(super) fn services(build: &Build<'_>, settings: &SeldonConfiguration) -> Vec<Desired> {
    let mut services = Vec::new();
    let prefix =
        settings.service_config.as_ref().and_then(|s| s.grpc_service_prefix.clone()).unwrap_or_default();
    if build.has(SCHEDULER) {
        let ports: Vec<Value> = SCHEDULER_PORTS
            .iter()
            .map(|(name, port)| json!({ "name": format!("{prefix}{name}"), "port": port, "protocol": "TCP" }))
            .collect();
        let spec = json!({ "spec": {
            "type": service_type(build, settings, &[SCHEDULER]),
            "selector": { NAME: SCHEDULER },
            "ports": ports,
            // Agents and gateways reconnect by themselves, without waiting for the readiness probe.
            "publishNotReadyAddresses": true,
        }});
        services.push(build.object(ResourceKind::SERVICE, SCHEDULER, spec));
    }
    if GATEWAYS.iter().any(|gateway| build.has(gateway)) {
        let data =
            json!({ "name": format!("{prefix}data"), "port": 80, "targetPort": 9000, "protocol": "TCP" });
        // The admin port of Gantry's gateway is for the pod's neighbours, not for its clients.
        let stats = json!({ "name": "stats", "port": 9003, "targetPort": 9003, "protocol": "TCP" });
        let ports = if build.has(GATEWAY) { vec![data] } else { vec![data, stats] };
        let spec = json!({ "spec": {
            "type": service_type(build, settings, &GATEWAYS),
            "selector": { mesh(build).0: mesh(build).1 },
            "ports": ports,
        }});
        services.push(build.labelled_object(ResourceKind::SERVICE, "seldon-mesh", ENVOY, spec));
    }
    services
}

/// The type of the override, else of the settings, else Seldon's default.
fn service_type(build: &Build<'_>, settings: &SeldonConfiguration, components: &[&str]) -> String {
    let overrides = components.iter().filter_map(|component| build.over(component)?.service_type.clone());
    let general = settings.service_config.as_ref().and_then(|s| s.service_type.clone());
    let mut types = overrides.chain(general).filter(|kind| !kind.trim().is_empty());
    types.next().unwrap_or_else(|| "LoadBalancer".into())
}
