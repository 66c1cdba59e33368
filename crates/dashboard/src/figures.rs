//! Requests, errors and latencies, from the metrics of this process.

use crate::{
    Source,
    metrics_text::{Buckets, bound_micros, quantile_ms, sample},
};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Metrics are read at most this often, however many pages are open.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Points of the curves: some minutes.
const HISTORY: usize = 180;
/// Latencies of all models are those of the last minute.
const LATENCY_WINDOW: Duration = Duration::from_mins(1);

/// Load of a model, pipeline, candidate or replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Figures {
    /// Since the start of the process.
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Requests per second since the previous sample.
    pub(crate) rate: f64,
    pub(crate) error_rate: f64,
    pub(crate) mean_ms: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// All figures at one moment.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) total: Figures,
    pub(crate) models: HashMap<String, Figures>,
    pub(crate) pipelines: HashMap<String, Figures>,
    /// By experiment and candidate.
    pub(crate) candidates: HashMap<(String, String), Figures>,
    /// By server and replica.
    pub(crate) replicas: HashMap<(String, u32), Figures>,
    pub(crate) history: Vec<Point>,
}

/// A point of the curves.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Point {
    at_ms: u64,
    rate: f64,
    error_rate: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
}

#[derive(Default)]
pub(crate) struct Sampler(Mutex<State>);

#[derive(Default)]
struct State {
    read: Option<(Instant, Counts)>,
    sample: Arc<Sample>,
    history: VecDeque<Point>,
    /// Buckets of all models, oldest first.
    latencies: VecDeque<(Instant, Buckets)>,
}

impl Sampler {
    /// The current figures, read again if the last ones are older than a second. Callers that come meanwhile wait for them.
    pub(crate) fn sample(&self, source: &dyn Source) -> Arc<Sample> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.read.as_ref().is_none_or(|(at, _)| now.duration_since(*at) >= MIN_INTERVAL) {
            let counts = Counts::parse(&source.metrics());
            state.update(now, counts, &source.latencies());
        }
        Arc::clone(&state.sample)
    }
}

impl State {
    fn update(&mut self, now: Instant, counts: Counts, latencies: &Value) {
        let empty = Counts::default();
        let (before, seconds) = match &self.read {
            Some((at, before)) => (before, now.duration_since(*at).as_secs_f64().max(1e-3)),
            // Nothing is known about the time before.
            None => (&empty, f64::INFINITY),
        };
        let mut total = counts.total.figures(Some(&before.total), seconds);
        let window = window(&mut self.latencies, now, &counts.total.buckets);
        (total.p50_ms, total.p99_ms) = (quantile_ms(&window, 0.5), quantile_ms(&window, 0.99));
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        self.history.push_back(Point {
            at_ms: u64::try_from(at_ms).unwrap_or(0),
            rate: total.rate,
            error_rate: total.error_rate,
            p50_ms: total.p50_ms,
            p99_ms: total.p99_ms,
        });
        self.history.drain(..self.history.len().saturating_sub(HISTORY));
        let mut models = figures(&counts.models, &before.models, seconds);
        for latency in latencies.get("models").and_then(Value::as_array).into_iter().flatten() {
            let name = latency.get("name").and_then(Value::as_str).unwrap_or_default();
            let millis = |field: &str| latency.get(field).and_then(Value::as_f64);
            if let Some(model) = models.get_mut(name) {
                (model.p50_ms, model.p99_ms) =
                    (millis("p50_ms").or(model.p50_ms), millis("p99_ms").or(model.p99_ms));
            }
        }
        self.sample = Arc::new(Sample {
            total,
            models,
            pipelines: figures(&counts.pipelines, &before.pipelines, seconds),
            candidates: figures(&counts.candidates, &before.candidates, seconds),
            replicas: figures(&counts.replicas, &before.replicas, seconds),
            history: self.history.iter().copied().collect(),
        });
        self.read = Some((now, counts));
    }
}

