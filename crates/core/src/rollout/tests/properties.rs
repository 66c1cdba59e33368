//! Properties over schedules of evidence, faults, commands and restarts. `PROPTEST_CASES=100000` runs more of them.

use super::*;
use proptest::prelude::{Just, ProptestConfig, Strategy as Generator, any, prop, prop_oneof, proptest};
use std::collections::BTreeMap;

const REVISIONS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Action {
    Desire(usize),
    SetReady(usize, Readiness),
    /// Requests and percentages of failures of the stable revision and the candidate; windows, and their generation.
    Evidence {
        requests: u64,
        stable: u64,
        candidate: u64,
        windows: u64,
        age: u64,
    },
    Repeat,
    CollectorRestarts,
    NoData,
    ProviderFails(u64),
    Command(Command),
    Wait(Millis),
    JumpTo(Millis),
    /// Evidence and waiting in turn.
    Checks {
        stable: u64,
        candidate: u64,
        count: u64,
    },
    Gateways(bool),
}

fn action() -> impl Generator<Value = Action> {
    let revision = || 0..REVISIONS.len();
    let percent = || prop_oneof![6 => Just(0_u64), 1 => Just(1), 1 => Just(10), 2 => Just(100)];
    let readiness = prop_oneof![4 => Just(Readiness::Ready), 1 => Just(Readiness::NotReady), 1 => Just(Readiness::Unknown)];
    let command = prop_oneof![
        2 => Just(Command::Pause),
        3 => Just(Command::Resume),
        1 => Just(Command::Abort),
        1 => Just(Command::Promote),
        1 => Just(Command::PromoteFull),
        1 => revision().prop_map(|r| Command::Retry { revision: REVISIONS[r].into() }),
        1 => Just(Command::Undo),
    ];
    let requests = prop_oneof![Just(1_u64), Just(7), Just(60), Just(1000)];
    prop_oneof![
        2 => revision().prop_map(Action::Desire),
        4 => (revision(), readiness).prop_map(|(revision, readiness)| Action::SetReady(revision, readiness)),
        6 => (requests, percent(), percent(), 1..6_u64, prop_oneof![5 => Just(0_u64), 1 => 1..3_u64]).prop_map(
            |(requests, stable, candidate, windows, age)| {
                Action::Evidence { requests, stable, candidate, windows, age }
            }
        ),
        1 => Just(Action::Repeat),
        1 => Just(Action::CollectorRestarts),
        1 => Just(Action::NoData),
        1 => (1..8_u64).prop_map(Action::ProviderFails),
        3 => command.prop_map(Action::Command),
        3 => prop_oneof![Just(1_u64), Just(5_000), Just(40_000), Just(700_000)].prop_map(Action::Wait),
        1 => prop_oneof![Just(0_u64), Just(500_000), Just(u64::MAX / 2)].prop_map(Action::JumpTo),
        4 => (percent(), percent(), 1..8_u64)
            .prop_map(|(stable, candidate, count)| Action::Checks { stable, candidate, count }),
        1 => any::<bool>().prop_map(Action::Gateways),
    ]
}

fn some_policy() -> impl Generator<Value = RolloutPolicy> {
    let step = |weight, hold, approval| Step { weight: Percent::new(weight).unwrap(), hold, approval };
    let steps =
        CanarySteps::new(vec![step(20, 0, false), step(50, 45_000, false), step(100, 0, false)]).unwrap();
    let approved = CanarySteps::new(vec![step(20, 0, true), step(50, 0, false)]).unwrap();
    let percent = Percent::new(30).unwrap();
    let strategies = prop_oneof![
        3 => Just(super::Strategy::Canary(steps.clone())),
        2 => Just(super::Strategy::Canary(CanarySteps::weights(&[20]).unwrap())),
        1 => Just(super::Strategy::Canary(approved)),
        1 => Just(super::Strategy::BlueGreen { hold: 0, approval: false }),
        1 => Just(super::Strategy::MirrorFirst { percent, hold: 0, then: steps }),
    ];
    (strategies, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(strategy, sequential, bakes, drifts)| {
            let mut policy = RolloutPolicy::new(strategy);
            if !sequential {
                policy.rules = Rules::Thresholds(ThresholdRules { checks: 2, ..ThresholdRules::default() });
            }
            policy.bake = if bakes { 600_000 } else { 0 };
            policy.drift = drifts.then(DriftRules::default);
            policy
        },
    )
}

