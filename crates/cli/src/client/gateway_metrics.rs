//! Load per pipeline and per candidate of an experiment, from the gateway's metrics.

use super::{Connection, HttpError, LoadStats};
use gantry_dashboard::metrics_text::{Buckets, bound_micros, quantile_ms, sample};
use http::StatusCode;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Between the two reads whose difference is the request rate.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Load of a candidate; the name is that of the candidate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CandidateStats {
    pub(crate) experiment: String,
    pub(crate) load: LoadStats,
}

/// Load of all pipelines and of all candidates that the gateway has series of, with their current request rates.
pub(crate) async fn fetch_gateway_stats(
    connection: &mut Connection,
) -> Result<(Vec<LoadStats>, Vec<CandidateStats>), HttpError> {
    let (before, started) = (fetch(connection).await?, Instant::now());
    if before.pipelines.is_empty() && before.candidates.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    tokio::time::sleep(RATE_INTERVAL).await;
    let now = fetch(connection).await?;
    let seconds = started.elapsed().as_secs_f64();
    let pipelines =
        now.pipelines.iter().map(|(name, series)| series.load(name, before.pipelines.get(name), seconds));
    let candidates = now.candidates.iter().map(|(key, series)| {
        let load = series.load(&key.1, before.candidates.get(key), seconds);
        CandidateStats { experiment: key.0.clone(), load }
    });
    Ok((pipelines.collect(), candidates.collect()))
}

async fn fetch(connection: &mut Connection) -> Result<Metrics, HttpError> {
    let response = connection.get("/metrics").await?;
    if response.status() != StatusCode::OK {
        return Err(HttpError::Failed(format!("/metrics returned HTTP {}", response.status().as_u16())));
    }
    Ok(Metrics::parse(&String::from_utf8_lossy(response.body())))
}

#[derive(Debug, Default, PartialEq)]
struct Metrics {
    pipelines: BTreeMap<String, Series>,
    /// By experiment and candidate.
    candidates: BTreeMap<(String, String), Series>,
}

#[derive(Debug, Default, PartialEq)]
struct Series {
    requests: f64,
    errors: f64,
    buckets: Buckets,
}

impl Metrics {
    fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for (name, labels, value) in text.lines().filter_map(sample) {
            let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
            let Some((family, _)) = FAMILIES.iter().find(|(_, known)| *known == name) else { continue };
            let series = match family {
                Family::PipelineRequests | Family::PipelineSeconds => {
                    metrics.pipelines.entry(label("pipeline")).or_default()
                }
                _ => metrics.candidates.entry((label("experiment"), label("candidate"))).or_default(),
            };
            match family {
                Family::PipelineRequests => {
                    series.requests += value;
                    let ok = if label("method_type") == "grpc" { "0" } else { "200" };
                    if label("code") != ok {
                        series.errors += value;
                    }
                }
                Family::CandidateRequests => series.requests += value,
                Family::CandidateErrors => series.errors += value,
                Family::PipelineSeconds | Family::CandidateSeconds => {
                    *series.buckets.entry(bound_micros(&label("le"))).or_default() += value;
                }
            }
        }
        metrics
    }
}

#[derive(Clone, Copy)]
enum Family {
    PipelineRequests,
    PipelineSeconds,
    CandidateRequests,
    CandidateErrors,
    CandidateSeconds,
}

const FAMILIES: [(Family, &str); 5] = [
    (Family::PipelineRequests, "seldon_pipeline_infer_total"),
    (Family::PipelineSeconds, "seldon_pipeline_infer_api_seconds_bucket"),
    (Family::CandidateRequests, "gantry_experiment_requests_total"),
    (Family::CandidateErrors, "gantry_experiment_errors_total"),
    (Family::CandidateSeconds, "gantry_experiment_seconds_bucket"),
];

impl Series {
    fn load(&self, name: &str, before: Option<&Self>, seconds: f64) -> LoadStats {
        let since = self.requests - before.map_or(0.0, |before| before.requests);
        LoadStats {
            name: name.to_owned(),
            requests: self.requests as u64,
            errors: self.errors as u64,
            p50_ms: quantile_ms(&self.buckets, 0.5),
            p99_ms: quantile_ms(&self.buckets, 0.99),
            rate: Some(since.max(0.0) / seconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_between_two_reads() {
        let series = |requests| Series { requests, ..Series::default() };
        assert_eq!(series(30.0).load("p", Some(&series(10.0)), 2.0).rate, Some(10.0));
        assert_eq!(series(30.0).load("p", None, 2.0).rate, Some(15.0));
        assert_eq!(series(1.0).load("p", Some(&series(10.0)), 2.0).rate, Some(0.0), "after a restart");
    }
}