/// Counts of the last minute; all of them in the first one.
fn window(latencies: &mut VecDeque<(Instant, Buckets)>, now: Instant, buckets: &Buckets) -> Buckets {
    while latencies.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= LATENCY_WINDOW) {
        latencies.pop_front();
    }
    let before = latencies.front().map(|(_, before)| before.clone()).unwrap_or_default();
    latencies.push_back((now, buckets.clone()));
    let since =
        |(bound, count): (&u64, &f64)| (*bound, (count - before.get(bound).copied().unwrap_or(0.0)).max(0.0));
    let recent: Buckets = buckets.iter().map(since).collect();
    // Without a request in the last minute, those before are shown.
    if recent.values().last().is_some_and(|all| *all > 0.0) { recent } else { buckets.clone() }
}

fn figures<K: Clone + Eq + std::hash::Hash>(
    now: &HashMap<K, Series>,
    before: &HashMap<K, Series>,
    seconds: f64,
) -> HashMap<K, Figures> {
    now.iter().map(|(key, series)| (key.clone(), series.figures(before.get(key), seconds))).collect()
}

#[derive(Debug, Default)]
struct Counts {
    total: Series,
    models: HashMap<String, Series>,
    pipelines: HashMap<String, Series>,
    candidates: HashMap<(String, String), Series>,
    replicas: HashMap<(String, u32), Series>,
}

#[derive(Debug, Default)]
struct Series {
    requests: f64,
    errors: f64,
    seconds: f64,
    buckets: Buckets,
}

impl Series {
    fn count(&mut self, value: f64, is_error: bool) {
        self.requests += value;
        if is_error {
            self.errors += value;
        }
    }

    fn bucket(&mut self, le: &str, value: f64) {
        *self.buckets.entry(bound_micros(le)).or_default() += value;
    }

    fn figures(&self, before: Option<&Self>, seconds: f64) -> Figures {
        let since = |now: f64, before: f64| (now - before).max(0.0) / seconds;
        Figures {
            requests: self.requests as u64,
            errors: self.errors as u64,
            rate: since(self.requests, before.map_or(0.0, |b| b.requests)),
            error_rate: since(self.errors, before.map_or(0.0, |b| b.errors)),
            mean_ms: (self.requests > 0.0 && self.seconds > 0.0).then(|| self.seconds * 1e3 / self.requests),
            p50_ms: quantile_ms(&self.buckets, 0.5),
            p99_ms: quantile_ms(&self.buckets, 0.99),
        }
    }
}

impl Counts {
    fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        for line in text.lines() {
            let family = line.split('{').next().unwrap_or_default();
            if !FAMILIES.contains(&family) {
                continue;
            }
            if let Some((family, labels, value)) = sample(line) {
                counts.add(family, &labels, value);
            }
        }
        counts
    }

    fn add(&mut self, family: &str, labels: &BTreeMap<&str, String>, value: f64) {
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let is_error = || {
            let ok = if label("method_type") == "grpc" { "0" } else { "200" };
            label("code") != ok
        };
        let replica = || (label("server"), label("server_replica").parse().unwrap_or(0));
        let candidate = || (label("experiment"), label("candidate"));
        match family {
            MODEL_REQUESTS => {
                let is_error = is_error();
                self.total.count(value, is_error);
                self.models.entry(label("model")).or_default().count(value, is_error);
                self.replicas.entry(replica()).or_default().count(value, is_error);
            }
            MODEL_SECONDS => {
                self.total.seconds += value;
                self.models.entry(label("model")).or_default().seconds += value;
                self.replicas.entry(replica()).or_default().seconds += value;
            }
            MODEL_LATENCY => {
                let le = label("le");
                self.total.bucket(&le, value);
                self.replicas.entry(replica()).or_default().bucket(&le, value);
            }
            PIPELINE_REQUESTS => {
                self.pipelines.entry(label("pipeline")).or_default().count(value, is_error());
            }
            PIPELINE_SECONDS => self.pipelines.entry(label("pipeline")).or_default().seconds += value,
            PIPELINE_LATENCY => {
                self.pipelines.entry(label("pipeline")).or_default().bucket(&label("le"), value);
            }
            CANDIDATE_REQUESTS => self.candidates.entry(candidate()).or_default().requests += value,
            CANDIDATE_ERRORS => self.candidates.entry(candidate()).or_default().errors += value,
            CANDIDATE_LATENCY => self.candidates.entry(candidate()).or_default().bucket(&label("le"), value),
            _ => {}
        }
    }
}

