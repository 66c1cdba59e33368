//! `InferenceGraphs` of KServe: Gantry's gateway executes them, without a router pod per graph.

mod plan;
mod snapshot;
#[cfg(test)]
mod tests;

pub use snapshot::Snapshot;

use super::inference_service::config_key;
use crate::{
    caches::Caches,
    cluster::{InferenceGraph, InferenceService, Key, ResourceKind},
    controller::Controller,
    inputs::InputRef,
    plan::Plan,
    triggers::Relation,
};
use gantry_api::kserve::InferenceGraphStatus;
use k8s_openapi::jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct InferenceGraphController;

impl Controller for InferenceGraphController {
    type Kind = InferenceGraph;
    type Snapshot = Snapshot;
    const NAME: &'static str = "inferencegraph";
    const INPUTS: &'static [ResourceKind] = &[ResourceKind::CONFIG_MAP];

    fn relations() -> Vec<Relation> {
        // A graph is ready when the services of its steps are, and its name must not be that of a service.
        vec![Relation::to::<InferenceService>(|caches, change| {
            let graphs = caches.of::<InferenceGraph>().in_namespace(&change.key.namespace);
            let concerns = |graph: &Key, services: Vec<&str>| {
                graph.name == change.key.name || services.contains(&change.key.name.as_str())
            };
            let graphs = graphs.iter().filter(|graph| {
                graph.spec.as_ref().is_ok_and(|spec| concerns(&graph.key(), plan::services(spec)))
            });
            graphs.map(|graph| graph.key()).collect()
        })]
    }

    fn inputs(caches: &Caches, _: &Key) -> Vec<InputRef> {
        vec![(ResourceKind::CONFIG_MAP, config_key(caches))]
    }

    fn snapshot(caches: &Caches, key: &Key) -> Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan<InferenceGraphStatus> {
        plan::plan(snapshot, now)
    }
}
