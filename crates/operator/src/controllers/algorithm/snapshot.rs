//! Input of an Algorithm's plan.

use super::{ALGORITHM, AlgorithmController, MetricsApi, REVISION, Track};
use crate::{
    caches::Caches,
    cluster::{Algorithm, Custom, Key, OwnedObject, ResourceKind},
    controller::Controller as _,
    controllers::inference_service::RouteScheduler,
    evidence::Observation,
    schedulers::RouteKind,
    workload::{ApplyFailure, OwnedObjects, Rollout},
};
use serde_json::Value;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<Algorithm>>>,
    pub owned: OwnedObjects,
    /// Whether the cluster has `HTTPRoutes`.
    pub has_http_routes: bool,
    /// Its pods, if the route is that of Gantry's gateway.
    pub pods: Vec<Arc<OwnedObject>>,
    /// The scheduler of the gateways that can route to it.
    pub scheduler: Option<RouteScheduler>,
    /// Schedulers that have a route to it.
    pub routed_by: Vec<String>,
    /// The latest evidence.
    pub observation: Option<Arc<Observation>>,
    /// Who serves external metrics.
    pub metrics_api: MetricsApi,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
}

impl Snapshot {
    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let object = caches.of::<Algorithm>().get(key);
        let uid = object.as_ref().map_or("", |o| o.uid());
        let has_own_route = object
            .as_ref()
            .is_some_and(|o| o.spec.as_ref().is_ok_and(gantry_api::AlgorithmSpec::has_own_route));
        let is_of = |pod: &Arc<OwnedObject>| {
            pod.metadata.labels.as_ref().and_then(|labels| labels.get(ALGORITHM)) == Some(&key.name)
        };
        let pods = || caches.read(AlgorithmController::PODS).in_namespace(&key.namespace).into_iter();
        Self {
            key: key.clone(),
            owned: OwnedObjects::of(caches, AlgorithmController::OWNS, &key.namespace, uid),
            has_http_routes: caches.is_served(ResourceKind::HTTP_ROUTE),
            pods: if has_own_route { pods().filter(is_of).collect() } else { Vec::new() },
            scheduler: RouteScheduler::of::<Algorithm>(caches, key),
            routed_by: caches.schedulers.routed_by(key, RouteKind::Algorithm),
            observation: caches.evidence.latest(key).filter(|observation| observation.request.uid == uid),
            metrics_api: MetricsApi::of(caches, object.as_ref().and_then(|object| object.spec.as_ref().ok())),
            failures: caches.recent_failures.of::<Algorithm>(key),
            object,
        }
    }

    /// The live Deployment of a track.
    pub(super) fn deployment(&self, track: Track) -> Option<LiveDeployment<'_>> {
        let live = self.owned.get(ResourceKind::DEPLOYMENT, &track.deployment(&self.key.name))?;
        live.metadata.deletion_timestamp.is_none().then_some(LiveDeployment(live))
    }
}

/// A Deployment of an Algorithm.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveDeployment<'a>(&'a OwnedObject);

impl<'a> LiveDeployment<'a> {
    /// The revision of its pod template.
    pub(super) fn revision(self) -> Option<&'a str> {
        let labels = self.0.data.pointer("/spec/template/metadata/labels")?;
        labels.get(REVISION).and_then(Value::as_str)
    }

    pub(super) fn replicas(self) -> u32 {
        let replicas = self.0.data.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1);
        u32::try_from(replicas).unwrap_or_default()
    }

    pub(super) fn pods(self) -> i32 {
        i32::try_from(self.0.number("/status/replicas")).unwrap_or_default()
    }

    pub(super) fn ready_pods(self) -> i32 {
        i32::try_from(self.0.number("/status/readyReplicas")).unwrap_or_default()
    }

    pub(super) fn rollout(self) -> Rollout {
        Rollout::of(ResourceKind::DEPLOYMENT, Some(self.0), self.replicas().into())
    }
}
