//! `PromQL` of a revision: the default queries, or those of the spec with their placeholders filled.

use super::EvidenceRequest;
use std::time::Duration;

const SELECTOR: &str = r#"algorithm="{{algorithm}}",namespace="{{namespace}}",revision="{{revision}}""#;
const DRIFT_METRIC: &str = "algorithm_drift_score";

/// Queries of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RevisionQueries {
    pub(super) success_rate: String,
    pub(super) requests: String,
    pub(super) latency: Option<String>,
    pub(super) drift: Option<String>,
}

impl RevisionQueries {
    pub(super) fn new(request: &EvidenceRequest, revision: &str, track: &str) -> Self {
        let fill = |query: Option<&String>, default: String| {
            let window = promql_duration(request.window);
            query
                .cloned()
                .unwrap_or(default)
                .replace("{{algorithm}}", &request.key.name)
                .replace("{{namespace}}", &request.key.namespace)
                .replace("{{revision}}", revision)
                .replace("{{track}}", track)
                .replace("{{window}}", &window)
        };
        let queries = &request.queries;
        let total = format!("algorithm_requests_total{{{SELECTOR}}}");
        let failed = format!(r#"algorithm_requests_total{{{SELECTOR},code=~"5.."}}"#);
        // A revision without failures has no series of them.
        let success = format!(
            "1 - (sum(rate({failed}[{{{{window}}}}])) or vector(0)) / sum(rate({total}[{{{{window}}}}]))"
        );
        let buckets = format!("algorithm_request_duration_seconds_bucket{{{SELECTOR}}}");
        let latency =
            || format!("1000 * histogram_quantile(0.99, sum by (le) (rate({buckets}[{{{{window}}}}])))");
        let drift = |metric: &String| {
            let metric = if metric.is_empty() { DRIFT_METRIC } else { metric };
            fill(queries.drift.as_ref(), format!("max({metric}{{{SELECTOR}}})"))
        };
        Self {
            success_rate: fill(queries.success_rate.as_ref(), success),
            requests: fill(queries.requests.as_ref(), format!("sum(increase({total}[{{{{window}}}}]))")),
            latency: request.objectives.latency_limit_ms.map(|_| fill(queries.latency.as_ref(), latency())),
            drift: request.drift_metric.as_ref().map(drift),
        }
    }
}

fn promql_duration(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::Key, evidence::RevisionObjectives};
    use gantry_api::{EvidenceSource, MetricQueries};

    #[test]
    fn default_queries_select_the_revision() {
        let mut request = EvidenceRequest {
            key: Key::new("ml", "reco"),
            uid: "u".into(),
            source: EvidenceSource::Prometheus("http://p:9090".into()),
            queries: MetricQueries::default(),
            stable: "aaaaaaaaaa".into(),
            candidate: Some("bbbbbbbbbb".into()),
            generation: 3,
            interval: Duration::from_secs(30),
            window: Duration::from_mins(1),
            counts_once: false,
            objectives: RevisionObjectives { success: 0.99, latency_limit_ms: Some(50.0) },
            drift_metric: Some(String::new()),
        };
        let queries = RevisionQueries::new(&request, "bbbbbbbbbb", "canary");
        let labels = r#"algorithm="reco",namespace="ml",revision="bbbbbbbbbb""#;
        assert_eq!(
            queries,
            RevisionQueries {
                success_rate: format!(
                    r#"1 - (sum(rate(algorithm_requests_total{{{labels},code=~"5.."}}[60s])) or vector(0)) / sum(rate(algorithm_requests_total{{{labels}}}[60s]))"#
                ),
                requests: format!("sum(increase(algorithm_requests_total{{{labels}}}[60s]))"),
                latency: Some(format!(
                    "1000 * histogram_quantile(0.99, sum by (le) (rate(algorithm_request_duration_seconds_bucket{{{labels}}}[60s])))"
                )),
                drift: Some(format!("max(algorithm_drift_score{{{labels}}})")),
            }
        );
        request.queries.success_rate = Some("ok{t=\"{{track}}\",r=\"{{revision}}\"}[{{window}}]".into());
        request.objectives.latency_limit_ms = None;
        request.drift_metric = None;
        request.window = Duration::from_millis(1500);
        let queries = RevisionQueries::new(&request, "bbbbbbbbbb", "canary");
        assert_eq!(queries.success_rate, "ok{t=\"canary\",r=\"bbbbbbbbbb\"}[1500ms]");
        assert_eq!((queries.latency, queries.drift), (None, None));
    }
}
