//! Validation rules of `Algorithm`.

use super::{AlgorithmSpec, duration};
use crate::{
    FieldError,
    kserve::name_rule,
    validation::{CelRule, Check, Rule, Violation},
};
use std::time::Duration;

/// Room for the suffixes of names of Deployments and Services.
const MAX_NAME: usize = 52;
/// Of all files together: the status keeps those of several revisions.
const MAX_CONFIG: usize = 128 * 1024;
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_hours(1);

const fn cel(at: &'static str, field: &'static str, rule: &'static str, message: &'static str) -> CelRule {
    CelRule { at, field, rule, message, values: &[], ratchet: "" }
}

fn violation_if(broken: bool, path: &str) -> Vec<Violation> {
    if broken { vec![(path.to_owned(), Vec::new())] } else { Vec::new() }
}

pub(crate) const ALGORITHM: &[Rule<AlgorithmSpec>] = &[
    name_rule(),
    Rule {
        cel: CelRule {
            ratchet: "oldSelf.hasValue()",
            ..cel(
                "",
                "metadata.name",
                "self.metadata.name.size() <= 52",
                "has more than 52 characters: shorten it, names of Deployments and Services are derived from it",
            )
        },
        check: Check::Object(|name, _| violation_if(name.len() > MAX_NAME, "metadata.name")),
    },
    Rule {
        cel: cel("spec.image", "", "self.matches('[^ \\t\\r\\n]')", "is empty: set it to a container image"),
        check: Check::Spec(|s| {
            let is_blank = s.image.chars().all(|c| [' ', '\t', '\r', '\n'].contains(&c));
            violation_if(is_blank, "spec.image")
        }),
    },
    Rule {
        cel: CelRule {
            values: &["self.minReplicas", "self.maxReplicas"],
            ..cel(
                "spec.scaling",
                "minReplicas",
                "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "is {}, more than maxReplicas {}: lower one or raise the other",
            )
        },
        check: Check::Spec(|s| {
            let both = s.scaling.as_ref().and_then(|s| s.min_replicas.zip(s.max_replicas));
            let broken = both.filter(|(min, max)| min > max);
            let values = broken.map(|(min, max)| vec![min.to_string(), max.to_string()]);
            values.map(|values| ("spec.scaling.minReplicas".to_owned(), values)).into_iter().collect()
        }),
    },
    Rule {
        cel: cel(
            "spec.scaling",
            "targetLatencyMs",
            "!has(self.targetLatencyMs) || self.targetLatencyMs > 0",
            "is not positive: set it to milliseconds, or remove it",
        ),
        check: Check::Spec(|s| {
            let target = s.scaling.as_ref().and_then(|s| s.target_latency_ms);
            violation_if(target.is_some_and(|ms| ms <= 0), "spec.scaling.targetLatencyMs")
        }),
    },
    Rule {
        cel: cel(
            "spec.resources",
            "gpu",
            "!has(self.gpuCount) || self.gpuCount == 0 || !has(self.gpu) || self.gpu.matches('^[^/]+/[^/]+$')",
            "is not the name of an extended resource: write it as DOMAIN/NAME, such as nvidia.com/gpu",
        ),
        check: Check::Spec(|s| {
            let resources = s.resources.as_ref().filter(|r| r.gpu_count.is_some_and(|count| count > 0));
            let gpu = resources.and_then(|r| r.gpu.as_deref());
            let is_qualified = |gpu: &str| {
                gpu.split_once('/').is_some_and(|(domain, name)| {
                    !domain.is_empty() && !name.is_empty() && !name.contains('/')
                })
            };
            violation_if(gpu.is_some_and(|gpu| !is_qualified(gpu)), "spec.resources.gpu")
        }),
    },
    Rule {
        cel: cel(
            "spec.lifecycle",
            "successThreshold",
            "!has(self.successThreshold) || \
             (double(self.successThreshold) > 0.0 && double(self.successThreshold) <= 1.0)",
            "is not above 0 and at most 1: set it to a share of requests, such as 0.99",
        ),
        check: Check::Spec(|s| {
            let threshold = s.lifecycle.as_ref().and_then(|l| l.success_threshold);
            let broken = threshold.is_some_and(|share| !(share > 0.0 && share <= 1.0));
            violation_if(broken, "spec.lifecycle.successThreshold")
        }),
    },
    Rule {
        cel: cel(
            "spec.lifecycle",
            "steps",
            "!has(self.steps) || (self.steps.all(w, w >= 1 && w <= 100) && \
             [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]\
             .all(i, i + 1 >= self.steps.size() || self.steps[i] < self.steps[i + 1]))",
            "are not increasing weights from 1 to 100: sort them, and remove duplicates",
        ),
        check: Check::Spec(|s| {
            let steps = s.lifecycle.as_ref().map(|l| l.steps.as_slice()).unwrap_or_default();
            let broken =
                steps.iter().any(|weight| !(1..=100).contains(weight)) || !steps.is_sorted_by(|a, b| a < b);
            violation_if(broken, "spec.lifecycle.steps")
        }),
    },
];

/// Rules without a CEL form.
pub(crate) fn algorithm_errors(_name: &str, spec: &AlgorithmSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut error = |path: &str, message: String| errors.push((path.to_owned(), message));
    let size: usize = spec.config.iter().map(|(name, text)| name.len() + text.len()).sum();
    if size > MAX_CONFIG {
        error(
            "spec.config",
            format!("has {size} bytes, at most {MAX_CONFIG} are allowed: put files into the image"),
        );
    }
    let is_file = |name: &str| {
        !name.is_empty()
            && name.len() <= 253
            && !name.starts_with("..")
            && name != "."
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    for name in spec.config.keys().filter(|name| !is_file(name) || name.as_str() == "algorithm.json") {
        let shown = name.escape_debug();
        let message =
            format!("\"{shown}\" is not possible: use letters, digits, '-', '_' and '.', not algorithm.json");
        error("spec.config", message);
    }
    if let Some(lifecycle) = &spec.lifecycle {
        for (field, text) in [("interval", &lifecycle.interval), ("window", &lifecycle.window)] {
            let path = format!("spec.lifecycle.{field}");
            match text.as_deref().map(duration::parse) {
                Some(Err(message)) => error(&path, message),
                Some(Ok(time)) if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&time) => {
                    error(&path, "must be at least 1s and at most 1h".into());
                }
                _ => {}
            }
        }
        if lifecycle.latency_tolerance.is_some_and(|factor| !(factor >= 1.0 && factor.is_finite())) {
            error("spec.lifecycle.latencyTolerance", "must be at least 1".into());
        }
    }
    if spec.drift.as_ref().and_then(|d| d.threshold).is_some_and(|score| !(score > 0.0 && score.is_finite()))
    {
        error("spec.drift.threshold", "must be positive".into());
    }
    if let Some(address) = spec.prometheus()
        && !(address.starts_with("http://") || address.starts_with("https://"))
    {
        let message = "is not a URL: write it as http://HOST:PORT or https://HOST:PORT";
        error("spec.metrics.prometheus.address", message.into());
    }
    let mut names: Vec<&str> = spec.ports.iter().map(|port| port.name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        error("spec.ports", "have a duplicate name: rename one".into());
    }
    errors
}
