//! Many requests, and how they went.

use super::{
    histogram::Histogram,
    target::{Answer, Target, Trouble},
};
use crate::duration;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Different errors that are kept apart; the rest is counted together.
const MOST_KINDS: usize = 20;

/// How many requests, for how long, how many at once.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) iterations: Option<u64>,
    pub(super) time: Option<Duration>,
    pub(super) concurrency: u32,
}

/// How it went.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) first: Option<Answer>,
    pub(super) worst: Option<Trouble>,
    elapsed: Duration,
    latencies: Histogram,
    routes: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
}

/// Sends requests until the plan is carried out or Ctrl-C is pressed.
pub(super) async fn run(target: &Target, plan: &Plan) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let left = Arc::new(AtomicU64::new(plan.iterations.unwrap_or(u64::MAX)));
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..plan.concurrency {
        workers.spawn(work(target.another(), left.clone(), stop.clone()));
    }
    let time = plan.time;
    let over = async {
        match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(over);
    let mut report = Report::default();
    loop {
        tokio::select! {
            () = &mut over, if !stop.load(Ordering::Relaxed) => stop.store(true, Ordering::Relaxed),
            // What was measured so far is worth more than an abrupt end.
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

async fn work(mut target: Target, left: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Report {
    let mut report = Report::default();
    while !stop.load(Ordering::Relaxed) {
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if taken.is_err() {
            break;
        }
        let start = Instant::now();
        let answer = target.infer().await;
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match answer {
            Ok(answer) => {
                report.latencies.add(nanos);
                if let Some(route) = answer.headers.get("x-seldon-route").and_then(|r| r.to_str().ok()) {
                    count(&mut report.routes, route);
                }
                report.first.get_or_insert(answer);
            }
            Err(trouble) => {
                count(&mut report.errors, &trouble.line());
                report.worst.get_or_insert(trouble);
            }
        }
        // A server on the same machine, or an error that comes at once, must not starve the clock.
        tokio::task::yield_now().await;
    }
    report
}

fn count(counts: &mut BTreeMap<String, u64>, key: &str) {
    if let Some(n) = counts.get_mut(key) {
        *n += 1;
    } else {
        let key = if counts.len() < MOST_KINDS { key } else { "others" };
        *counts.entry(key.to_owned()).or_default() += 1;
    }
}

impl Report {
    fn merge(&mut self, part: Self) {
        self.latencies.merge(&part.latencies);
        for (all, some) in [(&mut self.routes, part.routes), (&mut self.errors, part.errors)] {
            for (key, n) in some {
                *all.entry(key).or_default() += n;
            }
        }
        self.first = self.first.take().or(part.first);
        self.worst = self.worst.take().or(part.worst);
    }

    /// The summary, in a few lines.
    pub(super) fn summary(&self) -> String {
        let good = self.latencies.total();
        let bad: u64 = self.errors.values().sum();
        let rate = (good + bad) as f64 / self.elapsed.as_secs_f64().max(1e-9);
        let mut lines = vec![format!(
            "{} requests in {}: {rate:.0} a second, {bad} failed",
            good + bad,
            duration::words(self.elapsed)
        )];
        if good > 0 {
            let h = &self.latencies;
            let figures = [
                ("min", h.min()),
                ("p50", h.quantile(0.5)),
                ("p90", h.quantile(0.9)),
                ("p99", h.quantile(0.99)),
                ("max", h.max()),
            ];
            let figures = figures.map(|(name, nanos)| format!("{name} {}", latency(nanos)));
            lines.push(format!("  {}", figures.join("   ")));
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
    fn the_summary_says_how_it_went() {
        let mut report = Report { elapsed: Duration::from_secs(2), ..Report::default() };
        for ms in 1..=100 {
            report.latencies.add(ms * 1_000_000);
        }
        report.routes.insert(":iris_1:".into(), 100);
        report.errors.insert("503: iris is not ready".into(), 20);
        insta::assert_snapshot!(report.summary(), @r"
        120 requests in 2s: 60 a second, 20 failed
          min 1.00 ms   p50 50.07 ms   p90 90.18 ms   p99 99.09 ms   max 100 ms
          100 × route :iris_1:
          20 × 503: iris is not ready
        ");
    }
}
