//! Pipelines: the versions that requests run on.

use super::{
    Attribution,
    experiment::Experiment,
    table::Named,
    traffic::{Counted, Traffic, VersionCounters},
};
use crate::{
    metrics::{Metrics, PipelineMetrics},
    pipeline::{Batches, PendingJoins, RecentRuns},
};
use gantry_core::{
    pipeline::{Definition, Externals, Graph},
    traffic::is_within,
};
use gantry_proto::{gantry as pb, scheduler};
use http::HeaderValue;
use std::{collections::BTreeSet, sync::Arc};

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
    /// Data of other pipelines that this version waits to be joined with.
    pub(crate) joins: Arc<PendingJoins>,
    /// Whether the topics of the pipeline are deleted with it.
    #[cfg(feature = "kafka")]
    pub(crate) clean_topics_on_delete: bool,
    /// The active experiment that takes over the name.
    pub(crate) experiment: Option<Arc<Experiment>>,
    pub(crate) metrics: Arc<PipelineMetrics>,
    /// Whether `recent` has the tensors of requests.
    pub(crate) keep_payloads: bool,
    /// Of all versions.
    pub(crate) recent: Arc<RecentRuns>,
    /// Batches of this version.
    pub(crate) batches: Arc<Batches>,
    /// Of this version, with a rollout.
    pub(super) counters: Option<Arc<VersionCounters>>,
    /// The version that is rolled out, with its percentage of the requests.
    pub(super) candidate: Option<(Arc<Self>, u32)>,
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
    pub(super) fn new(
        wanted: &pb::PipelineRoute,
        old: Option<&Self>,
        metrics: &Metrics,
        traffic: &Traffic,
    ) -> Option<Self> {
        let name: Arc<str> = old.map_or_else(|| wanted.pipeline.as_str().into(), |old| Arc::clone(&old.name));
        let route_header = match old {
            Some(old) => old.route_header.clone(),
            None => HeaderValue::from_str(&format!(":{name}.pipeline:")).ok()?,
        };
        let metrics = old.map_or_else(|| Arc::new(metrics.pipeline(&name)), |old| Arc::clone(&old.metrics));
        let recent = old.map(|old| Arc::clone(&old.recent)).unwrap_or_default();
        let build = |definition: Option<&scheduler::Pipeline>| {
            let (version, uid) =
                definition.map_or((0, ""), |definition| (definition.version, &definition.uid));
            let mut known = old.into_iter().flat_map(Self::versions);
            let same = known.find(|old| old.version == version && old.uid == uid && !uid.is_empty());
            let counters = same.and_then(|same| same.counters.as_ref());
            let graph = same.map_or_else(|| compile(definition), |same| same.graph.clone());
            Self {
                version,
                uid: uid.to_owned(),
                ready: wanted.ready && graph.is_ok(),
                reason: wanted.reason.clone(),
                graph,
                route_header: route_header.clone(),
                joins: same.map(|same| Arc::clone(&same.joins)).unwrap_or_default(),
                #[cfg(feature = "kafka")]
                clean_topics_on_delete: definition
                    .and_then(|definition| definition.dataflow_spec.as_ref())
                    .is_some_and(|dataflow| dataflow.clean_topics_on_delete),
                experiment: None,
                metrics: Arc::clone(&metrics),
                keep_payloads: definition.is_some_and(|definition| definition.keep_payloads),
                recent: Arc::clone(&recent),
                batches: same.map(|same| Arc::clone(&same.batches)).unwrap_or_default(),
                counters: traffic.counters(
                    (Counted::Pipeline, &name),
                    wanted.rollout_generation,
                    version,
                    wanted.observed.as_ref(),
                    counters,
                ),
                candidate: None,
                name: Arc::clone(&name),
            }
        };
        let candidate = wanted.candidate.as_ref().map(|definition| build(Some(definition)));
        let candidate = candidate.map(|candidate| (Arc::new(candidate), wanted.candidate_percent));
        Some(Self { candidate, ..build(wanted.definition.as_ref()) })
    }

    /// This version, and the one that is rolled out.
    pub(crate) fn versions(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.candidate.iter().map(|(candidate, _)| &**candidate))
    }

    /// The version that a request runs on; `random` is uniform.
    pub(crate) fn pick(self: &Arc<Self>, random: impl FnOnce() -> u64) -> Arc<Self> {
        match &self.candidate {
            Some((candidate, percent)) if is_within(random(), *percent) => Arc::clone(candidate),
            _ => Arc::clone(self),
        }
    }

    /// What a request of this version counts for, if the pipeline has a rollout.
    pub(crate) fn attribute(&self) -> Option<Attribution> {
        self.counters.as_ref().and_then(|counters| counters.attribute())
    }

    /// The pipelines that this one reads.
    pub(super) fn observed(&self) -> BTreeSet<Arc<str>> {
        let graphs = self.versions().filter_map(|version| version.graph.as_ref().ok());
        graphs.filter_map(|graph| graph.external()).flat_map(Externals::pipelines).collect()
    }
}

fn compile(definition: Option<&scheduler::Pipeline>) -> Result<Arc<Graph>, String> {
    let written = definition.ok_or_else(|| "no version has become ready".to_owned())?;
    let definition = Definition::try_from(written).map_err(|unknown| unknown.to_string())?;
    Graph::compile(&definition).map(Arc::new).map_err(|invalid| invalid.to_string())
}
