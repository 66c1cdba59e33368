//! Models with a rollout policy.

use super::*;
use crate::rollout::{
    CanarySteps, CommandRejection, Errors, Event, LatencyHistogram, ObservationId, Outcome as RolloutOutcome,
    Percent, Reason as Finding, RolloutPolicy, Stats, Strategy,
};
use crate::scheduling::explain;
use proptest::prelude::{Just, Strategy as Generator, prop_oneof};

pub(super) fn policy(
    name: &str,
    targets: impl IntoIterator<Item = RolloutTarget>,
    short: bool,
) -> PolicyRecord {
    let targets: BTreeSet<RolloutTarget> = targets.into_iter().collect();
    let steps: &[u32] = if short { &[20] } else { &[20, 50] };
    let mut policy = RolloutPolicy::new(Strategy::Canary(CanarySteps::weights(steps).unwrap()));
    if short {
        policy.bake = 0;
    }
    PolicyRecord {
        name: name.into(),
        content: format!("{targets:?} {short}").into_bytes().into(),
        targets,
        policy: Arc::new(policy),
    }
}

fn of_model(name: &str) -> RolloutTarget {
    RolloutTarget::model(name)
}

pub(super) fn steer() -> impl Generator<Value = Steer> {
    prop_oneof![
        Just(Steer::Pause),
        Just(Steer::Resume),
        Just(Steer::Abort),
        Just(Steer::Promote),
        Just(Steer::PromoteFull),
        Just(Steer::Retry),
        Just(Steer::Undo),
    ]
}

pub(super) fn stats(requests: u64, failures: u64) -> Stats {
    let errors = Errors { server: failures, ..Errors::default() };
    let latency = LatencyHistogram::from_counts([0, 0, requests]);
    Stats { requests, errors, latency, ..Stats::default() }
}

/// Model `m` with version 1 on two replicas, under policy `p`.
fn harness() -> Harness {
    let mut harness = Harness::new();
    for index in 0..2 {
        harness.join(&id("s", index), 100);
    }
    harness.apply(Command::PutRolloutPolicy(policy("p", [of_model("m")], false))).unwrap();
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    harness
}

impl Harness {
    fn rollout(&self, model: &str) -> &ObjectRollout {
        self.state.models()[model].rollout.as_deref().expect("the model has a policy")
    }

    fn phase(&self) -> &'static str {
        self.rollout("m").state.phase.name()
    }

    /// Versions of `m` with their shares in percent.
    fn shares(&self) -> Vec<(u32, u32)> {
        let versions = self.state.route("m").versions;
        let total: u32 = versions.iter().map(|v| v.weight).sum();
        versions.iter().map(|v| (v.version, v.weight * 100 / total)).collect()
    }

    fn steer(&mut self, steer: Steer) -> Result<Effects, Rejection> {
        self.apply(Command::SteerRollout { target: of_model("m"), steer })
    }

    /// One report of requests and failures by version, under the current weights.
    fn observe(&mut self, versions: &[(u32, u64, u64)]) -> Effects {
        let state = &self.rollout("m").state;
        let sequence = state.last_evidence.map_or(0, |id| id.sequence) + 1;
        let versions = versions.iter().map(|(version, requests, bad)| (*version, stats(*requests, *bad)));
        let traffic = Traffic {
            id: ObservationId { epoch: 1, sequence },
            generation: state.generation,
            versions: versions.collect(),
        };
        self.apply(Command::TrafficObserved { target: of_model("m"), traffic }).unwrap()
    }

    /// Reports of good requests, until the phase is another one.
    fn observe_good(&mut self, stable: u32, candidate: u32) {
        let phase = self.phase();
        for _ in 0..500 {
            self.observe(&[(stable, 40, 0), (candidate, 20, 0)]);
            self.quiesce();
            if self.phase() != phase {
                return;
            }
        }
        panic!("no transition: {:?}", self.rollout("m").state.phase);
    }
}

#[test]
fn new_version_takes_traffic_in_steps_and_is_promoted() {
    let mut harness = harness();
    assert_eq!((harness.phase(), harness.shares()), ("Running", vec![(1, 100)]));
    harness.load(definition("m", 2, 2)).unwrap();
    assert_eq!(harness.shares(), [(1, 100)], "no request before it is ready");
    harness.quiesce();
    assert_eq!((harness.phase(), harness.shares()), ("Progressing", vec![(1, 80), (2, 20)]));
    let status = harness.version_status("m");
    assert_eq!((status.state, status.code), (ModelState::Progressing, Some(Reason::RollingOut)));
    assert_eq!(status.reason, "rolled out to 20 % of the requests");
    let explained = explain::model(&harness.state, "m", harness.now).unwrap();
    assert_eq!(
        explained.headline,
        "m version 2 is not ready: rolled out to 20 % of the requests; version 1 serves."
    );
    harness.observe(&[(1, 40, 1), (2, 20, 0)]);
    let observed = harness.rollout("m").observed("0000000001").map(|s| (s.requests, s.errors.server));
    assert_eq!(observed, Some((40, 1)));
    harness.observe_good(1, 2);
    assert_eq!((harness.phase(), harness.shares()), ("Running", vec![(2, 100)]));
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    assert_eq!(harness.state.models()["m"].versions.len(), 2, "the previous one is kept during the bake");
    assert!(harness.agents[&id("s", 0)].loaded.contains(&("m".into(), 1)));
    harness.wait(700_000);
    harness.quiesce();
    assert!(!harness.agents[&id("s", 0)].loaded.contains(&("m".into(), 1)), "unloaded after the bake");
}

