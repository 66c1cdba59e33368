//! Load test: many requests and a summary.

use super::client::{InferClient, InferError, InferResponse};
use crate::duration;
use hdrhistogram::Histogram;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Distinct routes or errors listed; further ones are counted as `others`.
const MAX_KEYS: usize = 20;

#[derive(Clone, Debug)]
pub(super) struct LoadOptions {
    pub(super) iterations: Option<u64>,
    pub(super) duration: Option<Duration>,
    pub(super) concurrency: u32,
}

#[derive(Debug)]
pub(super) struct Report {
    pub(super) first_response: Option<InferResponse>,
    pub(super) first_error: Option<InferError>,
    elapsed: Duration,
    /// In nanoseconds.
    latencies: Histogram<u64>,
    routes: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
}

/// Sends requests until the number or duration is reached, or until Ctrl-C.
pub(super) async fn run(client: &InferClient, options: &LoadOptions) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicU64::new(options.iterations.unwrap_or(u64::MAX)));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..options.concurrency {
        workers.spawn(work(client.reconnected(), left.clone(), stop.clone()));
    }
    let duration = options.duration;
    let timer = async {
        match duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(timer);
    let mut report = Report::new();
    loop {
        tokio::select! {
            () = &mut timer, if !stop.load(Ordering::Relaxed) => stop.store(true, Ordering::Relaxed),
            // Ctrl-C still prints the summary.
            _ = tokio::signal::ctrl_c() => stop.store(true, Ordering::Relaxed),
            done = workers.join_next() => match done {
                Some(Ok(part)) => report.merge(part),
                Some(Err(_)) => {}
                None => break,
            },
        }
    }
    report.elapsed = start.elapsed();
    report
}

async fn work(mut client: InferClient, left: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Report {
    let mut report = Report::new();
    while !stop.load(Ordering::Relaxed) {
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if taken.is_err() {
            break;
        }
        let start = Instant::now();
        let response = client.infer().await;
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match response {
            Ok(response) => {
                report.record(nanos);
                if let Some(route) = response.headers.get("x-seldon-route").and_then(|r| r.to_str().ok()) {
                    count(&mut report.routes, route);
                }
                report.first_response.get_or_insert(response);
            }
            Err(error) => {
                count(&mut report.errors, &error.line());
                report.first_error.get_or_insert(error);
            }
        }
        // Immediate responses must not starve the timer.
        tokio::task::yield_now().await;
    }
    report
}

fn count(counts: &mut BTreeMap<String, u64>, key: &str) {
    if let Some(n) = counts.get_mut(key) {
        *n += 1;
    } else {
        let key = if counts.len() < MAX_KEYS { key } else { "others" };
        *counts.entry(key.to_owned()).or_default() += 1;
    }
}

impl Report {
    #[allow(clippy::expect_used, reason = "3 significant digits are always valid")]
    fn new() -> Self {
        Self {
            first_response: None,
            first_error: None,
            elapsed: Duration::ZERO,
            latencies: Histogram::new(3).expect("valid precision"),
            routes: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }

    fn record(&mut self, nanos: u64) {
        // Only fails for values outside of a fixed range; the histogram resizes.
        let _ = self.latencies.record(nanos);
    }

    fn merge(&mut self, part: Self) {
        self.latencies += part.latencies;
        for (all, some) in [(&mut self.routes, part.routes), (&mut self.errors, part.errors)] {
            for (key, n) in some {
                *all.entry(key).or_default() += n;
            }
        }
        self.first_response = self.first_response.take().or(part.first_response);
        self.first_error = self.first_error.take().or(part.first_error);
    }

    pub(super) fn summary(&self) -> String {
        let succeeded = self.latencies.len();
        let failed: u64 = self.errors.values().sum();
        let rate = (succeeded + failed) as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let mut lines = vec![format!(
            "{} requests in {}: {rate:.0} requests/s, {failed} failed",
            succeeded + failed,
            duration::format(self.elapsed)
        )];
        if succeeded > 0 {
            let h = &self.latencies;
            let latencies = [
                ("min", h.min()),
                ("p50", h.value_at_quantile(0.5)),
                ("p90", h.value_at_quantile(0.9)),
                ("p99", h.value_at_quantile(0.99)),
                ("max", h.max()),
            ];
            let latencies = latencies.map(|(name, nanos)| format!("{name} {}", latency(nanos)));
            lines.push(format!("  {}", latencies.join("   ")));
        }
        for (route, n) in &self.routes {
            lines.push(format!("  {n} × route {route}"));
        }
        for (error, n) in &self.errors {
            lines.push(format!("  {n} × {error}"));
        }
        lines.join("\n")
    }
}

fn latency(nanos: u64) -> String {
    let ms = nanos as f64 / 1e6;
    match ms {
        _ if ms < 1.0 => format!("{ms:.3} ms"),
        _ if ms < 100.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lists_latencies_routes_and_errors() {
        let mut report = Report { elapsed: Duration::from_secs(2), ..Report::new() };
        for ms in 1..=100 {
            report.record(ms * 1_000_000);
        }
        report.routes.insert(":iris_1:".into(), 100);
        report.errors.insert("503: iris is not ready".into(), 20);
        insta::assert_snapshot!(report.summary(), @r"
        120 requests in 2s: 60 requests/s, 20 failed
          min 1.000 ms   p50 50.00 ms   p90 90.05 ms   p99 99.02 ms   max 100 ms
          100 × route :iris_1:
          20 × 503: iris is not ready
        ");
    }
}
