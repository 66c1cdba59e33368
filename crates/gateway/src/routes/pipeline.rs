//! Pipelines: the version that requests run on.

use super::{experiment::Experiment, table::Named};
use crate::{
    metrics::{Metrics, PipelineMetrics},
    pipeline::{Batches, RecentRuns},
};
use gantry_core::pipeline::{Definition, External, ExternalKind, Graph, Input, Join, Tensor};
use gantry_proto::gantry as pb;
use http::HeaderValue;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) name: Arc<str>,
    pub(crate) version: u32,
    pub(super) uid: String,
    /// The error of a definition that cannot run, or why there is none.
    pub(crate) graph: Result<Arc<Graph>, String>,
    /// Whether the models of all steps are available.
    pub(crate) ready: bool,
    pub(crate) reason: String,
    /// `:<name>.pipeline:`
    pub(crate) route_header: HeaderValue,
    /// How data of other pipelines is joined, if it reads any.
    pub(crate) external: Option<Arc<ExternalJoin>>,
    /// The active experiment that takes over the name.
    pub(crate) experiment: Option<Arc<Experiment>>,
    pub(crate) metrics: Arc<PipelineMetrics>,
    /// Of all versions.
    pub(crate) recent: Arc<RecentRuns>,
    /// Batches of this version.
    pub(crate) batches: Arc<Batches>,
}

/// The join of data of other pipelines.
pub(crate) struct ExternalJoin {
    pub(crate) join: Join,
    pub(crate) triggers_join: Join,
    tensor_map: HashMap<String, Arc<str>>,
}

impl ExternalJoin {
    fn new(input: &Input) -> Self {
        let renames = input.tensor_map.iter();
        Self {
            join: input.join,
            triggers_join: input.triggers_join,
            tensor_map: renames.map(|(from, to)| (from.clone(), to.as_str().into())).collect(),
        }
    }

    /// The tensor under the name that the pipeline gives it.
    pub(crate) fn renamed<T: Tensor>(&self, source: &External, tensor: T) -> T {
        if self.tensor_map.is_empty() {
            return tensor;
        }
        let (pipeline, name) = (&source.pipeline, tensor.name());
        let key = match &source.kind {
            ExternalKind::Inputs => format!("{pipeline}.inputs.{name}"),
            ExternalKind::Outputs => format!("{pipeline}.outputs.{name}"),
            ExternalKind::StepInputs(step) => format!("{pipeline}.step.{step}.inputs.{name}"),
            ExternalKind::StepOutputs(step) => format!("{pipeline}.step.{step}.outputs.{name}"),
        };
        match self.tensor_map.get(&key) {
            Some(name) => tensor.renamed(name),
            None => tensor,
        }
    }
}

/// A pipeline that others read.
pub(super) struct Observers {
    pub(super) pipeline: Arc<str>,
    pub(super) observers: Arc<[Arc<str>]>,
}

impl Named for Observers {
    fn name(&self) -> &str {
        &self.pipeline
    }
}

impl Named for Pipeline {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Pipeline {
    /// `None` if the name is no header value. A version that `old` has is not compiled again.
    pub(super) fn new(wanted: &pb::PipelineRoute, old: Option<&Self>, metrics: &Metrics) -> Option<Self> {
        let name: Arc<str> = old.map_or_else(|| wanted.pipeline.as_str().into(), |old| Arc::clone(&old.name));
        let (version, uid) =
            wanted.definition.as_ref().map_or((0, ""), |definition| (definition.version, &definition.uid));
        let same = old.filter(|old| old.version == version && old.uid == uid && !uid.is_empty());
        let (graph, external) = match (same, &wanted.definition) {
            (Some(same), _) => (same.graph.clone(), same.external.clone()),
            (None, Some(written)) => match Definition::try_from(written) {
                Ok(definition) => (
                    Graph::compile(&definition).map(Arc::new).map_err(|invalid| invalid.to_string()),
                    definition.input.as_ref().map(|input| Arc::new(ExternalJoin::new(input))),
                ),
                Err(unknown) => (Err(unknown.to_string()), None),
            },
            (None, None) => (Err("no version has become ready".to_owned()), None),
        };
        Some(Self {
            version,
            uid: uid.to_owned(),
            ready: wanted.ready && graph.is_ok(),
            reason: wanted.reason.clone(),
            graph,
            route_header: match old {
                Some(old) => old.route_header.clone(),
                None => HeaderValue::from_str(&format!(":{name}.pipeline:")).ok()?,
            },
            external,
            experiment: None,
            metrics: old.map_or_else(|| Arc::new(metrics.pipeline(&name)), |old| Arc::clone(&old.metrics)),
            recent: old.map(|old| Arc::clone(&old.recent)).unwrap_or_default(),
            batches: same.map(|same| Arc::clone(&same.batches)).unwrap_or_default(),
            name,
        })
    }

    /// The pipelines that this one reads.
    pub(super) fn observed(&self) -> BTreeSet<Arc<str>> {
        let Ok(graph) = &self.graph else { return BTreeSet::new() };
        let sources = graph.external_inputs().iter().chain(graph.external_triggers());
        sources.map(|source| Arc::clone(&source.pipeline)).collect()
    }
}
