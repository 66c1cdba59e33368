//! Replays a policy against a revision with given properties.

use super::{
    evidence::{Errors, Evidence, ObservationId, Readiness, Revision, Stats, Window},
    policy::RolloutPolicy,
    state::{Outcome, Phase, Rollout, Weights},
    step::{Input, step},
};
use crate::scheduling::Millis;

/// Properties of a revision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Behaviour {
    /// Share of requests that succeed.
    pub success: f64,
    /// Median latency in milliseconds. Latencies are 40 % constant, the rest distributed exponentially.
    pub latency_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    pub stable: Behaviour,
    pub candidate: Behaviour,
    /// Requests per second of both together.
    pub rate: f64,
    /// Length of a window of evidence, and of the delay until new weights are applied.
    pub window: Millis,
    /// The longest simulated time.
    pub limit: Millis,
}

impl Scenario {
    /// Evidence every 100 ms, for at most a day.
    pub const fn new(stable: Behaviour, candidate: Behaviour, rate: f64) -> Self {
        Self { stable, candidate, rate, window: 100, limit: 86_400_000 }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// `None` when the limit was reached, or approval is needed.
    pub outcome: Option<Outcome>,
    /// Time until all or no requests go to the candidate.
    pub duration: Millis,
    /// Requests in that time.
    pub requests: u64,
    /// Requests that the candidate received, without mirrored ones.
    pub exposed: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Times at which weights changed, with the candidate's weight.
    pub weights: Vec<(Millis, u32)>,
    /// The verdict in words at the end.
    pub summary: String,
}

/// Runs one rollout. `random` returns uniformly distributed numbers; with the same numbers the result is the same.
pub fn simulate(policy: &RolloutPolicy, scenario: &Scenario, random: &mut dyn FnMut() -> u64) -> Simulation {
    let (stable, candidate): (Revision, Revision) = ("stable".into(), "candidate".into());
    let readiness = [(stable.clone(), Readiness::Ready), (candidate.clone(), Readiness::Ready)];
    let mut stored = Rollout::running(stable).restored();
    let mut applied = (stored.state.generation, stored.weights.clone());
    let mut result = Simulation {
        outcome: None,
        duration: 0,
        requests: 0,
        exposed: 0,
        failed: 0,
        weights: Vec::new(),
        summary: String::new(),
    };
    let window = scenario.window.max(1);
    let mut traffic = Requests { random, due: 0.0 };
    for sequence in 1.. {
        let now = sequence * window;
        // Traffic under the weights that gateways have; new ones are applied before the next window.
        let observed = traffic.window(scenario, applied.1.as_ref());
        result.requests += observed.live;
        result.exposed += observed.exposed.0;
        result.failed += observed.exposed.1;
        let id = ObservationId { epoch: 1, sequence };
        let evidence = Evidence::Window(Box::new(Window {
            id,
            generation: applied.0,
            stable: observed.stable,
            candidate: observed.candidate,
        }));
        applied = (stored.state.generation, stored.weights.clone());
        let input = Input {
            desired: &candidate,
            readiness: &readiness,
            evidence: Some(&evidence),
            request: None,
            applied: applied.0,
        };
        stored = step(policy, &stored.state, &input, now).stored();
        let weight = weight(stored.weights.as_ref());
        if result.weights.last().map_or(0, |(_, weight)| *weight) != weight {
            result.weights.push((now, weight));
        }
        if let Phase::Progressing { candidate, .. } = &stored.state.phase {
            candidate.analysis.summary().clone_into(&mut result.summary);
        }
        result.duration = now;
        result.outcome = stored.state.history.back().map(|entry| entry.outcome);
        if result.outcome.is_some() {
            if let Some(failed) = stored.state.failed.back() {
                result.summary.clone_from(&failed.finding.message);
            }
            // Requests until the gateways have the new weights.
            let observed = traffic.window(scenario, applied.1.as_ref());
            result.requests += observed.live;
            result.exposed += observed.exposed.0;
            result.failed += observed.exposed.1;
            break;
        }
        if now >= scenario.limit {
            break;
        }
    }
    result
}

/// The candidate's part of the requests.
fn weight(weights: Option<&Weights>) -> u32 {
    match weights {
        Some(Weights { candidate: Some((_, percent)), .. }) => percent.get(),
        Some(Weights { stable, .. }) if **stable == *"candidate" => 100,
        _ => 0,
    }
}

struct Requests<'a> {
    random: &'a mut dyn FnMut() -> u64,
    /// Fraction of a request that is due.
    due: f64,
}

#[derive(Default)]
struct Observed {
    stable: Stats,
    candidate: Stats,
    live: u64,
    /// Live requests of the candidate, and its failures.
    exposed: (u64, u64),
}

impl Requests<'_> {
    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        (((self.random)() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }

    fn window(&mut self, scenario: &Scenario, weights: Option<&Weights>) -> Observed {
        self.due += scenario.rate.max(0.0) * scenario.window.max(1) as f64 / 1000.0;
        let count = self.due.floor();
        self.due -= count;
        let share = f64::from(weight(weights)) / 100.0;
        let mirror = weights.and_then(|weights| weights.mirror.as_ref());
        let mirror = mirror.map_or(0.0, |(_, percent)| f64::from(percent.get()) / 100.0);
        let mut observed = Observed { live: count as u64, ..Observed::default() };
        for _ in 0..count as u64 {
            if self.uniform() <= share {
                let failed = self.request(&scenario.candidate, &mut observed.candidate);
                observed.exposed.0 += 1;
                observed.exposed.1 += u64::from(failed);
            } else {
                self.request(&scenario.stable, &mut observed.stable);
                if mirror > 0.0 && self.uniform() <= mirror {
                    self.request(&scenario.candidate, &mut observed.candidate);
                }
            }
        }
        observed
    }

    fn request(&mut self, behaviour: &Behaviour, stats: &mut Stats) -> bool {
        let failed = self.uniform() > behaviour.success;
        let spread = -self.uniform().ln() / std::f64::consts::LN_2;
        stats.latency.record(behaviour.latency_ms * (0.4 + 0.6 * spread));
        stats.requests += 1;
        stats.errors.add(&Errors { server: u64::from(failed), ..Errors::default() });
        failed
    }
}
