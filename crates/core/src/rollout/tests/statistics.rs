//! Error rates, speed and cost of the statistics, by simulation.
//!
//! `GANTRY_TEST_ROLLOUTS=10000` sets the number of rollouts per scenario.

use super::*;

fn rollouts(usual: u64) -> u64 {
    std::env::var("GANTRY_TEST_ROLLOUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

fn behaviour(success: f64, latency_ms: f64) -> Behaviour {
    Behaviour { success, latency_ms }
}

#[derive(Debug, Default)]
struct Summary {
    promoted: u64,
    rolled_back: u64,
    unfinished: u64,
    /// Sorted.
    durations: Vec<u64>,
    exposed: Vec<u64>,
}

impl Summary {
    fn quantile(sorted: &[u64], quantile: f64) -> u64 {
        sorted.get(((sorted.len() as f64 - 1.0) * quantile) as usize).copied().unwrap_or(0)
    }
}

fn run(name: &str, policy: &RolloutPolicy, scenario: &Scenario, count: u64) -> Summary {
    let mut summary = Summary::default();
    for seed in 0..count {
        let mut rng = fastrand::Rng::with_seed(seed);
        let simulation = simulate(policy, scenario, &mut || rng.u64(..));
        match simulation.outcome {
            Some(Outcome::Promoted) => summary.promoted += 1,
            Some(_) => summary.rolled_back += 1,
            None => summary.unfinished += 1,
        }
        summary.durations.push(simulation.duration);
        summary.exposed.push(simulation.exposed);
    }
    summary.durations.sort_unstable();
    summary.exposed.sort_unstable();
    println!(
        "{name}: {count} rollouts, {} promoted, {} rolled back, {} unfinished; seconds p50 {:.1} p95 {:.1} max {:.1}; \
         requests to the candidate p50 {} p95 {} p99 {} max {}",
        summary.promoted,
        summary.rolled_back,
        summary.unfinished,
        Summary::quantile(&summary.durations, 0.5) as f64 / 1000.0,
        Summary::quantile(&summary.durations, 0.95) as f64 / 1000.0,
        Summary::quantile(&summary.durations, 1.0) as f64 / 1000.0,
        Summary::quantile(&summary.exposed, 0.5),
        Summary::quantile(&summary.exposed, 0.95),
        Summary::quantile(&summary.exposed, 0.99),
        Summary::quantile(&summary.exposed, 1.0),
    );
    summary
}

/// At most one in a thousand, rounded up.
fn rare(events: u64, count: u64) -> bool {
    events <= count.div_ceil(1000)
}

const STABLE: Behaviour = Behaviour { success: 0.99, latency_ms: 40.0 };

#[test]
fn equal_revision_is_promoted() {
    let scenario = Scenario::new(STABLE, STABLE, 200.0);
    let summary = run("equal", &canary(&[5, 20, 50]), &scenario, rollouts(1000));
    assert!(rare(summary.rolled_back + summary.unfinished, rollouts(1000)), "{}", summary.rolled_back);
    assert!(Summary::quantile(&summary.durations, 0.5) <= 40_000);
}

#[test]
fn revision_that_is_two_percent_worse_is_not_promoted() {
    let scenario = Scenario::new(STABLE, behaviour(0.97, 40.0), 200.0);
    let summary = run("2 % worse", &canary(&[5, 20, 50]), &scenario, rollouts(500));
    assert!(rare(summary.promoted, rollouts(500)), "{}", summary.promoted);
}

#[test]
fn revision_that_is_half_as_fast_is_not_promoted() {
    let scenario = Scenario::new(STABLE, behaviour(0.99, 80.0), 200.0);
    let summary = run("half as fast", &canary(&[5, 20, 50]), &scenario, rollouts(500));
    assert!(rare(summary.promoted, rollouts(500)), "{}", summary.promoted);
}

#[test]
fn failing_revision_leaks_few_requests() {
    let scenario = Scenario::new(STABLE, behaviour(0.0, 40.0), 200.0);
    let summary = run("all 5xx at 20 %", &canary(&[20]), &scenario, rollouts(1000));
    assert_eq!(summary.rolled_back, rollouts(1000));
    // The number of requests in a window varies: 26 is the largest of 10,000 rollouts.
    assert!(summary.exposed.last().is_some_and(|most| *most <= 30), "{:?}", summary.exposed.last());
    assert!(Summary::quantile(&summary.exposed, 0.99) <= 20);
    assert!(
        summary.durations.last().is_some_and(|longest| *longest <= 1_000),
        "{:?}",
        summary.durations.last()
    );
}

/// The rules of the reference, for comparison: a check of each interval against thresholds.
#[test]
fn thresholds_are_slower_and_less_certain() {
    let count = (rollouts(10) / 10).max(10);
    let policy = RolloutPolicy { interval: 10_000, ..thresholds(&[5, 20, 50]) };
    let equal = run("thresholds, equal", &policy, &Scenario::new(STABLE, STABLE, 200.0), count);
    let worse = Scenario::new(STABLE, behaviour(0.97, 40.0), 200.0);
    let worse = run("thresholds, 2 % worse", &policy, &worse, count);
    assert_eq!(equal.promoted + equal.rolled_back + equal.unfinished, count);
    assert_eq!(worse.promoted + worse.rolled_back + worse.unfinished, count);
}
