//! The route through Gantry's own gateway: the scheduler of the gateways gets the ready pods of both tracks with their weights.
//!
//! The weights are those of the stored state. Gateways report statistics of revisions under its generation while something
//! depends on them.

use super::{
    REVISION, TRACK, Track, evidence_request::needs_evidence, placement::Placement, revision::Templates,
    snapshot::Snapshot,
};
use crate::{
    cluster::{Key, OwnedObject},
    controllers::inference_service::{Admission, admission, is_pod_ready},
    evidence::version_of,
    plan::{Known, Plan, SchedulerAction},
    schedulers::RouteKind,
};
use gantry_api::{AlgorithmSpec, AlgorithmStatus, EvidenceSource};
use gantry_core::{rollout::Rollout, scheduling::NO_GATEWAY};
use gantry_proto::gantry::{AlgorithmRoute, PodEndpoint, ServiceBackend, ServiceComponent, ServiceRoute};
use serde_json::Value;
use std::sync::Arc;

/// The name of a port for gRPC.
const GRPC: &str = "grpc";

/// What a route is built from.
pub(super) struct RouteBuilder<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) spec: &'a AlgorithmSpec,
    pub(super) templates: &'a Templates,
    pub(super) placement: &'a Placement,
    pub(super) state: &'a Rollout,
}

impl RouteBuilder<'_> {
    /// `None` if the route is not that of Gantry's gateway, or there is none.
    pub(super) fn build(&self) -> Option<ServiceRoute> {
        self.snapshot.scheduler.as_ref().filter(|_| self.spec.has_own_route())?;
        let Key { namespace, name } = self.snapshot.key.clone();
        let hosts = self.spec.expose.iter().flat_map(|expose| &expose.hostnames);
        let is_counted =
            self.spec.evidence_source() == Some(EvidenceSource::Gateway) && needs_evidence(self.state);
        let weight = self.placement.weight.min(100);
        let mut backends = vec![self.backend(Track::Stable, 100 - weight, is_counted)];
        // Backends without pods pass their share on: a canary that may have none is left out.
        if weight > 0 {
            backends.push(self.backend(Track::Canary, weight, is_counted));
        }
        let has_pods = backends.iter().any(|backend| !backend.pods.is_empty());
        let reason =
            if has_pods { String::new() } else { format!("no pod of Algorithm {namespace}/{name} is ready") };
        let generation = if is_counted { self.state.generation } else { 0 };
        Some(ServiceRoute {
            hosts: hosts.map(|host| host.to_ascii_lowercase()).collect(),
            components: vec![ServiceComponent { backends, reason, ..ServiceComponent::default() }],
            algorithm: Some(AlgorithmRoute { generation }),
            namespace,
            name,
            ..ServiceRoute::default()
        })
    }

    /// The ready pods of a track. During a rolling update they have two revisions, and are counted for neither.
    fn backend(&self, track: Track, weight: u32, is_counted: bool) -> ServiceBackend {
        let of_track =
            |pod: &&Arc<OwnedObject>| label(pod, TRACK) == Some(track.as_str()) && is_pod_ready(pod);
        let pods: Vec<&Arc<OwnedObject>> = self.snapshot.pods.iter().filter(of_track).collect();
        let mut revisions = pods.iter().map(|pod| label(pod, REVISION));
        let first = revisions.next().flatten();
        let revision = first.filter(|first| is_counted && revisions.all(|other| other == Some(*first)));
        let mut endpoints: Vec<PodEndpoint> = pods.iter().filter_map(|pod| self.endpoint(pod)).collect();
        endpoints.sort_by(|a, b| a.name.cmp(&b.name));
        ServiceBackend {
            name: track.service(&self.snapshot.key.name),
            weight,
            pods: endpoints,
            version: revision.map_or(0, version_of),
            revision: revision.unwrap_or_default().to_owned(),
            ..ServiceBackend::default()
        }
    }

    fn endpoint(&self, pod: &OwnedObject) -> Option<PodEndpoint> {
        let host = pod.data.pointer("/status/podIP").and_then(Value::as_str)?;
        let of_revision = label(pod, REVISION).and_then(|revision| self.templates.get(revision));
        let template = of_revision.or_else(|| self.templates.get(&self.placement.stable))?;
        let is_grpc = |port: &&gantry_api::AlgorithmPort| port.name == GRPC;
        let http = template.ports.iter().find(|port| !is_grpc(port));
        let grpc = template.ports.iter().find(is_grpc);
        let number = |port: Option<&gantry_api::AlgorithmPort>| port.map_or(0, |port| port.container_port);
        Some(PodEndpoint {
            name: pod.metadata.name.clone()?,
            host: host.to_owned(),
            http_port: number(http),
            grpc_port: number(grpc),
        })
    }
}

