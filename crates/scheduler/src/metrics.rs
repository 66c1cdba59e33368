//! Metrics of the engine and usage metrics.

use crate::{engine::Handle, rollout_metrics::RolloutMetrics};
use gantry_core::scheduling::{Experiment, ModelState, Pipeline, PipelineState};
use gantry_proto::scheduler as pb;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

pub(crate) struct Metrics {
    pub(crate) schedule_seconds: Histogram,
    pub(crate) resync_seconds: Seconds,
    commit_seconds: Histogram,
    commit_failures: Counter,
    refused: Family<ReasonLabel, Counter>,
    models: Family<StateLabel, Gauge>,
    pipelines: Family<StateLabel, Gauge>,
    experiments: Family<StateLabel, Gauge>,
    subscribers: Family<KindLabel, Gauge>,
    pub(crate) rollouts: RolloutMetrics,
    usage: Usage,
}

/// Usage metrics with the names of Seldon's Hodometer. Nothing is sent anywhere.
#[derive(Default)]
struct Usage {
    models: Gauge,
    pipelines: Gauge,
    experiments: Gauge,
    servers: Gauge,
    replicas: Gauge,
    shared: Gauge,
    over_commit: Gauge,
    memory_gb: Seconds,
}

fn latency() -> Histogram {
    Histogram::new([
        0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
        10.0, 30.0,
    ])
}

