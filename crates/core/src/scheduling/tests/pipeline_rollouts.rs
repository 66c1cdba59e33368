//! Pipelines with a rollout policy.

use super::{
    rollouts::{policy, stats},
    *,
};
use crate::rollout::{CommandRejection, Event, ObservationId, Outcome as RolloutOutcome, Reason as Finding};
use crate::scheduling::explain;

fn of_pipeline(name: &str) -> RolloutTarget {
    RolloutTarget::pipeline(name)
}

/// Models `a` and `b`, and pipeline `p` with version 1 over `a` under policy `careful`.
fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 1000);
    for model in ["a", "b"] {
        harness.load(definition(model, 1, 1)).unwrap();
    }
    harness.apply(Command::PutRolloutPolicy(policy("careful", [of_pipeline("p")], false))).unwrap();
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    harness
}

impl Harness {
    fn of_p(&self) -> &ObjectRollout {
        self.state.pipelines()["p"].rollout.as_deref().expect("the pipeline has a policy")
    }

    fn phase_of_p(&self) -> &'static str {
        self.of_p().state.phase.name()
    }

    /// Versions of `p` that gateways execute, with their percentages.
    fn split(&self) -> Vec<(u32, u32)> {
        self.state.pipelines()["p"].split().iter().map(|(v, percent)| (v.number, *percent)).collect()
    }

    fn steer_p(&mut self, steer: Steer) -> Result<Effects, Rejection> {
        self.apply(Command::SteerRollout { target: of_pipeline("p"), steer })
    }

    fn observe_p(&mut self, versions: &[(u32, u64, u64)]) -> Effects {
        let state = &self.of_p().state;
        let sequence = state.last_evidence.map_or(0, |id| id.sequence) + 1;
        let id = ObservationId { epoch: 1, sequence };
        let generation = state.generation;
        let versions = versions.iter().map(|(version, requests, bad)| (*version, stats(*requests, *bad)));
        let traffic = Traffic { id, generation, versions: versions.collect() };
        self.apply(Command::TrafficObserved { target: of_pipeline("p"), traffic }).unwrap()
    }

    fn observe_good_p(&mut self, stable: u32, candidate: u32) {
        let phase = self.phase_of_p();
        for _ in 0..500 {
            self.observe_p(&[(stable, 40, 0), (candidate, 20, 0)]);
            self.quiesce();
            if self.phase_of_p() != phase {
                return;
            }
        }
        panic!("no transition: {:?}", self.of_p().state.phase);
    }

    fn explained(&self) -> (Reason, String) {
        let explained = explain::pipeline(&self.state, "p", self.now).unwrap();
        (explained.reason, format!("{} Next: {}", explained.headline, explained.next))
    }
}

#[test]
fn new_version_takes_requests_in_steps_and_is_promoted() {
    let mut harness = harness();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Running", vec![(1, 100)]));
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Ready);
    let effects = harness.load_pipeline(pipeline("p", 2, &["a", "b"])).unwrap();
    assert!(effects.store_pipelines.contains("p"), "stored before the weights move");
    assert_eq!(harness.split(), [(1, 80), (2, 20)], "its models serve: it is ready at once");
    harness.quiesce();
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, status.models_ready), (PipelineState::Creating, true));
    assert_eq!(status.reason, "rolled out to 20 % of the requests");
    assert_eq!(
        harness.explained(),
        (
            Reason::RollingOut,
            "p version 2 is not ready: rolled out to 20 % of the requests; version 1 serves. Next: see the evidence: \
             gantry rollout status pipeline/p"
                .to_owned()
        )
    );
    harness.observe_p(&[(1, 40, 1), (2, 20, 0)]);
    let observed = harness.of_p().observed("0000000001").map(|s| (s.requests, s.errors.server));
    assert_eq!(observed, Some((40, 1)));
    harness.observe_good_p(1, 2);
    assert_eq!((harness.phase_of_p(), harness.split()), ("Running", vec![(2, 100)]));
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Ready);
    let versions = &harness.state.pipelines()["p"].versions;
    assert_eq!(versions.len(), 2, "the previous one is kept during the bake");
    let kept = harness.state.pipelines()["p"].version_status(&versions[0]);
    assert_eq!(kept.reason, "version 2 serves; this one is kept for a rollback");
    harness.wait(700_000);
    harness.quiesce();
    assert_eq!(harness.split(), [(2, 100)]);
    assert_eq!(harness.explained().0, Reason::Ready);
}