/// What the environment did, to compare with what the engine did.
#[derive(Default)]
struct Ledger {
    desires: u64,
    retries: BTreeMap<Revision, u64>,
    starts: u64,
    rollbacks: BTreeMap<Revision, u64>,
    /// Requests that the candidate answered since its rollout began.
    candidate_requests: u64,
    /// Whether it was promoted past a stage by command.
    by_command: bool,
}

struct Schedule {
    harness: Harness,
    ledger: Ledger,
    last: Option<Evidence>,
    epoch: u64,
}

impl Schedule {
    fn step(&mut self, evidence: Option<&Evidence>, request: Option<&Request>) {
        let harness = &mut self.harness;
        if let Some(Request { command: Command::Promote | Command::PromoteFull, .. }) = request {
            self.ledger.by_command = true;
        }
        if let Some(Evidence::Window(window)) = evidence
            && window.generation == harness.stored.state.generation
        {
            self.ledger.candidate_requests += window.candidate.requests;
        }
        let seen = harness.events.len();
        harness.step(evidence, request);
        check_weights(&harness.stored);
        for event in &harness.events[seen..] {
            match event {
                Event::Started { .. } => {
                    self.ledger.starts += 1;
                    (self.ledger.candidate_requests, self.ledger.by_command) = (0, false);
                }
                Event::Promoted { revision } => {
                    let stages = harness.policy.strategy.stages().count() as u64;
                    let needed = harness.policy.min_requests * stages;
                    assert!(
                        self.ledger.by_command || self.ledger.candidate_requests >= needed,
                        "{revision} was promoted after {} requests",
                        self.ledger.candidate_requests
                    );
                    assert!(harness.stored.state.is_ready(revision), "{revision} is not ready");
                }
                Event::RolledBack { revision, .. } => {
                    *self.ledger.rollbacks.entry(revision.clone()).or_default() += 1;
                }
                _ => {}
            }
        }
        let ledger = &self.ledger;
        let retries: u64 = ledger.retries.values().sum();
        assert!(ledger.starts <= ledger.desires + retries, "a rollout started without cause");
        for (revision, count) in &ledger.rollbacks {
            let allowed = 1 + ledger.retries.get(revision).copied().unwrap_or(0);
            assert!(*count <= allowed, "{revision} was rolled back {count} times");
        }
    }

    fn observe(&mut self, evidence: Evidence) {
        self.step(Some(&evidence), None);
        self.last = Some(evidence);
    }

    fn window(&mut self, requests: u64, stable: u64, candidate: u64, age: u64) {
        let id = self.id();
        let weights = self.harness.stored.weights.clone();
        let part = weights.as_ref().map_or(0, |weights| {
            let live = weights.candidate.as_ref().or(weights.mirror.as_ref());
            live.map_or(0, |(_, percent)| u64::from(percent.get()))
        });
        let of = |requests: u64, percent: u64| stats(requests, requests * percent / 100);
        let mut running = of(requests * (100 - part) / 100, stable);
        running.outputs =
            Distribution::new([running.requests * (100 - candidate), running.requests * candidate, 1]);
        let generation = self.harness.stored.state.generation.saturating_sub(age);
        let candidate = of(requests * part / 100, candidate);
        self.observe(Evidence::Window(Box::new(Window { id, generation, stable: running, candidate })));
    }

    fn id(&mut self) -> ObservationId {
        ObservationId { epoch: self.epoch, ..self.harness.id() }
    }

    fn wait(&mut self, time: Millis) {
        self.harness.now = self.harness.now.saturating_add(time);
        self.step(None, None);
    }

    fn command(&mut self, command: Command) {
        if let Command::Retry { revision } = &command {
            *self.ledger.retries.entry(revision.clone()).or_default() += 1;
        }
        self.harness.commands += 1;
        let request = Request { id: self.harness.commands, command };
        self.step(None, Some(&request));
    }