/// Counts a subscriber until dropped.
pub(crate) struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            schedule_seconds: latency(),
            resync_seconds: Seconds::default(),
            commit_seconds: latency(),
            commit_failures: Counter::default(),
            refused: Family::default(),
            models: Family::default(),
            pipelines: Family::default(),
            experiments: Family::default(),
            subscribers: Family::default(),
            rollouts: RolloutMetrics::new(),
            usage: Usage::default(),
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry, engine: Handle) {
        let own = registry.sub_registry_with_prefix("gantry_scheduler");
        own.register_with_unit(
            "schedule",
            "Time from a command's arrival to its durable reply",
            Unit::Seconds,
            self.schedule_seconds.clone(),
        );
        own.register_with_unit(
            "resync",
            "Time from the start until all known replicas reconnected or expired",
            Unit::Seconds,
            self.resync_seconds.clone(),
        );
        own.register_with_unit(
            "store_commit",
            "Duration of store commits",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        own.register("store_commit_failures", "Failed store commits", self.commit_failures.clone());
        own.register("commands_refused", "Rejected commands by reason", self.refused.clone());
        own.register("models", "Models by the state of their latest version", self.models.clone());
        own.register("pipelines", "Pipelines by the state of their latest version", self.pipelines.clone());
        own.register("experiments", "Experiments by state", self.experiments.clone());
        own.register("subscribers", "Open streams by kind", self.subscribers.clone());
        self.rollouts.register(own, engine.clone());
        own.register_collector(Box::new(Queue(engine)));
        let usage = registry.sub_registry_with_prefix("gantry_usage");
        usage.register("model_count", "Models", self.usage.models.clone());
        usage.register("pipeline_count", "Pipelines", self.usage.pipelines.clone());
        usage.register("experiment_count", "Experiments", self.usage.experiments.clone());
        usage.register("server_count", "Servers", self.usage.servers.clone());
        usage.register("server_replica_count", "Server replicas", self.usage.replicas.clone());
        usage.register("multimodel_enabled_count", "Servers with multiple models", self.usage.shared.clone());
        usage.register(
            "overcommit_enabled_count",
            "Servers with memory over-commit",
            self.usage.over_commit.clone(),
        );
        usage.register("server_memory_gb_sum", "Memory for models, in GB", self.usage.memory_gb.clone());
    }

    pub(crate) fn committed(&self, took: Duration, well: bool) {
        self.commit_seconds.observe(took.as_secs_f64());
        if !well {
            self.commit_failures.inc();
        }
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn subscribed(&self, kind: &'static str) -> Counted {
        let gauge = self.subscribers.get_or_create(&KindLabel { kind }).clone();
        gauge.inc();
        Counted(gauge)
    }

    pub(crate) fn model_changed(&self, before: Option<ModelState>, after: Option<ModelState>) {
        if before == after {
            return;
        }
        let there = |state: ModelState| state != ModelState::Terminated;
        if let Some(state) = before {
            self.models.get_or_create(&StateLabel { state: label(state) }).dec();
            self.usage.models.inc_by(-i64::from(there(state)));
        }
        if let Some(state) = after {
            self.models.get_or_create(&StateLabel { state: label(state) }).inc();
            self.usage.models.inc_by(i64::from(there(state)));
        }
    }

    pub(crate) fn pipeline_changed(&self, before: Option<&Pipeline>, after: Option<&Pipeline>) {
        for (pipeline, sign) in [(before, -1), (after, 1)] {
            let Some((pipeline, latest)) = pipeline.and_then(|p| Some((p, p.latest()?))) else { continue };
            let status = pipeline.version_status(latest);
            let state = match status.state {
                PipelineState::Ready if !status.models_ready => "ModelsNotReady",
                state => pipeline_label(state),
            };
            self.pipelines.get_or_create(&StateLabel { state }).inc_by(sign);
            self.usage.pipelines.inc_by(sign * i64::from(!pipeline.deleted));
        }
    }

    pub(crate) fn experiment_changed(&self, before: Option<&Experiment>, after: Option<&Experiment>) {
        for (experiment, sign) in [(before, -1), (after, 1)] {
            let Some(experiment) = experiment.filter(|e| !e.deleted) else { continue };
            let state = if experiment.status().active { "Active" } else { "Inactive" };
            self.experiments.get_or_create(&StateLabel { state }).inc_by(sign);
            self.usage.experiments.inc_by(sign);
        }
    }

    pub(crate) fn server_changed(
        &self,
        before: Option<&pb::ServerStatusResponse>,
        after: Option<&pb::ServerStatusResponse>,
    ) {
        for (server, sign) in [(before, -1), (after, 1)] {
            let Some(server) = server else { continue };
            let replicas = i64::try_from(server.resources.len()).unwrap_or(i64::MAX);
            let several = server.resources.iter().any(|r| r.num_loaded_models > 1);
            let over = server.resources.iter().any(|r| r.over_commit_percentage > 0);
            self.usage.servers.inc_by(sign);
            self.usage.replicas.inc_by(sign * replicas);
            self.usage.shared.inc_by(sign * i64::from(several));
            self.usage.over_commit.inc_by(sign * i64::from(over));
            let bytes: u64 =
                server.resources.iter().fold(0, |sum, r| sum.saturating_add(r.total_memory_bytes));
            self.usage.memory_gb.inc_by(sign as f64 * (bytes as f64 / 1e9));
        }
    }
}

const fn label(state: ModelState) -> &'static str {
    match state {
        ModelState::Progressing => "ModelProgressing",
        ModelState::Available => "ModelAvailable",
        ModelState::Failed => "ModelFailed",
        ModelState::Terminating => "ModelTerminating",
        ModelState::Terminated => "ModelTerminated",
        ModelState::TerminateFailed => "ModelTerminateFailed",
        ModelState::ScheduleFailed => "ScheduleFailed",
        ModelState::ScaledDown => "ModelScaledDown",
    }
}

const fn pipeline_label(state: PipelineState) -> &'static str {
    match state {
        PipelineState::Creating => "PipelineCreating",
        PipelineState::Ready => "PipelineReady",
        PipelineState::Failed => "PipelineFailed",
        PipelineState::Terminating => "PipelineTerminating",
        PipelineState::Terminated => "PipelineTerminated",
    }
}

/// Reads the engine's queue when scraped.
struct Queue(Handle);

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl Collector for Queue {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let depth = Gauge::<i64>::default();
        depth.set(i64::try_from(self.0.waiting()).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor(
            "queue_depth",
            "Messages queued for the engine",
            None,
            depth.metric_type(),
        )?;
        depth.encode(metric)?;
        let moving = Gauge::<i64>::default();
        moving.set(i64::from(self.0.liveness().is_live()));
        let metric = encoder.encode_descriptor(
            "moving",
            "1 while the engine processes messages",
            None,
            moving.metric_type(),
        )?;
        moving.encode(metric)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

pub(crate) fn register(registry: &mut Registry, engine: &Handle) {
    let metrics: Arc<Metrics> = engine.metrics.clone();
    metrics.register(registry, engine.clone());
}
