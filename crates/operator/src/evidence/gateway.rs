//! Evidence from Gantry's own gateway: the scheduler adds the reports of all gateways up, and a window is the difference of two
//! readings.

use super::{EvidenceProvider, EvidenceRequest, Figures, Measurement};
use crate::{cluster::Key, context::Context};
use futures::future::BoxFuture;
use gantry_core::rollout::{Errors, LatencyHistogram, Stats};
use gantry_proto::gantry::{ServiceTraffic, ServiceTrafficRequest, VersionTraffic};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

const LATENCY_QUANTILE: f64 = 0.99;
/// Readings per window.
const READINGS: u32 = 60;
/// Readings of an Algorithm that is not measured any more are forgotten after this time, which is more than any interval
/// and window.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(3);

/// The number of a revision in statistics: the first digits of its digest.
pub(crate) fn version_of(revision: &str) -> u32 {
    let digits = revision.get(..8).unwrap_or(revision);
    u32::from_str_radix(digits, 16).unwrap_or_default().max(1)
}

type Counts = BTreeMap<u32, Stats>;

/// Counts since an unknown time.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    counts: Counts,
}

/// Readings of the same counters, the oldest first.
#[derive(Debug)]
struct Readings {
    counters: Counters,
    taken: VecDeque<Reading>,
}

/// What tells counters apart: the object, its weights, and the start of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counters {
    uid: String,
    generation: u64,
    state_id: u64,
    epoch: u64,
}

impl Readings {
    /// Adds a reading and returns the counts of the window before it; `None` for the first one of older counters.
    fn window(
        &mut self,
        latest: Reading,
        (window, interval): (Duration, Duration),
        counts_once: bool,
    ) -> Option<Counts> {
        let is_old = |reading: &Reading| latest.at.duration_since(reading.at) >= window;
        // The youngest one that is old enough, else the oldest.
        while self.taken.len() > 1 && (counts_once || self.taken.get(1).is_some_and(is_old)) {
            self.taken.pop_front();
        }
        if self.taken.front().is_some_and(|base| has_shrunk(&base.counts, &latest.counts)) {
            self.taken.clear();
        }
        let difference = self.taken.front().map(|base| difference(&base.counts, &latest.counts));
        let spacing = if counts_once { Duration::ZERO } else { (window / READINGS).min(interval) };
        let is_due = |last: &Reading| latest.at.duration_since(last.at) >= spacing;
        if self.taken.back().is_none_or(is_due) {
            self.taken.push_back(latest);
        }
        difference
    }
}

/// Counters that began again.
fn has_shrunk(before: &Counts, after: &Counts) -> bool {
    before.iter().any(|(version, stats)| after.get(version).map_or(0, |now| now.requests) < stats.requests)
}

fn difference(before: &Counts, after: &Counts) -> Counts {
    let none = Stats::default();
    let since = |(version, after): (&u32, &Stats)| {
        let before = before.get(version).unwrap_or(&none);
        let errors = Errors {
            server: after.errors.server.saturating_sub(before.errors.server),
            timeout: after.errors.timeout.saturating_sub(before.errors.timeout),
            connection: after.errors.connection.saturating_sub(before.errors.connection),
            client: after.errors.client.saturating_sub(before.errors.client),
        };
        let earlier = before.latency.counts().iter().copied().chain(std::iter::repeat(0));
        let latency =
            after.latency.counts().iter().zip(earlier).map(|(now, before)| now.saturating_sub(before));
        let requests = after.requests.saturating_sub(before.requests);
        let latency = LatencyHistogram::from_counts(latency);
        (*version, Stats { requests, errors, latency, ..Stats::default() })
    };
    after.iter().map(since).collect()
}

fn decoded(traffic: VersionTraffic) -> (u32, Stats) {
    let errors = Errors {
        server: traffic.server_errors,
        timeout: traffic.timeouts,
        connection: traffic.connection_errors,
        client: traffic.client_errors,
    };
    let latency = LatencyHistogram::from_counts(traffic.latency);
    (traffic.version, Stats { requests: traffic.requests, errors, latency, ..Stats::default() })
}

/// Readings of all Algorithms. Safe to lose: the next window is shorter.
#[derive(Debug, Default)]
struct Windows(Mutex<BTreeMap<Key, Readings>>);

