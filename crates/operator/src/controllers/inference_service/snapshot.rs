//! Input of an `InferenceService`'s plan.

use super::{
    Credentials, InferenceServiceController, LABEL,
    config::{CONFIG_MAP, Config, CredentialsConfig},
    credentials::references,
    delivery::Policy,
    runtime::Runtime,
};
use crate::{
    caches::Caches,
    cluster::{
        ClusterServingRuntime, ClusterStorageContainer, Custom, CustomKind, InferenceService, Key,
        OwnedObject, ResourceKind, ServingRuntime,
    },
    controller::Controller as _,
    controllers::{
        rollout_policy,
        trained_model::{allocated, models_of},
    },
    inputs::InputRef,
    plan::{Known, Plan, SchedulerAction},
    schedulers::{LastRequest, RouteKind, ServiceView, service_at},
    workload::{ApplyFailure, OwnedObjects},
};
use gantry_api::{
    TargetKind,
    kserve::{ClusterStorageContainerSpec, ServingRuntimeSpec},
};
use gantry_proto::gantry::{RolloutStatus, ServiceRoute};
use std::{sync::Arc, time::Duration};

/// Kinds of Istio, KEDA and Knative Serving.
const OPTIONAL: [ResourceKind; 3] =
    [ResourceKind::VIRTUAL_SERVICE, ResourceKind::SCALED_OBJECT, ResourceKind::KNATIVE_SERVICE];

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub key: Key,
    /// `None` when the object is gone.
    pub object: Option<Arc<Custom<InferenceService>>>,
    /// The `ConfigMap` `inferenceservice-config`.
    pub config: Known<Arc<OwnedObject>>,
    /// Why the latest one is not used, if it is an older one.
    pub config_error: Option<String>,
    pub config_namespace: String,
    /// Accounts and Secrets of the pods that download.
    pub credentials: Credentials,
    /// Runtimes of the namespace and of the cluster.
    pub runtimes: Vec<Runtime>,
    pub storage_containers: Vec<ClusterStorageContainerSpec>,
    /// Our own image, which downloads artifacts.
    pub image: String,
    pub owned: OwnedObjects,
    /// `HorizontalPodAutoscalers` that it controls, also those of KServe's controller.
    pub autoscalers: Vec<Arc<OwnedObject>>,
    /// Names of its `TrainedModels`, if these bring its models.
    pub trained_models: Vec<String>,
    /// Pods of its components.
    pub pods: Vec<Arc<OwnedObject>>,
    /// Whether the cluster has `HTTPRoutes`.
    pub has_http_routes: bool,
    /// The scheduler of the gateways that can route to it.
    pub scheduler: Option<RouteScheduler>,
    /// Schedulers that have a route to it, and how long requests to them have to wait after a failure.
    pub routed_by: Vec<(String, Option<Duration>)>,
    /// Other optional kinds that it has.
    pub served: Vec<ResourceKind>,
    /// The rollout policy that selects it.
    pub policy: Option<Policy>,
    /// Its rollout in the scheduler.
    pub rollout: Option<RolloutStatus>,
    /// Rejected applies.
    pub failures: Vec<ApplyFailure>,
    /// Time since the last status write.
    pub status_age: Option<Duration>,
}

/// A scheduler whose gateways can route to the service.
#[derive(Clone, Debug)]
pub struct RouteScheduler {
    /// Its namespace.
    pub namespace: String,
    pub service: Known<ServiceView>,
    pub unreachable_for: Option<Duration>,
    /// The last request about the route, and its age.
    pub last_request: Option<(LastRequest, Duration)>,
}

/// Delay before a request that failed is sent again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long the next request has to wait.
fn wait_after(last: Option<&(LastRequest, Duration)>) -> Option<Duration> {
    let (_, age) = last.filter(|(last, _)| !last.is_accepted())?;
    RETRY_INTERVAL.checked_sub(*age).filter(|left| !left.is_zero())
}

impl RouteScheduler {
    pub(in crate::controllers) fn of<K: CustomKind>(caches: &Caches, key: &Key) -> Option<Self> {
        let namespace = caches.schedulers.service_scheduler(&key.namespace)?;
        let at = service_at(&namespace, key);
        Some(Self {
            service: caches.schedulers.get(&at),
            unreachable_for: caches.schedulers.unreachable_for(&namespace),
            last_request: caches.schedulers.last_request::<K>(&at),
            namespace,
        })
    }

    /// Sends a route to the scheduler if it has another one.
    pub(in crate::controllers) fn put<S>(&self, route: &ServiceRoute, plan: &mut Plan<S>) {
        match (&self.service, wait_after(self.last_request.as_ref())) {
            (Known::Unknown(_), _) => {}
            (Known::Present(view), _) if view.route == *route => {}
            (_, Some(left)) => plan.requeue_within(left),
            (..) => plan.push(SchedulerAction::PutService {
                scheduler: self.namespace.clone(),
                route: Box::new(route.clone()),
            }),
        }
    }
}

/// Key of the `ConfigMap`.
pub(in crate::controllers) fn config_key(caches: &Caches) -> Key {
    Key::new(caches.settings.namespace.clone(), CONFIG_MAP)
}

fn effective_config(caches: &Caches) -> (Known<Arc<OwnedObject>>, Option<String>) {
    let read = caches.inputs.get(ResourceKind::CONFIG_MAP, &config_key(caches));
    caches.inference_service_config.effective(read)
}

