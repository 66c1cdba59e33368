//! Statistics of services whose rollout is not the scheduler's: the operator reads them and decides. Safe to lose: counts begin
//! again, and readers see by the epoch that they have.

use gantry_core::rollout::Stats;
use gantry_proto::gantry::VersionTraffic;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// Generations of weights per service: requests may end under newer weights.
const KEPT: usize = 4;
/// As many as a route has backends.
const MAX_VERSIONS: usize = 64;

/// Requests under one generation of weights.
#[derive(Debug)]
struct Totals {
    generation: u64,
    since: Instant,
    versions: BTreeMap<u32, Stats>,
}

/// By service; the generation that was reported last is the last one.
#[derive(Debug, Default)]
pub(crate) struct ServiceTraffic(Mutex<BTreeMap<Arc<str>, Vec<Totals>>>);

impl ServiceTraffic {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Vec<Totals>>> {
        // Poisoning is harmless: counts are lost at worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a report of a gateway.
    pub(crate) fn add(&self, service: &Arc<str>, generation: u64, versions: &[(u32, Stats)]) {
        let mut services = self.lock();
        let known = services.entry(Arc::clone(service)).or_default();
        let before = known.iter().position(|totals| totals.generation == generation);
        let mut totals = before.map_or_else(
            || Totals { generation, since: Instant::now(), versions: BTreeMap::new() },
            |at| known.remove(at),
        );
        for (version, stats) in versions {
            if totals.versions.len() < MAX_VERSIONS || totals.versions.contains_key(version) {
                totals.versions.entry(*version).or_default().merge(&counts(stats));
            }
        }
        if known.len() >= KEPT {
            known.remove(0);
        }
        known.push(totals);
    }

    /// Forgets services that are gone.
    pub(crate) fn retain(&self, services: usize, is_known: impl Fn(&str) -> bool) {
        let mut counted = self.lock();
        if counted.len() > services {
            counted.retain(|name, _| is_known(name));
        }
    }

    /// Milliseconds since the first report under a generation, and the counts of versions since then.
    pub(crate) fn of(&self, service: &str, generation: u64) -> Option<(u64, Vec<VersionTraffic>)> {
        let services = self.lock();
        let totals = services.get(service)?.iter().find(|totals| totals.generation == generation)?;
        let age = u64::try_from(totals.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let versions = totals.versions.iter().map(|(version, stats)| encoded(*version, stats));
        Some((age, versions.collect()))
    }
}

/// What is read of a report.
fn counts(Stats { requests, errors, latency, .. }: &Stats) -> Stats {
    Stats { requests: *requests, errors: *errors, latency: latency.clone(), ..Stats::default() }
}

/// As gateways report them.
fn encoded(version: u32, stats: &Stats) -> VersionTraffic {
    let counts = stats.latency.counts();
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    VersionTraffic {
        version,
        requests: stats.requests,
        server_errors: stats.errors.server,
        timeouts: stats.errors.timeout,
        connection_errors: stats.errors.connection,
        client_errors: stats.errors.client,
        latency: counts.iter().take(used).copied().collect(),
        ..VersionTraffic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(requests: u64) -> Stats {
        Stats { requests, ..Stats::default() }
    }

    fn requests(traffic: &ServiceTraffic, generation: u64) -> Option<u64> {
        let (_, versions) = traffic.of("ml/reco", generation)?;
        Some(versions.iter().map(|version| version.requests).sum())
    }

    #[tokio::test(start_paused = true)]
    async fn late_reports_of_old_weights_do_not_displace_those_of_the_latest() {
        let (traffic, name) = (ServiceTraffic::default(), Arc::from("ml/reco"));
        assert_eq!(requests(&traffic, 9), None);
        traffic.add(&name, 9, &[(1, stats(10)), (2, stats(5))]);
        tokio::time::advance(std::time::Duration::from_millis(700)).await;
        for old in 1..9 {
            traffic.add(&name, old, &[(1, stats(1))]);
            traffic.add(&name, 9, &[(2, stats(5))]);
        }
        assert_eq!(
            (requests(&traffic, 9), requests(&traffic, 1), requests(&traffic, 8)),
            (Some(55), None, Some(1))
        );
        assert_eq!(traffic.of("ml/reco", 9).unwrap().0, 700, "the time of the first report");
        traffic.retain(1, |_| false);
        assert_eq!(requests(&traffic, 9), Some(55), "there are not more than services");
        traffic.retain(0, |_| false);
        assert_eq!(requests(&traffic, 9), None);
    }
}
