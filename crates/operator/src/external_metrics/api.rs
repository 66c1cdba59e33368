//! Paths and objects of the API.

use crate::cluster::Key;
use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const GROUP_VERSION: &str = "external.metrics.k8s.io/v1beta1";
/// The cluster's registration of the API, ours or another provider's.
pub const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";
/// The 99th percentile of the latencies of a stable revision, in milliseconds.
pub const METRIC: &str = "algorithm_request_latency_ms";

const ALGORITHM: &str = "algorithm";
const TRACK: &str = "track";
const STABLE: &str = "stable";
/// A selector that is longer has no meaning here.
const MAX_SELECTOR: usize = 1024;

/// The labels of the metric of an Algorithm.
pub(crate) fn labels(algorithm: &str) -> Value {
    json!({ ALGORITHM: algorithm, TRACK: STABLE })
}

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// The list of metrics.
    Discovery,
    /// The metric of an Algorithm; of `None`, where the selector matches no series.
    Value { namespace: String, algorithm: Option<String> },
}

/// An answer other than a value, as a `Status` of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: StatusCode,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into() }
    }

    pub(super) fn body(&self) -> Value {
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        })
    }
}

/// Reads the path and query of a GET request.
pub(super) fn parse(path: &str, query: Option<&str>) -> Result<Call, Failure> {
    let not_found = || {
        let message = format!(
            "not found: the paths are /apis/{GROUP_VERSION} and below it namespaces/NAMESPACE/{METRIC}"
        );
        Failure::new(StatusCode::NOT_FOUND, "NotFound", message)
    };
    let rest = path.strip_prefix("/apis/").and_then(|rest| rest.strip_prefix(GROUP_VERSION));
    let mut words = rest.ok_or_else(not_found)?.split('/').filter(|word| !word.is_empty());
    match (words.next(), words.next(), words.next(), words.next()) {
        (None, ..) => Ok(Call::Discovery),
        (Some("namespaces"), Some(namespace), Some(METRIC), None) => {
            let algorithm = selected(query.unwrap_or_default())?;
            Ok(Call::Value { namespace: namespace.to_owned(), algorithm })
        }
        _ => Err(not_found()),
    }
}

/// The Algorithm that the label selector of a query names.
fn selected(query: &str) -> Result<Option<String>, Failure> {
    let invalid =
        |why: &str| Failure::new(StatusCode::BAD_REQUEST, "BadRequest", format!("labelSelector: {why}"));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let selector = pairs.filter(|(name, _)| *name == "labelSelector").map(|(_, value)| value).next_back();
    let selector = selector.unwrap_or_default();
    if selector.len() > MAX_SELECTOR {
        return Err(invalid("it is too long"));
    }
    let selector = decoded(selector).ok_or_else(|| invalid("its encoding is invalid"))?;
    let mut labels = BTreeMap::new();
    for term in selector.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let pair = term.split_once("==").or_else(|| term.split_once('='));
        let (name, value) = match pair {
            Some((name, value)) if !name.ends_with('!') => (name.trim(), value.trim()),
            _ => return Err(invalid("only equalities are supported, such as algorithm=reco,track=stable")),
        };
        labels.insert(name.to_owned(), value.to_owned());
    }
    let algorithm =
        labels.remove(ALGORITHM).ok_or_else(|| invalid("it has to name the Algorithm: algorithm=NAME"))?;
    let has_value = labels.remove(TRACK).is_none_or(|track| track == STABLE) && labels.is_empty();
    Ok(has_value.then_some(algorithm))
}

/// Percent decoding of a query's value.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn resources() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [{
            "name": METRIC,
            "singularName": "",
            "namespaced": true,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }],
    })
}

/// The list with the value, in milliseconds, or with none.
pub(super) fn values(key: Option<&Key>, latency_ms: Option<f64>, now: Timestamp) -> Value {
    let item = |(key, value): (&Key, f64)| {
        json!({
            "metricName": METRIC,
            "metricLabels": labels(&key.name),
            "timestamp": format!("{now:.0}"),
            "value": quantity(value),
        })
    };
    let items: Vec<Value> = key.zip(latency_ms).map(item).into_iter().collect();
    json!({ "kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items })
}

/// A quantity in thousandths, which Kubernetes rounds up.
fn quantity(value: f64) -> String {
    format!("{:.0}m", (value.max(0.0) * 1000.0).min(1e15))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ml/algorithm_request_latency_ms";

    fn call(query: &str) -> Result<Option<String>, String> {
        match parse(PATH, Some(query)) {
            Ok(Call::Value { namespace, algorithm }) => {
                assert_eq!(namespace, "ml");
                Ok(algorithm)
            }
            Ok(Call::Discovery) => panic!("{query}"),
            Err(failure) => {
                assert_eq!(failure.code, StatusCode::BAD_REQUEST);
                Err(failure.message)
            }
        }
    }

    #[test]
    fn selectors_name_an_algorithm() {
        let reco = Ok(Some("reco".to_owned()));
        assert_eq!(call("labelSelector=algorithm%3Dreco%2Ctrack%3Dstable"), reco);
        assert_eq!(call("limit=5&labelSelector=algorithm==reco"), reco);
        assert_eq!(call("labelSelector=algorithm=reco"), reco);
        assert_eq!(call("labelSelector=algorithm%3Dreco%2Ctrack%3Dcanary"), Ok(None));
        assert_eq!(call("labelSelector=algorithm%3Dreco%2Cteam%3Dblue"), Ok(None));
        for (query, why) in [
            ("", "has to name the Algorithm"),
            ("labelSelector=track%3Dstable", "has to name the Algorithm"),
            ("labelSelector=algorithm", "only equalities"),
            ("labelSelector=algorithm!%3Dreco", "only equalities"),
            ("labelSelector=algorithm+in+(reco)", "only equalities"),
            ("labelSelector=%zz", "encoding"),
            ("labelSelector=%2", "encoding"),
        ] {
            let error = call(query).unwrap_err();
            assert!(error.contains(why), "{query}: {error}");
        }
        assert!(call(&format!("labelSelector={}", "a".repeat(5000))).unwrap_err().contains("too long"));
    }

    #[test]
    fn other_paths_are_not_found() {
        assert_eq!(parse("/apis/external.metrics.k8s.io/v1beta1", None), Ok(Call::Discovery));
        assert_eq!(parse("/apis/external.metrics.k8s.io/v1beta1/", None), Ok(Call::Discovery));
        for path in [
            "/",
            "/apis",
            "/openapi/v2",
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/ml/other",
            "/metrics",
        ] {
            assert_eq!(parse(path, None).unwrap_err().code, StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[test]
    fn values_are_quantities() {
        let key = Key::new("ml", "reco");
        let now = "2026-11-19T05:00:00.25Z".parse().unwrap();
        let list = values(Some(&key), Some(43.21), now);
        assert_eq!(
            list["items"],
            json!([{
                "metricName": METRIC,
                "metricLabels": { "algorithm": "reco", "track": "stable" },
                "timestamp": "2026-11-19T05:00:00Z",
                "value": "43210m",
            }])
        );
        assert_eq!(values(Some(&key), None, now)["items"], json!([]));
        assert_eq!(values(None, Some(1.0), now)["items"], json!([]));
        for (value, text) in [(0.0, "0m"), (-1.0, "0m"), (0.0004, "0m"), (1e300, "1000000000000000m")] {
            assert_eq!(quantity(value), text);
        }
    }
}