/// Reads the statistics from the scheduler of the Algorithm's route.
pub(crate) struct GatewayStatistics {
    context: Arc<Context>,
    windows: Windows,
}

impl GatewayStatistics {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, windows: Windows::default() }
    }

    async fn read(&self, request: &EvidenceRequest) -> Result<Option<ServiceTraffic>, String> {
        let Key { namespace, name } = request.key.clone();
        let scheduler = self.context.caches.schedulers.service_scheduler(&namespace);
        let scheduler = scheduler.ok_or("there is no scheduler with gateways: create a SeldonRuntime")?;
        let of_request = ServiceTrafficRequest { namespace, name, generation: request.generation };
        let answer = self.context.service_traffic(&scheduler, of_request).await;
        answer.map_err(|why| format!("the scheduler in namespace {scheduler}: {why}"))
    }
}

impl Windows {
    /// The counts of the window that ends now.
    fn window(&self, request: &EvidenceRequest, traffic: ServiceTraffic, now: Instant) -> Option<Counts> {
        let ServiceTraffic { state_id, epoch, age_ms, versions } = traffic;
        let counters = Counters { uid: request.uid.clone(), generation: request.generation, state_id, epoch };
        let latest = Reading { at: now, counts: versions.into_iter().map(decoded).collect() };
        let age = Duration::from_millis(age_ms);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, readings| {
            readings.taken.back().is_some_and(|last| now.duration_since(last.at) < FORGOTTEN_AFTER)
        });
        let of_request = all.entry(request.key.clone()).and_modify(|readings| {
            if readings.counters != counters {
                readings.taken.clear();
                readings.counters = counters.clone();
            }
        });
        let readings = of_request.or_insert_with(|| Readings { counters, taken: VecDeque::new() });
        // Counters that began within the interval have nothing that an earlier measurement could have counted.
        if readings.taken.is_empty() && age <= request.interval {
            let begin = now.checked_sub(age).unwrap_or(now);
            readings.taken.push_back(Reading { at: begin, counts: Counts::new() });
        }
        readings.window(latest, (request.window, request.interval), request.counts_once)
    }
}

impl EvidenceProvider for GatewayStatistics {
    fn measure<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<Measurement>, String>> {
        Box::pin(async move {
            let Some(traffic) = self.read(request).await? else { return Ok(None) };
            let Some(counts) = self.windows.window(request, traffic, Instant::now()) else { return Ok(None) };
            Ok(measurement(request, &counts))
        })
    }

    fn stable_latency<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<f64>, String>> {
        Box::pin(async move {
            let Some(traffic) = self.read(request).await? else { return Ok(None) };
            let counts = self.windows.window(request, traffic, Instant::now());
            Ok(counts.map(|counts| stable_latency(request, &counts)))
        })
    }
}

/// 0 without requests: there is no load.
fn stable_latency(request: &EvidenceRequest, counts: &Counts) -> f64 {
    let stable = counts.get(&version_of(&request.stable)).filter(|stats| stats.requests > 0);
    stable.and_then(|stats| stats.latency.quantile_ms(LATENCY_QUANTILE)).unwrap_or_default()
}

/// `None` when the revision under analysis had no requests.
fn measurement(request: &EvidenceRequest, counts: &Counts) -> Option<Measurement> {
    let of = |revision: &str| counts.get(&version_of(revision)).cloned().unwrap_or_default();
    let stable = of(&request.stable);
    let candidate = request.candidate.as_deref().map(of).unwrap_or_default();
    let subject = if request.candidate.is_some() { &candidate } else { &stable };
    if subject.requests == 0 {
        return None;
    }
    let success = |stats: &Stats| {
        (stats.requests > 0).then(|| 1.0 - stats.errors.failures() as f64 / stats.requests as f64)
    };
    let figures = Figures {
        success_rate: success(subject),
        latency_ms: subject.latency.quantile_ms(LATENCY_QUANTILE),
        requests: Some(subject.requests as f64),
        baseline_success_rate: request.candidate.as_ref().and_then(|_| success(&stable)),
    };
    Some(Measurement { stable, candidate, figures })
}

#[cfg(test)]
mod tests;
