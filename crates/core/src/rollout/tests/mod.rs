//! Tests of the rollout engine.

use super::*;
use crate::scheduling::Millis;

mod after_promotion;
mod commands;
mod properties;
mod statistics;
mod transitions;

fn canary(weights: &[u32]) -> RolloutPolicy {
    RolloutPolicy::new(Strategy::Canary(CanarySteps::weights(weights).unwrap()))
}

/// One passed check per stage, thresholds as in the reference.
fn thresholds(weights: &[u32]) -> RolloutPolicy {
    let rules = ThresholdRules { checks: 1, ..ThresholdRules::default() };
    RolloutPolicy { rules: Rules::Thresholds(rules), ..canary(weights) }
}

fn stats(requests: u64, failures: u64) -> Stats {
    let errors = Errors { server: failures, ..Errors::default() };
    let mut latency = LatencyHistogram::default();
    (0..requests).for_each(|_| latency.record(20.0));
    Stats { requests, errors, latency, ..Stats::default() }
}

/// A rollout with its environment.
struct Harness {
    policy: RolloutPolicy,
    stored: Stored,
    now: Millis,
    desired: Revision,
    readiness: Vec<(Revision, Readiness)>,
    sequence: u64,
    commands: u64,
    /// Whether gateways apply weights at once.
    applies: bool,
    events: Vec<Event>,
}

impl Harness {
    /// Revision `a` serves and is ready.
    fn new(policy: RolloutPolicy) -> Self {
        let mut harness = Self {
            policy,
            stored: Rollout::running("a".into()).restored(),
            now: 1_000_000,
            desired: "a".into(),
            readiness: vec![("a".into(), Readiness::Ready)],
            sequence: 0,
            commands: 0,
            applies: true,
            events: Vec::new(),
        };
        harness.step(None, None);
        harness
    }

    /// A rollout of `b`, which is ready.
    fn rolling_out(policy: RolloutPolicy) -> Self {
        let mut harness = Self::new(policy);
        harness.set_ready("b", Readiness::Ready);
        harness.desire("b");
        harness
    }

    fn step(&mut self, evidence: Option<&Evidence>, request: Option<&Request>) {
        let applied = if self.applies { u64::MAX } else { 0 };
        let input = Input { desired: &self.desired, readiness: &self.readiness, evidence, request, applied };
        let decision = step(&self.policy, &self.stored.state, &input, self.now);
        let before = self.stored.weights.clone();
        let durability = decision.durability();
        let stored = decision.stored();
        if stored.weights != before {
            assert_eq!(durability, Durability::Required, "weights move only with a stored state");
            assert_ne!(stored.state.generation, self.stored.state.generation);
        }
        let again = step(&self.policy, &stored.state, &input, self.now);
        assert_eq!(again.state(), &stored.state, "the step is idempotent");
        assert_eq!(again.durability(), Durability::Unchanged);
        self.events.extend(stored.events.iter().cloned());
        self.stored = stored;
    }

    fn desire(&mut self, revision: &str) {
        self.desired = revision.into();
        self.step(None, None);
    }

    fn set_ready(&mut self, revision: &str, readiness: Readiness) {
        self.readiness.retain(|(known, _)| **known != *revision);
        self.readiness.push((revision.into(), readiness));
        self.step(None, None);
    }

    fn wait(&mut self, time: Millis) {
        self.now += time;
        self.step(None, None);
    }

    fn id(&mut self) -> ObservationId {
        self.sequence += 1;
        ObservationId { epoch: 1, sequence: self.sequence }
    }

    /// A window with requests and failures of the stable revision and of the candidate.
    fn window(&mut self, stable: (u64, u64), candidate: (u64, u64)) {
        self.window_of(stats(stable.0, stable.1), stats(candidate.0, candidate.1));
    }

    fn window_of(&mut self, stable: Stats, candidate: Stats) {
        let (id, generation) = (self.id(), self.stored.state.generation);
        let window = Window { id, generation, stable, candidate };
        self.step(Some(&Evidence::Window(Box::new(window))), None);
    }

    /// A threshold check of one interval.
    fn check(&mut self, stable: (u64, u64), candidate: (u64, u64)) {
        self.window(stable, candidate);
        self.wait(self.policy.interval);
    }

    fn provider_fails(&mut self) {
        let id = self.id();
        self.step(Some(&Evidence::ProviderFailed { id, message: "connection refused".into() }), None);
    }

    fn command(&mut self, command: Command) {
        self.commands += 1;
        self.step(None, Some(&Request { id: self.commands, command }));
    }

    /// "Progressing a 80 b 20".
    fn shown(&self) -> String {
        let traffic = self.stored.weights.as_ref().map(Weights::traffic).unwrap_or_default();
        let mut text = self.stored.state.phase.name().to_owned();
        for (revision, weight) in &traffic.backends {
            text += &format!(" {revision} {weight}");
        }
        if let Some((revision, percent)) = &traffic.mirror {
            text += &format!(" mirror {revision} {percent}");
        }
        text
    }

    fn verdict(&self) -> Option<Reason> {
        match &self.stored.state.phase {
            Phase::Progressing { candidate, .. } => match &candidate.analysis.verdict {
                Verdict::Pass => None,
                Verdict::Fail(finding) | Verdict::Inconclusive(finding) | Verdict::Error(finding) => {
                    Some(finding.reason)
                }
            },
            _ => None,
        }
    }

    fn failure(&self) -> Option<(&str, Reason)> {
        self.stored.state.failed.back().map(|failed| (&*failed.revision, failed.finding.reason))
    }
}