#[test]
fn failing_version_is_rolled_back_and_not_tried_again() {
    let mut harness = harness();
    harness.load(definition("m", 2, 2)).unwrap();
    harness.quiesce();
    let mut events = Vec::new();
    for _ in 0..20 {
        events.extend(harness.observe(&[(1, 40, 0), (2, 10, 10)]).rollout_events);
    }
    let rolled_back = |(_, event): &(RolloutTarget, Event)| matches!(event, Event::RolledBack { .. });
    assert_eq!(events.iter().filter(|event| rolled_back(event)).count(), 1, "{events:?}");
    assert_eq!(harness.shares(), [(1, 100)]);
    harness.quiesce();
    assert_eq!((harness.phase(), harness.routed("m")), ("Running", vec![1]));
    let status = harness.version_status("m");
    assert_eq!((status.state, status.code), (ModelState::Failed, Some(Reason::RolledBack)));
    assert!(status.reason.contains("5xx"), "{}", status.reason);
    let explained = explain::model(&harness.state, "m", harness.now).unwrap();
    assert_eq!(explained.reason, Reason::RolledBack);
    assert!(explained.headline.starts_with("m version 2 is not ready: rolled back: canary"), "{explained:?}");
    assert!(explained.next.ends_with("gantry rollout retry m"), "{}", explained.next);
    assert!(!harness.agents[&id("s", 0)].loaded.contains(&("m".into(), 2)), "it is unloaded");
    // The same spec under another number is the same revision.
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").state, ModelState::Available);
    harness.load(definition("m", 2, 2)).unwrap();
    harness.quiesce();
    assert_eq!(harness.version_status("m").code, Some(Reason::RolledBack));
    harness.steer(Steer::Retry).unwrap();
    harness.quiesce();
    assert_eq!(harness.phase(), "Progressing");
    harness.restart();
    assert_eq!(harness.phase(), "Progressing");
}

#[test]
fn rolled_back_version_stays_until_gateways_have_the_weights() {
    let mut harness = harness();
    harness.load(definition("m", 2, 2)).unwrap();
    for index in 0..2 {
        harness.work(&id("s", index), Outcome::Success);
    }
    harness.acknowledge_routes();
    assert_eq!(harness.shares(), [(1, 80), (2, 20)]);
    for _ in 0..20 {
        harness.observe(&[(1, 40, 0), (2, 10, 10)]);
    }
    assert_eq!(harness.shares(), [(1, 100)]);
    // The route with 20 % is acknowledged, the one after it is not.
    harness.acknowledge(1, 0);
    assert_eq!(harness.phase(), "RollingBack");
    harness.acknowledge_routes();
    assert_eq!(harness.phase(), "Running");
}

