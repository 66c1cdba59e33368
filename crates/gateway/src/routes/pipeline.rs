//! Pipelines: the version that requests run on.

use super::{experiment::Experiment, table::Named};
use crate::{
    metrics::{Metrics, PipelineMetrics},
    pipeline::{Batches, PendingJoins, RecentRuns},
};
use gantry_core::pipeline::{Definition, Externals, Graph};
use gantry_proto::gantry as pb;
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
        let graph = match (same, &wanted.definition) {
            (Some(same), _) => same.graph.clone(),
            (None, Some(written)) => match Definition::try_from(written) {
                Ok(definition) => {
                    Graph::compile(&definition).map(Arc::new).map_err(|invalid| invalid.to_string())
                }
                Err(unknown) => Err(unknown.to_string()),
            },
            (None, None) => Err("no version has become ready".to_owned()),
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
            joins: same.map(|same| Arc::clone(&same.joins)).unwrap_or_default(),
            #[cfg(feature = "kafka")]
            clean_topics_on_delete: wanted
                .definition
                .as_ref()
                .and_then(|definition| definition.dataflow_spec.as_ref())
                .is_some_and(|dataflow| dataflow.clean_topics_on_delete),
            experiment: None,
            metrics: old.map_or_else(|| Arc::new(metrics.pipeline(&name)), |old| Arc::clone(&old.metrics)),
            keep_payloads: wanted.definition.as_ref().is_some_and(|definition| definition.keep_payloads),
            recent: old.map(|old| Arc::clone(&old.recent)).unwrap_or_default(),
            batches: same.map(|same| Arc::clone(&same.batches)).unwrap_or_default(),
            name,
        })
    }

    /// The pipelines that this one reads.
    pub(super) fn observed(&self) -> BTreeSet<Arc<str>> {
        let external = self.graph.as_ref().ok().and_then(|graph| graph.external());
        external.map(Externals::pipelines).unwrap_or_default()
    }
}