    fn set_ready(&mut self, revision: &str, readiness: Readiness) {
        self.harness.readiness.retain(|(known, _)| **known != *revision);
        self.harness.readiness.push((revision.into(), readiness));
        self.step(None, None);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Desire(revision) => {
                self.ledger.desires += 1;
                self.harness.desired = REVISIONS[revision].into();
                self.step(None, None);
            }
            Action::SetReady(revision, readiness) => self.set_ready(REVISIONS[revision], readiness),
            Action::Evidence { requests, stable, candidate, windows, age } => {
                (0..windows).for_each(|_| self.window(requests, stable, candidate, age));
            }
            Action::Repeat => {
                let last = self.last.clone();
                // Not counted again by the ledger: the engine must not count it, either.
                let known = self.ledger.candidate_requests;
                self.step(last.as_ref(), None);
                self.ledger.candidate_requests = self.ledger.candidate_requests.min(known);
            }
            Action::CollectorRestarts => (self.epoch, self.harness.sequence) = (self.epoch + 1, 0),
            Action::NoData => {
                let id = self.id();
                self.observe(Evidence::NoData { id });
            }
            Action::ProviderFails(count) => (0..count).for_each(|_| {
                let id = self.id();
                self.observe(Evidence::ProviderFailed { id, message: "timeout".into() });
            }),
            Action::Command(command) => self.command(command),
            Action::Wait(time) => self.wait(time),
            Action::JumpTo(now) => {
                self.harness.now = now;
                self.step(None, None);
            }
            Action::Checks { stable, candidate, count } => {
                for _ in 0..count {
                    self.window(500, stable, candidate, 0);
                    self.wait(self.harness.policy.interval);
                }
            }
            Action::Gateways(apply) => self.harness.applies = apply,
        }
    }

    /// Without faults, pauses and evidence every rollout ends.
    fn settle(&mut self) {
        self.harness.now = self.harness.now.min(u64::MAX / 4);
        for revision in REVISIONS {
            self.set_ready(revision, Readiness::Ready);
        }
        if let Phase::Progressing { candidate, .. } = &self.harness.stored.state.phase
            && candidate.pause.is_some()
        {
            self.command(Command::Resume);
        }
        for _ in 0..100 {
            self.wait(60_000);
        }
        let phase = &self.harness.stored.state.phase;
        let approval =
            matches!(phase, Phase::Progressing { candidate, .. } if candidate.pause == Some(Pause::Approval));
        assert!(approval || phase.name() == "Running", "{phase:?}");
        // The desired revision serves, or there is a reason.
        let (state, desired) = (&self.harness.stored.state, &self.harness.desired);
        let serves = state.phase.stable().is_some_and(|stable| stable.revision == *desired);
        assert!(approval || serves || state.failure(desired).is_some(), "{desired} has no outcome");
    }
}

fn check_weights(stored: &Stored) {
    let state = &stored.state;
    let Some(weights) = &stored.weights else {
        assert_eq!(state.phase.name(), "Deploying");
        return;
    };
    let traffic = weights.traffic();
    assert_eq!(traffic.backends.iter().map(|(_, weight)| weight).sum::<u32>(), 100);
    let stable = state.phase.stable().map(|stable| &stable.revision);
    for (revision, _) in &traffic.backends {
        let alone = Some(revision) == stable && traffic.backends.len() == 1;
        assert!(alone || state.is_ready(revision), "{revision} is not ready and gets traffic");
        assert!(state.retained().contains(revision), "{revision} gets traffic and may be unloaded");
    }
    if let Some((revision, _)) = &traffic.mirror {
        assert!(state.is_ready(revision) && state.retained().contains(revision));
    }
    assert!(state.failed.len() <= MAX_FAILED && state.history.len() <= MAX_HISTORY);
    let condemned = matches!(&state.phase, Phase::RollingBack { revision, .. }
        if traffic.backends.iter().any(|(backend, _)| backend == revision));
    assert!(!condemned, "a rolled-back revision gets traffic");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_keeps_the_rules(
        policy in some_policy(),
        deployed in any::<bool>(),
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let mut harness = Harness::new(policy);
        if !deployed {
            harness.stored = Rollout::new("a".into()).restored();
        }
        let mut schedule = Schedule { harness, ledger: Ledger::default(), last: None, epoch: 1 };
        for action in actions {
            schedule.act(action);
        }
        schedule.settle();
    }
}