#[test]
fn commands_are_handled_or_rejected_with_the_reason() {
    let mut harness = harness();
    let rejected = |result: Result<Effects, Rejection>| match result {
        Err(Rejection::RolloutCommand { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(rejected(harness.steer(Steer::Promote)), CommandRejection::NotProgressing);
    assert_eq!(rejected(harness.steer(Steer::Undo)), CommandRejection::NothingToUndo);
    harness.load(definition("m", 2, 2)).unwrap();
    assert_eq!(rejected(harness.steer(Steer::Promote)), CommandRejection::NotReady);
    harness.quiesce();
    harness.steer(Steer::Promote).unwrap();
    assert_eq!(harness.shares(), [(1, 50), (2, 50)]);
    assert_eq!(rejected(harness.steer(Steer::Resume)), CommandRejection::NotPaused);
    harness.steer(Steer::Pause).unwrap();
    for _ in 0..200 {
        harness.observe(&[(1, 40, 0), (2, 40, 0)]);
    }
    assert_eq!(harness.shares(), [(1, 50), (2, 50)], "held while paused");
    harness.steer(Steer::Resume).unwrap();
    harness.quiesce();
    assert_eq!(harness.shares(), [(2, 100)], "the evidence counted meanwhile");
    harness.steer(Steer::Undo).unwrap();
    harness.quiesce();
    assert_eq!(harness.shares(), [(1, 100)]);
    assert_eq!(
        harness.rollout("m").state.history.back().unwrap().outcome,
        RolloutOutcome::RolledBack(Finding::Undone)
    );
    let unknown = harness.apply(Command::SteerRollout { target: of_model("none"), steer: Steer::Abort });
    assert_eq!(unknown, Err(Rejection::UnknownModel("none".into())));
    harness.load(definition("plain", 1, 1)).unwrap();
    let without = harness.apply(Command::SteerRollout { target: of_model("plain"), steer: Steer::Abort });
    assert_eq!(without, Err(Rejection::NoRolloutPolicy(of_model("plain"))));
}

#[test]
fn previous_version_returns_after_it_was_unloaded() {
    let mut harness = harness();
    harness.load(definition("m", 2, 2)).unwrap();
    harness.quiesce();
    harness.steer(Steer::PromoteFull).unwrap();
    harness.wait(700_000);
    harness.quiesce();
    assert!(!harness.agents[&id("s", 0)].loaded.contains(&("m".into(), 1)));
    harness.steer(Steer::Undo).unwrap();
    assert_eq!(harness.shares(), [(2, 100)], "it serves until the previous one is ready");
    harness.quiesce();
    assert_eq!(harness.shares(), [(1, 100)]);
}

#[test]
fn lost_replica_does_not_move_traffic_to_the_other_version() {
    let mut harness = harness();
    harness.load(definition("m", 2, 2)).unwrap();
    harness.quiesce();
    harness.disconnect(&id("s", 0));
    assert_eq!(harness.shares(), [(1, 80), (2, 20)]);
    harness.restart();
    assert_eq!(harness.shares(), [(1, 80), (2, 20)], "also while no agent has joined");
    harness.subscribe(&id("s", 1));
    harness.quiesce();
    harness.wait(60_000);
    harness.quiesce();
    assert_eq!(harness.shares(), [(1, 80), (2, 20)]);
}

#[test]
fn policy_applies_to_a_model_that_serves_and_its_removal_ends_the_steps() {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 100);
    harness.load(definition("m", 1, 1)).unwrap();
    harness.quiesce();
    harness.apply(Command::PutRolloutPolicy(policy("p", [of_model("m")], true))).unwrap();
    harness.quiesce();
    assert_eq!((harness.phase(), harness.shares()), ("Running", vec![(1, 100)]));
    harness.load(definition("m", 2, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.shares(), [(1, 80), (2, 20)]);
    let records = harness.state.records();
    assert_eq!(
        State::restore(Policy::default(), records.clone(), 0).records().rollout_policies,
        records.rollout_policies
    );
    harness.apply(Command::DeleteRolloutPolicy { name: "p".into() }).unwrap();
    harness.quiesce();
    assert!(harness.state.models()["m"].rollout.is_none());
    assert_eq!(harness.shares(), [(2, 100)]);
    assert_eq!(harness.state.models()["m"].versions.len(), 1);
}

#[test]
fn rollback_of_the_state_reverts_policies() {
    let mut state = State::new(Policy::default());
    state.apply(Command::PutRolloutPolicy(policy("kept", [], true)), 1).unwrap();
    state.begin();
    state.apply(Command::PutRolloutPolicy(policy("kept", [of_model("m")], true)), 2).unwrap();
    state.apply(Command::PutRolloutPolicy(policy("new", [], true)), 3).unwrap();
    state.rollback();
    assert_eq!(state.records().rollout_policies, [policy("kept", [], true)]);
}

#[test]
fn mirrored_version_gets_copies_first_and_then_requests() {
    let mut harness = Harness::new();
    for index in 0..2 {
        harness.join(&id("s", index), 100);
    }
    let mut record = policy("p", [of_model("m")], false);
    let percent = |percent| Percent::new(percent).unwrap();
    let then = CanarySteps::weights(&[50]).unwrap();
    let strategy = Strategy::MirrorFirst { percent: percent(30), hold: 0, then };
    record.policy = Arc::new(RolloutPolicy { answer_tolerance: Some(7), ..RolloutPolicy::new(strategy) });
    harness.apply(Command::PutRolloutPolicy(record)).unwrap();
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    assert_eq!(harness.state.route("m").mirror, None);
    harness.load(definition("m", 2, 2)).unwrap();
    assert_eq!(harness.state.route("m").mirror, None, "it is not ready");
    harness.quiesce();
    assert_eq!(harness.shares(), [(1, 100), (2, 0)]);
    let mirror = Some(Mirror { version: 2, percent: 30, tolerance: Some(7) });
    assert_eq!(harness.state.route("m").mirror, mirror);
    for _ in 0..500 {
        harness.observe(&[(1, 40, 0), (2, 20, 0)]);
        harness.quiesce();
        if harness.shares() == [(1, 50), (2, 50)] {
            assert_eq!(harness.state.route("m").mirror, None);
            return;
        }
    }
    panic!("no requests: {:?}", harness.shares());
}
