//! Workloads of the components.

use super::{
    objects::{Build, NAME},
    services::{SCHEDULER, label},
};
use crate::{
    cluster::{Desired, ResourceKind},
    workload::{Inherited, Workload, configmap_annotation, merge, pod_disruption_budget, with_default_image},
};
use gantry_api::ComponentSpec;
use serde_json::{Map, json};
use std::collections::BTreeMap;

/// The workload of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) kind: ResourceKind,
    pub(super) replicas: u32,
}

/// The enabled components.
pub(super) fn parts(build: &Build<'_>) -> Vec<Part> {
    build.config.components.iter().filter(|c| build.has(&c.name)).map(|c| part(build, c)).collect()
}

fn part(build: &Build<'_>, component: &ComponentSpec) -> Part {
    let over = build.over(&component.name);
    let requested = over.and_then(|o| o.replicas).map_or(1, |replicas| u32::try_from(replicas).unwrap_or(0));
    // Two schedulers would place models on the same agents independently.
    let replicas = if component.name == SCHEDULER { requested.min(1) } else { requested };
    let kind = if component.volume_claim_templates.is_empty() {
        ResourceKind::DEPLOYMENT
    } else {
        ResourceKind::STATEFUL_SET
    };
    Part { name: component.name.clone(), kind, replicas }
}

/// Workloads and disruption budgets; `digests` are those of the runtime's `ConfigMaps`.
pub(super) fn workloads(
    build: &Build<'_>,
    digests: &BTreeMap<String, String>,
) -> Result<Vec<Desired>, String> {
    let mut objects = Vec::new();
    for component in build.config.components.iter().filter(|c| build.has(&c.name)) {
        let part = part(build, component);
        let Some(pod) = &component.pod_spec else {
            return Err(format!("component {} has no podSpec: add it", part.name));
        };
        let over = build.over(&part.name).and_then(|o| o.pod_spec.clone()).unwrap_or_default();
        let pod = with_default_image(merge(pod, &over), build.image);
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
