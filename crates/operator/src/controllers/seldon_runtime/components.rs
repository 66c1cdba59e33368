//! Workloads of the components.

use super::{
    kafka,
    objects::{Build, NAME},
    services::{GATEWAY, SCHEDULER, label},
};
use crate::{
    cluster::{Desired, EventDraft, ResourceKind},
    conditions::ConditionUpdate,
    workload::{
        Inherited, Workload,
        certificates::{self, Part as Certified},
        configmap_annotation, merge, pod_disruption_budget, with_default_image,
    },
};
use gantry_api::{ComponentSpec, SeldonConfigSpec, SeldonConfiguration};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Models and Pipelines of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub models: usize,
    pub pipelines: usize,
}

/// A component of Seldon that divides topics among its replicas: more replicas than shards would be idle.
struct Capped {
    component: &'static str,
    count: fn(Counts) -> usize,
    /// The variable with the number of consumers of a replica.
    consumers: Option<&'static str>,
    /// The reason of the event.
    reason: &'static str,
}

/// Seldon's limits. Gantry's gateway has none: each of its replicas also answers requests.
const CAPPED: [Capped; 3] = [
    Capped {
        component: "seldon-dataflow-engine",
        count: |counts| counts.pipelines,
        consumers: None,
        reason: "DataflowEngineReplicasAdjusted",
    },
    Capped {
        component: "seldon-pipelinegateway",
        count: |counts| counts.pipelines,
        consumers: Some("PIPELINEGATEWAY_MAX_NUM_CONSUMERS"),
        reason: "PipelineGatewayReplicasAdjusted",
    },
    Capped {
        component: "seldon-modelgateway",
        count: |counts| counts.models,
        consumers: Some("MODELGATEWAY_MAX_NUM_CONSUMERS"),
        reason: "ModelGatewayReplicasAdjusted",
    },
];
/// Seldon's default number of consumers.
const MAX_CONSUMERS: usize = 100;

/// Whether a configuration has a component whose replicas are limited.
pub(super) fn has_capped(config: &SeldonConfigSpec) -> bool {
    config.components.iter().any(|c| CAPPED.iter().any(|capped| capped.component == c.name))
}

/// The workload of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) kind: ResourceKind,
    pub(super) replicas: u32,
    /// Where the override has more replicas: the reason of the event, and that number.
    adjusted: Option<(&'static str, u32)>,
}

impl Part {
    /// The event of a limit that changes the replicas of the workload.
    pub(super) fn adjustment(&self, live_replicas: Option<i64>) -> Option<EventDraft> {
        let (reason, requested) =
            self.adjusted.filter(|_| live_replicas != Some(i64::from(self.replicas)))?;
        let message = format!(
            "{} has {} instead of {requested} replicas: more than the shards of the namespace's objects would be idle \
             (scalingConfig.pipelines.maxShardCountMultiplier)",
            self.name, self.replicas
        );
        Some(EventDraft { warning: true, reason, message })
    }
}

/// The enabled components.
pub(super) fn parts(build: &Build<'_>) -> Vec<Part> {
    let settings = build.settings();
    let enabled = build.config.components.iter().filter(|c| build.has(&c.name));
    enabled.map(|c| part(build, &settings, c)).collect()
}

/// The condition of the Kafka settings.
pub(super) fn kafka_condition(build: &Build<'_>) -> Option<ConditionUpdate> {
    let gateway = build.config.components.iter().find(|c| c.name == GATEWAY && build.has(&c.name))?;
    kafka::condition(build, &build.settings(), &pod_spec(build, gateway)?)
}

/// The pod spec of a component with its override.
fn pod_spec(build: &Build<'_>, component: &ComponentSpec) -> Option<Value> {
    let over = build.over(&component.name).and_then(|o| o.pod_spec.clone()).unwrap_or_default();
    component.pod_spec.as_ref().map(|pod| merge(pod, &over))
}