const MODEL_REQUESTS: &str = "seldon_model_infer_total";
const MODEL_SECONDS: &str = "seldon_model_infer_seconds_total";
const MODEL_LATENCY: &str = "seldon_model_infer_api_seconds_bucket";
const PIPELINE_REQUESTS: &str = "seldon_pipeline_infer_total";
const PIPELINE_SECONDS: &str = "seldon_pipeline_infer_seconds_total";
const PIPELINE_LATENCY: &str = "seldon_pipeline_infer_api_seconds_bucket";
const CANDIDATE_REQUESTS: &str = "gantry_experiment_requests_total";
const CANDIDATE_ERRORS: &str = "gantry_experiment_errors_total";
const CANDIDATE_LATENCY: &str = "gantry_experiment_seconds_bucket";
const FAMILIES: [&str; 9] = [
    MODEL_REQUESTS,
    MODEL_SECONDS,
    MODEL_LATENCY,
    PIPELINE_REQUESTS,
    PIPELINE_SECONDS,
    PIPELINE_LATENCY,
    CANDIDATE_REQUESTS,
    CANDIDATE_ERRORS,
    CANDIDATE_LATENCY,
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = r#"
# TYPE seldon_model_infer counter
seldon_model_infer_total{server="builtin",server_replica="0",model="iris",model_internal="iris_1",method_type="rest",code="200"} 8
seldon_model_infer_total{server="builtin",server_replica="0",model="iris",model_internal="iris_1",method_type="grpc",code="0"} 1
seldon_model_infer_total{server="other",server_replica="1",model="iris",model_internal="iris_2",method_type="rest",code="500"} 1
seldon_model_infer_seconds_total{server="builtin",server_replica="0",model="iris",model_internal="iris_1",method_type="rest",code="200"} 0.02
seldon_model_infer_api_seconds_bucket{le="0.001",server="builtin",server_replica="0",method="rest",code="200"} 5
seldon_model_infer_api_seconds_bucket{le="+Inf",server="builtin",server_replica="0",method="rest",code="200"} 10
seldon_pipeline_infer_total{server="pipeline-gateway",pipeline="join",method_type="rest",code="503"} 2
gantry_experiment_requests_total{experiment="half",candidate="iris"} 4
gantry_experiment_errors_total{experiment="half",candidate="iris"} 1
"#;

    #[test]
    fn counts_are_summed_over_versions_replicas_and_codes() {
        let counts = Counts::parse(TEXT);
        let mut state = State::default();
        let start = Instant::now();
        state.update(start, Counts::default(), &json!({}));
        let latencies = json!({ "models": [{ "name": "iris", "p50_ms": 0.5, "p99_ms": 2.5 }] });
        state.update(start + Duration::from_secs(2), counts, &latencies);
        let sample = &state.sample;
        let iris = &sample.models["iris"];
        assert_eq!((iris.requests, iris.errors, iris.rate, iris.error_rate), (10, 1, 5.0, 0.5));
        assert_eq!((iris.p50_ms, iris.p99_ms, iris.mean_ms), (Some(0.5), Some(2.5), Some(2.0)));
        assert_eq!(sample.total.p50_ms, Some(1.0));
        assert_eq!(sample.replicas[&("other".to_owned(), 1)].errors, 1);
        assert_eq!(sample.pipelines["join"].errors, 2);
        let candidate = &sample.candidates[&("half".to_owned(), "iris".to_owned())];
        assert_eq!((candidate.requests, candidate.errors), (4, 1));
        assert_eq!(sample.history.len(), 2);
    }

    #[test]
    fn rate_is_zero_at_the_first_sample_and_after_a_restart() {
        let mut state = State::default();
        let start = Instant::now();
        state.update(start, Counts::parse(TEXT), &Value::Null);
        assert!(state.sample.total.rate.abs() < f64::EPSILON);
        state.update(start + Duration::from_secs(1), Counts::default(), &Value::Null);
        assert!(state.sample.total.rate.abs() < f64::EPSILON);
    }

    #[test]
    fn curves_are_bounded() {
        let mut state = State::default();
        let start = Instant::now();
        for second in 0..400 {
            state.update(start + Duration::from_secs(second), Counts::default(), &Value::Null);
        }
        assert_eq!(state.sample.history.len(), HISTORY);
        assert!(state.latencies.len() <= 62, "{}", state.latencies.len());
    }
}