/// References to accounts and Secrets; those that the `ConfigMap` names follow once it is read.
pub(super) fn credential_references(caches: &Caches, key: &Key) -> Vec<InputRef> {
    let Some(object) = caches.of::<InferenceService>().get(key) else { return Vec::new() };
    let config = match effective_config(caches).0 {
        Known::Unknown(_) => return Vec::new(),
        Known::Absent => CredentialsConfig::default(),
        Known::Present(map) => Config::parse(&map).map(|config| config.credentials).unwrap_or_default(),
    };
    references(&object, &config, &caches.inputs)
}

impl Snapshot {
    /// Whether the cluster has an optional kind.
    pub(super) fn has(&self, kind: ResourceKind) -> bool {
        self.served.contains(&kind)
    }

    pub(super) fn take(caches: &Caches, key: &Key) -> Self {
        let object = caches.of::<InferenceService>().get(key);
        let uid = object.as_ref().map_or("", |o| o.uid());
        let namespaced = caches.of::<ServingRuntime>().in_namespace(&key.namespace);
        let cluster_wide = caches.of::<ClusterServingRuntime>().all();
        let runtimes = namespaced
            .iter()
            .filter_map(|runtime| runtime_of(runtime, false))
            .chain(cluster_wide.iter().filter_map(|runtime| runtime_of(runtime, true)));
        let storage_containers = caches.of::<ClusterStorageContainer>().all();
        let is_of = |pod: &Arc<OwnedObject>| {
            pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)) == Some(&key.name)
        };
        let wait = |scheduler: &String| {
            wait_after(
                caches.schedulers.last_request::<InferenceService>(&service_at(scheduler, key)).as_ref(),
            )
        };
        let routed_by = caches.schedulers.routed_by(key, RouteKind::Service).into_iter();
        let (config, config_error) = effective_config(caches);
        let pods = caches.read(InferenceServiceController::PODS).in_namespace(&key.namespace);
        Self {
            key: key.clone(),
            config,
            config_error,
            config_namespace: caches.settings.namespace.clone(),
            credentials: Credentials::read(credential_references(caches, key), &caches.inputs),
            runtimes: runtimes.collect(),
            storage_containers: storage_containers
                .iter()
                .filter(|container| !container.is_disabled)
                .filter_map(|container| container.spec.clone().ok())
                .collect(),
            image: caches.settings.image.clone(),
            owned: OwnedObjects::of(caches, InferenceServiceController::OWNS, &key.namespace, uid),
            autoscalers: autoscalers(caches, key, uid),
            trained_models: trained_models(caches, object.as_deref()),
            pods: pods.into_iter().filter(is_of).collect(),
            has_http_routes: caches.is_served(ResourceKind::HTTP_ROUTE),
            scheduler: RouteScheduler::of::<InferenceService>(caches, key),
            routed_by: routed_by.map(|scheduler| (scheduler.clone(), wait(&scheduler))).collect(),
            served: OPTIONAL.into_iter().filter(|kind| caches.is_served(*kind)).collect(),
            policy: object.as_deref().and_then(|object| policy(caches, object)),
            rollout: rollout(caches, key),
            failures: caches.recent_failures.of::<InferenceService>(key),
            status_age: caches.recent_failures.status_age::<InferenceService>(key),
            object,
        }
    }
}

fn policy(caches: &Caches, object: &Custom<InferenceService>) -> Option<Policy> {
    let policy = rollout_policy::policy_for(caches, TargetKind::InferenceService, object)?;
    let spec = serde_json::to_vec(policy.spec.as_ref().ok()?).ok()?;
    Some(Policy { name: policy.key().name, spec })
}

fn rollout(caches: &Caches, key: &Key) -> Option<RolloutStatus> {
    let scheduler = caches.schedulers.service_scheduler(&key.namespace)?;
    caches.schedulers.rollout_of(TargetKind::InferenceService, &service_at(&scheduler, key))
}

fn autoscalers(caches: &Caches, key: &Key, uid: &str) -> Vec<Arc<OwnedObject>> {
    let mut all = caches.read(ResourceKind::HORIZONTAL_POD_AUTOSCALER).in_namespace(&key.namespace);
    all.retain(|scaler| !uid.is_empty() && scaler.controller().is_some_and(|(_, owner)| owner == uid));
    all
}

fn trained_models(caches: &Caches, object: Option<&Custom<InferenceService>>) -> Vec<String> {
    let Some(object) = object else { return Vec::new() };
    let predictor = object.spec.as_ref().ok().map(|spec| &spec.predictor);
    let Some(predictor) = predictor.filter(|predictor| predictor.is_multi_model()) else {
        return Vec::new();
    };
    let Key { namespace, name } = object.key();
    allocated(predictor, &models_of(caches, &namespace, &name)).into_iter().collect()
}

/// A runtime whose spec can be read.
fn runtime_of<K>(runtime: &Custom<K>, is_cluster_wide: bool) -> Option<Runtime>
where
    K: CustomKind<Spec = ServingRuntimeSpec>,
{
    Some(Runtime {
        name: runtime.metadata.name.clone()?,
        is_cluster_wide,
        created: runtime.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        annotations: runtime.metadata.annotations.clone().unwrap_or_default(),
        spec: runtime.spec.clone().ok()?,
    })
}