/// The most replicas that have work.
fn cap(
    build: &Build<'_>,
    settings: &SeldonConfiguration,
    component: &ComponentSpec,
) -> Option<(&'static str, u32)> {
    let capped = CAPPED.iter().find(|capped| capped.component == component.name)?;
    let count = (capped.count)(build.counts?);
    let pod = pod_spec(build, component).unwrap_or_default();
    let consumers = capped.consumers.and_then(|name| kafka::variable(pod.pointer("/containers/0")?, name));
    let consumers =
        consumers.and_then(|number| number.parse().ok()).filter(|n| *n > 0).unwrap_or(MAX_CONSUMERS);
    let scaling = settings.scaling_config.as_ref().and_then(|scaling| scaling.pipelines.as_ref());
    let shards = scaling.and_then(|pipelines| pipelines.max_shard_count_multiplier);
    let shards = shards.and_then(|number| usize::try_from(number).ok()).unwrap_or(1);
    let cap = count.min(consumers).saturating_mul(shards).max(1);
    Some((capped.reason, u32::try_from(cap).unwrap_or(u32::MAX)))
}

fn part(build: &Build<'_>, settings: &SeldonConfiguration, component: &ComponentSpec) -> Part {
    let over = build.over(&component.name);
    let requested = over.and_then(|o| o.replicas).map_or(1, |replicas| u32::try_from(replicas).unwrap_or(0));
    // Two schedulers would place models on the same agents independently.
    let replicas = if component.name == SCHEDULER { requested.min(1) } else { requested };
    let cap = cap(build, settings, component).filter(|(_, cap)| *cap < replicas);
    let adjusted = cap.map(|(reason, _)| (reason, replicas));
    let replicas = cap.map_or(replicas, |(_, cap)| cap);
    let kind = if component.volume_claim_templates.is_empty() {
        ResourceKind::DEPLOYMENT
    } else {
        ResourceKind::STATEFUL_SET
    };
    Part { name: component.name.clone(), kind, replicas, adjusted }
}

/// Workloads and disruption budgets; `digests` are those of the runtime's `ConfigMaps`.
pub(super) fn workloads(
    build: &Build<'_>,
    settings: &SeldonConfiguration,
    digests: &BTreeMap<String, String>,
) -> Result<Vec<Desired>, String> {
    let mut objects = Vec::new();
    for component in build.config.components.iter().filter(|c| build.has(&c.name)) {
        let part = part(build, settings, component);
        let Some(pod) = pod_spec(build, component) else {
            return Err(format!("component {} has no podSpec: add it", part.name));
        };
        let pod = if part.name == GATEWAY { kafka::with_settings(build, settings, pod) } else { pod };
        let pod = match build.certificates {
            Some(issued) if part.name == SCHEDULER => {
                certificates::mount(pod, Certified::Scheduler(issued.scheduler))
            }
            Some(issued) if part.name == GATEWAY && issued.gateway => {
                certificates::mount(pod, Certified::Gateway)
            }
            _ => pod,
        };
        let pod = with_default_image(pod, build.image);
        let selector = BTreeMap::from([(NAME.to_owned(), part.name.clone())]);
        let labels = label(build, &part.name).map(|(name, value)| (name.to_owned(), value.to_owned()));
        let is_autoscaled = build.autoscaled.contains(&(part.kind.kind.to_owned(), part.name.clone()));
        let mut more = Map::new();
        if part.kind == ResourceKind::STATEFUL_SET {
            more.insert("serviceName".into(), json!(part.name));
        }
        let workload = Workload {
            kind: part.kind,
            key: build.at(&part.name),
            owner: build.owner(),
            selector: selector.clone(),
            inherited: Inherited::new(&component.labels, &component.annotations).over(&build.inherited),
            labels: labels.into_iter().collect(),
            annotations: build.annotations.clone(),
            pod_annotations: configmap_annotation(&pod, digests),
            replicas: (!is_autoscaled).then_some(part.replicas),
            bare: pod.clone(),
            pod,
            claims: &component.volume_claim_templates,
            more,
        };
        objects.push(workload.desired());
        if part.replicas > 1 || is_autoscaled {
            objects.push(pod_disruption_budget(
                build.at(&part.name),
                &build.owner(),
                &selector,
                &json!({ NAME: part.name }),
            ));
        }
    }
    Ok(objects)
}