#[test]
fn failing_version_is_rolled_back_and_not_tried_again() {
    let mut harness = harness();
    harness.load_pipeline(pipeline("p", 2, &["b"])).unwrap();
    harness.quiesce();
    let mut events = Vec::new();
    for _ in 0..20 {
        events.extend(harness.observe_p(&[(1, 40, 0), (2, 10, 10)]).rollout_events);
    }
    let rolled_back = |(target, event): &(RolloutTarget, Event)| {
        *target == of_pipeline("p") && matches!(event, Event::RolledBack { .. })
    };
    assert_eq!(events.iter().filter(|event| rolled_back(event)).count(), 1, "{events:?}");
    assert_eq!((harness.phase_of_p(), harness.split()), ("RollingBack", vec![(1, 100)]));
    harness.quiesce();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Running", vec![(1, 100)]));
    let status = harness.pipeline_status("p");
    assert_eq!(status.state, PipelineState::Failed);
    assert!(status.reason.starts_with("rolled back: ") && status.reason.contains("5xx"), "{}", status.reason);
    let (reason, text) = harness.explained();
    assert_eq!(reason, Reason::RolledBack);
    assert!(text.ends_with("gantry rollout retry pipeline/p"), "{text}");
    // The same spec under another number is the same revision.
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    assert_eq!((harness.pipeline_status("p").state, harness.split()), (PipelineState::Ready, vec![(3, 100)]));
    harness.load_pipeline(pipeline("p", 2, &["b"])).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(3, 100)]);
    assert_eq!(harness.explained().0, Reason::RolledBack);
    harness.steer_p(Steer::Retry).unwrap();
    harness.quiesce();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Progressing", vec![(3, 80), (4, 20)]));
    harness.restart();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Progressing", vec![(3, 80), (4, 20)]));
}

#[test]
fn rollback_ends_when_gateways_have_the_weights() {
    let mut harness = harness();
    harness.load_pipeline(pipeline("p", 2, &["b"])).unwrap();
    harness.quiesce();
    for _ in 0..20 {
        harness.observe_p(&[(1, 40, 0), (2, 10, 10)]);
    }
    assert_eq!(harness.split(), [(1, 100)]);
    harness.acknowledge(1, 0);
    assert_eq!(harness.phase_of_p(), "RollingBack");
    harness.restart();
    assert_eq!(harness.phase_of_p(), "RollingBack", "gateways may have the weights from before");
    harness.acknowledge_routes();
    assert_eq!(harness.phase_of_p(), "Running");
}

#[test]
fn version_without_its_models_waits_and_the_old_one_serves() {
    let mut harness = harness();
    harness.load_pipeline(pipeline("p", 2, &["a", "missing"])).unwrap();
    harness.quiesce();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Progressing", vec![(1, 100)]));
    let status = harness.pipeline_status("p");
    assert_eq!(status.state, PipelineState::Creating);
    assert_eq!(status.reason, "step missing: model missing does not exist; version 1 serves");
    let rejected = harness.steer_p(Steer::Promote);
    let reason = CommandRejection::NotReady;
    assert_eq!(rejected, Err(Rejection::RolloutCommand { target: of_pipeline("p"), reason }));
    harness.load(definition("missing", 1, 1)).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(1, 80), (2, 20)]);
    // A candidate whose model is gone gets no requests.
    harness.apply(unload("missing")).unwrap();
    assert_eq!(harness.split(), [(1, 100)]);
    harness.wait(700_000);
    assert_eq!(harness.explained().0, Reason::RolledBack);
}

#[test]
fn commands_are_handled_or_rejected_with_the_reason() {
    let mut harness = harness();
    harness.load_pipeline(pipeline("p", 2, &["b"])).unwrap();
    harness.quiesce();
    harness.steer_p(Steer::Promote).unwrap();
    assert_eq!(harness.split(), [(1, 50), (2, 50)]);
    harness.steer_p(Steer::PromoteFull).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(2, 100)]);
    harness.steer_p(Steer::Undo).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(1, 100)]);
    let last = harness.of_p().state.history.back().unwrap().outcome;
    assert_eq!(last, RolloutOutcome::RolledBack(Finding::Undone));
    let steer = |name: &str| Command::SteerRollout { target: of_pipeline(name), steer: Steer::Abort };
    assert_eq!(harness.apply(steer("none")), Err(Rejection::UnknownPipeline("none".into())));
    harness.load_pipeline(pipeline("plain", 1, &["a"])).unwrap();
    assert_eq!(harness.apply(steer("plain")), Err(Rejection::NoRolloutPolicy(of_pipeline("plain"))));
    // A model of the same name is another target.
    let model = Command::SteerRollout { target: RolloutTarget::model("p"), steer: Steer::Abort };
    assert_eq!(harness.apply(model), Err(Rejection::UnknownModel("p".into())));
}

#[test]
fn policy_applies_to_a_pipeline_that_serves_and_its_removal_ends_the_steps() {
    let mut harness = harness();
    harness.apply(Command::DeleteRolloutPolicy { name: "careful".into() }).unwrap();
    harness.quiesce();
    assert!(harness.state.pipelines()["p"].rollout.is_none());
    harness.apply(Command::PutRolloutPolicy(policy("short", [of_pipeline("p")], true))).unwrap();
    harness.quiesce();
    assert_eq!((harness.phase_of_p(), harness.split()), ("Running", vec![(1, 100)]));
    harness.load_pipeline(pipeline("p", 2, &["b"])).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(1, 80), (2, 20)]);
    harness.apply(Command::DeleteRolloutPolicy { name: "short".into() }).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), [(2, 100)]);
    assert_eq!(harness.state.pipelines()["p"].versions.len(), 1);
    harness.apply(unload_pipeline("p")).unwrap();
    harness.quiesce();
    assert_eq!(harness.split(), []);
}

#[test]
fn deleted_pipeline_has_no_rollout() {
    let mut harness = harness();
    let effects = harness.apply(unload_pipeline("p")).unwrap();
    assert!(effects.rollouts.contains(&of_pipeline("p")) && effects.store_pipelines.contains("p"));
    assert!(harness.state.pipelines()["p"].rollout.is_none());
}