fn label<'a>(pod: &'a OwnedObject, name: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Sends the route if the scheduler has another one, and deletes it where it is not desired any more.
pub(super) fn send(snapshot: &Snapshot, route: Option<&ServiceRoute>, plan: &mut Plan<AlgorithmStatus>) {
    let scheduler = snapshot.scheduler.as_ref().filter(|_| route.is_some());
    if let (Some(scheduler), Some(route)) = (scheduler, route)
        && !is_name_taken(snapshot)
    {
        if let Admission::Pending(_, _, Some(left)) = admission(scheduler, route) {
            plan.requeue_within(left);
        }
        scheduler.put(route, plan);
    }
    let used = scheduler.map(|scheduler| scheduler.namespace.as_str());
    for scheduler in snapshot.routed_by.iter().filter(|scheduler| Some(scheduler.as_str()) != used) {
        plan.push(SchedulerAction::DeleteService {
            scheduler: scheduler.clone(),
            service: snapshot.key.clone(),
        });
    }
}

/// Whether an `InferenceService` or an `InferenceGraph` has the name, and with it the hosts.
fn is_name_taken(snapshot: &Snapshot) -> bool {
    match snapshot.scheduler.as_ref().map(|scheduler| &scheduler.service) {
        Some(Known::Present(view)) => RouteKind::of(&view.route) != RouteKind::Algorithm,
        _ => false,
    }
}

/// Why the route is not in effect: reason and message. One that was in effect stays so while pods change and for a short
/// outage of the scheduler.
pub(super) fn obstacle(
    snapshot: &Snapshot,
    route: Option<&ServiceRoute>,
    was_ready: bool,
) -> Option<(&'static str, String)> {
    let (Some(scheduler), Some(route)) = (&snapshot.scheduler, route) else {
        let message = "spec.expose without a gateway needs a scheduler with gateways: create a SeldonRuntime in this namespace \
                       or in that of the operator, or set spec.expose.gateway";
        return Some(("NoScheduler", message.into()));
    };
    if is_name_taken(snapshot) {
        let name = &snapshot.key.name;
        let message = format!(
            "an InferenceService or InferenceGraph {name} of this namespace has the same hosts and path: rename one of them, or \
             set spec.expose.gateway"
        );
        return Some(("NameTaken", message));
    }
    match admission(scheduler, route) {
        Admission::Admitted => None,
        Admission::Pending(..) if was_ready => None,
        Admission::Refused(reason, message) | Admission::Pending(reason, message, _) => {
            Some((reason, message))
        }
    }
}

/// Whether a gateway may send requests to the canary: until all of them have a route without it. A scheduler that cannot be
/// reached may have given them one with it.
pub(super) fn may_have_canary(snapshot: &Snapshot) -> bool {
    let spec = snapshot.object.as_ref().and_then(|object| object.spec.as_ref().ok());
    let scheduler = snapshot.scheduler.as_ref().filter(|_| spec.is_some_and(AlgorithmSpec::has_own_route));
    let Some(scheduler) = scheduler else { return false };
    match &scheduler.service {
        Known::Unknown(_) => true,
        Known::Absent => false,
        Known::Present(view) => {
            let canary = Track::Canary.service(&snapshot.key.name);
            let mut backends = view.route.components.iter().flat_map(|component| &component.backends);
            backends.any(|backend| backend.name == canary) || !(view.admitted || view.reason == NO_GATEWAY)
        }
    }
}
