//! Series of pipelines with the names and labels of Seldon's dashboards, removed after the pipeline.

use super::retention::{Retained, Used};
use gantry_transport::{Protocol, metrics::Seconds};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::Instant;

/// The value of the label `server`.
const SERVER: &str = "pipeline-gateway";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PipelineLabels {
    server: &'static str,
    pipeline: String,
    method_type: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    server: &'static str,
    pipeline: String,
    method: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AggregateLabels {
    server: &'static str,
    method_type: &'static str,
}

pub(super) struct PipelineSeries {
    total: Family<PipelineLabels, Counter>,
    seconds: Family<PipelineLabels, Seconds>,
    api_seconds: Family<ApiLabels, Histogram, fn() -> Histogram>,
    aggregate_total: Family<AggregateLabels, Counter>,
    aggregate_seconds: Family<AggregateLabels, Seconds>,
    retained: Retained<PipelineLabels>,
}

/// Series of a pipeline; those of successes are cached by protocol on first use.
pub(crate) struct PipelineMetrics {
    pipeline: Arc<str>,
    ok: [OnceLock<Handles>; 2],
    used: Used<PipelineLabels>,
}

struct Handles {
    total: Counter,
    seconds: Seconds,
    api_seconds: Histogram,
    aggregate_total: Counter,
    aggregate_seconds: Seconds,
}

impl Handles {
    fn record(&self, seconds: f64) {
        self.total.inc();
        self.seconds.inc_by(seconds);
        self.api_seconds.observe(seconds);
        self.aggregate_total.inc();
        self.aggregate_seconds.inc_by(seconds);
    }
}

impl PipelineSeries {
    pub(super) fn new(latency: fn() -> Histogram) -> Self {
        Self {
            total: Family::default(),
            seconds: Family::default(),
            api_seconds: Family::new_with_constructor(latency),
            aggregate_total: Family::default(),
            aggregate_seconds: Family::default(),
            retained: Retained::new(),
        }
    }

    pub(super) fn register(&self, r: &mut Registry) {
        r.register("seldon_pipeline_infer", "Requests of pipelines", self.total.clone());
        r.register(
            "seldon_pipeline_infer_seconds",
            "Total duration of requests of pipelines in seconds",
            self.seconds.clone(),
        );
        r.register(
            "seldon_pipeline_infer_api_seconds",
            "Latency of pipelines in seconds",
            self.api_seconds.clone(),
        );
        r.register(
            "seldon_pipeline_aggregate_infer",
            "Requests of all pipelines",
            self.aggregate_total.clone(),
        );
        r.register(
            "seldon_pipeline_aggregate_infer_seconds",
            "Total duration of requests of all pipelines in seconds",
            self.aggregate_seconds.clone(),
        );
    }

    pub(super) fn pipeline(&self, name: &Arc<str>) -> PipelineMetrics {
        PipelineMetrics { pipeline: Arc::clone(name), ok: Default::default(), used: self.retained.user() }
    }

    pub(super) fn record(&self, of: &PipelineMetrics, protocol: Protocol, code: u16, took: Duration) {
        let handles = || self.handles(of, protocol, code);
        let cached = of.ok.get(usize::from(protocol == Protocol::Grpc)).filter(|_| code == protocol.ok());
        match cached {
            Some(ok) => ok.get_or_init(handles).record(took.as_secs_f64()),
            None => handles().record(took.as_secs_f64()),
        }
    }

    fn handles(&self, of: &PipelineMetrics, protocol: Protocol, code: u16) -> Handles {
        let method_type = protocol.name();
        let labels = PipelineLabels {
            server: SERVER,
            pipeline: of.pipeline.to_string(),
            method_type,
            code: code.to_string(),
        };
        of.used.add(&labels);
        let aggregate = AggregateLabels { server: SERVER, method_type };
        Handles {
            total: self.total.get_or_create(&labels).clone(),
            seconds: self.seconds.get_or_create(&labels).clone(),
            api_seconds: self.api_seconds.get_or_create(&api_labels(&labels)).clone(),
            aggregate_total: self.aggregate_total.get_or_create(&aggregate).clone(),
            aggregate_seconds: self.aggregate_seconds.get_or_create(&aggregate).clone(),
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.retained.sweep(now, |labels| {
            self.total.remove(labels);
            self.seconds.remove(labels);
            self.api_seconds.remove(&api_labels(labels));
        });
    }
}

fn api_labels(labels: &PipelineLabels) -> ApiLabels {
    ApiLabels {
        server: labels.server,
        pipeline: labels.pipeline.clone(),
        method: labels.method_type,
        code: labels.code.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::retention::RETENTION, *};

    #[test]
    fn series_end_with_the_pipeline() {
        let series = PipelineSeries::new(crate::metrics::latency);
        let mut registry = Registry::default();
        series.register(&mut registry);
        let text = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap_or_default();
            text
        };
        let pipeline = series.pipeline(&"join".into());
        for code in [200, 200, 503] {
            series.record(&pipeline, Protocol::Rest, code, Duration::from_millis(3));
        }
        let labels = r#"server="pipeline-gateway",pipeline="join",method_type="rest""#;
        let text_before = text();
        let has = |line: &str| text_before.lines().any(|l| l == line);
        assert!(has(&format!("seldon_pipeline_infer_total{{{labels},code=\"200\"}} 2")), "{text_before}");
        assert!(has(&format!("seldon_pipeline_infer_total{{{labels},code=\"503\"}} 1")), "{text_before}");
        assert!(has(
            r#"seldon_pipeline_aggregate_infer_total{server="pipeline-gateway",method_type="rest"} 3"#
        ));
        drop(pipeline);
        series.sweep(Instant::now() + RETENTION);
        assert!(!text().contains("pipeline=\"join\""), "{}", text());
    }
}
