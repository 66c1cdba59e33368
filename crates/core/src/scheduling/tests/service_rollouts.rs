//! Services with a rollout policy: their versions come with the route.

use super::{
    rollouts::{policy, stats},
    *,
};
use crate::rollout::{CommandRejection, Event, ObservationId, Readiness, Reason as Finding};
use proptest::prelude::{Just, Strategy as Generator, prop, prop_oneof};

const NAME: &str = "ml/iris";

fn version(revision: &str, number: u32, readiness: Readiness) -> DeliveredVersion {
    let pods = u32::from(readiness != Readiness::NotReady);
    DeliveredVersion { revision: revision.into(), number, readiness, pods }
}

fn delivered(desired: &str, versions: Vec<DeliveredVersion>, short: bool) -> Delivery {
    let rules = policy("careful", [], short).policy;
    Delivery { policy: "careful".into(), rules, desired: desired.into(), versions }
}

pub(super) fn delivery() -> impl Generator<Value = Option<Delivery>> {
    let readiness =
        || prop_oneof![Just(Readiness::Ready), Just(Readiness::NotReady), Just(Readiness::Unknown)];
    let generated = (0..3u8, readiness(), readiness(), prop::bool::ANY).prop_map(|(desired, a, b, short)| {
        delivered(&format!("r{desired}"), vec![version("r0", 0, a), version("r1", 1, b)], short)
    });
    prop::option::of(generated)
}

struct Services {
    state: State,
    now: Millis,
    route: u32,
}

impl Services {
    fn new() -> Self {
        Self { state: State::new(Policy::default()), now: 1_000, route: 0 }
    }

    fn apply(&mut self, command: Command) -> Result<Effects, Rejection> {
        let effects = self.state.apply(command, self.now)?;
        self.state.check_index();
        Ok(effects)
    }

    /// A route with these versions, under the policy.
    fn put(&mut self, desired: &str, versions: &[(&str, u32, Readiness)]) -> Effects {
        let versions = versions.iter().map(|(revision, number, ready)| version(revision, *number, *ready));
        self.put_delivery(Some(delivered(desired, versions.collect(), false)))
    }

    fn put_delivery(&mut self, delivery: Option<Delivery>) -> Effects {
        self.route += 1;
        let route = self.route.to_string().into_bytes().into();
        let record = ServiceRecord {
            name: NAME.into(),
            route,
            sleeps: false,
            idle_timeout: None,
            delivery,
            rollout: None,
        };
        self.apply(Command::PutService(record.into())).unwrap()
    }

    fn service(&self) -> &Service {
        &self.state.services()[NAME]
    }

    fn rollout(&self) -> &ObjectRollout {
        self.service().rollout.as_deref().expect("the service has a policy")
    }

    fn phase(&self) -> &'static str {
        self.rollout().state.phase.name()
    }

    fn percents(&self, revisions: [&str; 2]) -> [Option<u32>; 2] {
        revisions.map(|revision| self.service().percent(revision))
    }

    fn steer(&mut self, steer: Steer) -> Result<Effects, Rejection> {
        self.apply(Command::SteerRollout { target: RolloutTarget::service(NAME), steer })
    }

    fn observe(&mut self, versions: &[(u32, u64, u64)]) -> Effects {
        let state = &self.rollout().state;
        let id = ObservationId { epoch: 1, sequence: state.last_evidence.map_or(1, |id| id.sequence + 1) };
        let generation = state.generation;
        let versions = versions.iter().map(|(version, requests, bad)| (*version, stats(*requests, *bad)));
        let traffic = Traffic { id, generation, versions: versions.collect() };
        self.apply(Command::TrafficObserved { target: RolloutTarget::service(NAME), traffic }).unwrap()
    }

    /// Every gateway has the latest routes.
    fn acknowledge(&mut self) -> Effects {
        let applied = Some(self.state.sequence());
        self.apply(Command::GatewaysAcknowledged { applied }).unwrap()
    }

    /// Good requests to both versions, until the phase is another one.
    fn observe_good(&mut self, stable: u32, candidate: u32) {
        let phase = self.phase();
        for _ in 0..500 {
            self.observe(&[(stable, 40, 0), (candidate, 20, 0)]);
            self.acknowledge();
            if self.phase() != phase {
                return;
            }
        }
        panic!("no transition: {:?}", self.rollout().state.phase);
    }

    fn wait(&mut self, millis: Millis) {
        let end = self.now + millis;
        while self.now < end {
            self.now += 1_000;
            self.apply(Command::Tick).unwrap();
        }
    }

    fn restart(&mut self) {
        self.state = State::restore(Policy::default(), self.state.records(), self.now);
    }
}

use Readiness::{NotReady, Ready, Unknown};

/// Version 1 serves, version 2 is ready and has 20 %.
fn rolling_out() -> Services {
    let mut services = Services::new();
    services.put("a", &[("a", 1, Ready)]);
    services.acknowledge();
    services.put("b", &[("a", 1, Ready)]);
    services.put("b", &[("a", 1, Ready), ("b", 2, Ready)]);
    services.acknowledge();
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Progressing", [Some(80), Some(20)]));
    services
}

#[test]
fn first_version_is_the_one_that_serves_and_not_the_desired_one() {
    for (versions, phase, stable) in [
        (vec![], "Deploying", None),
        (vec![("b", 1, NotReady)], "Deploying", None),
        (vec![("b", 1, Ready)], "Running", Some("b")),
        (vec![("a", 1, Unknown), ("b", 2, Ready)], "Progressing", Some("a")),
        (vec![("a", 1, NotReady), ("b", 2, Ready)], "Running", Some("b")),
    ] {
        let mut services = Services::new();
        services.put("b", &versions);
        let state = &services.rollout().state;
        let found = state.phase.stable().map(|stable| &*stable.revision);
        assert_eq!((services.phase(), found), (phase, stable), "{versions:?}");
    }
}

#[test]
fn new_version_gets_requests_when_it_is_ready_and_is_promoted_by_evidence() {
    let mut services = Services::new();
    services.put("a", &[("a", 1, Ready)]);
    services.acknowledge();
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Running", [Some(100), Some(0)]));
    services.put("b", &[("a", 1, Ready)]);
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Progressing", [Some(100), Some(0)]));
    services.put("b", &[("a", 1, Ready), ("b", 2, Unknown)]);
    assert_eq!(services.percents(["a", "b"]), [Some(100), Some(0)], "no request before it is ready");
    let effects = services.put("b", &[("a", 1, Ready), ("b", 2, Ready)]);
    assert!(effects.store_services.contains(NAME), "stored before the weights move");
    let sequence = services.state.sequence();
    assert_eq!(effects.service_routes, BTreeMap::from([(NAME.into(), sequence)]));
    assert!(!services.service().admitted);
    assert_eq!(services.percents(["a", "b"]), [Some(80), Some(20)]);
    services.acknowledge();
    assert!(services.service().admitted);
    let generation = services.service().rollout_generation();
    services.observe_good(1, 2);
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Running", [Some(0), Some(100)]));
    assert!(services.service().rollout_generation() > generation);
    services.acknowledge();
    let retained = |services: &Services| {
        services.rollout().state.retained().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(retained(&services), ["a", "b"], "ready to return during the bake");
    services.wait(700_000);
    assert_eq!(retained(&services), ["b"], "time alone ends the bake");
}

#[test]
fn bad_version_is_rolled_back_and_not_tried_again_until_a_command() {
    let mut services = rolling_out();
    let mut events = Vec::new();
    for _ in 0..20 {
        events.extend(services.observe(&[(1, 40, 0), (2, 10, 10)]).rollout_events);
    }
    let is_rollback = |event: &&(RolloutTarget, Event)| {
        matches!(&event.1, Event::RolledBack { finding, .. } if finding.reason == Finding::HigherFailureRatio
            || finding.reason == Finding::HardBreach)
    };
    assert_eq!(events.iter().filter(is_rollback).count(), 1, "{events:?}");
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("RollingBack", [Some(100), Some(0)]));
    services.acknowledge();
    assert_eq!(services.phase(), "Running", "gateways have the weights");
    services.put("b", &[("a", 1, Ready)]);
    services.restart();
    services.put("b", &[("a", 1, Ready), ("b", 2, Ready)]);
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Running", [Some(100), Some(0)]));
    services.steer(Steer::Retry).unwrap();
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Progressing", [Some(80), Some(20)]));
}

#[test]
fn restart_keeps_the_step_and_the_weights() {
    let mut services = rolling_out();
    let generation = services.service().rollout_generation();
    services.steer(Steer::Pause).unwrap();
    services.restart();
    assert_eq!(services.percents(["a", "b"]), [Some(80), Some(20)]);
    assert_eq!(services.service().rollout_generation(), generation);
    services.acknowledge();
    services.wait(3_000);
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Progressing", [Some(80), Some(20)]));
    services.steer(Steer::Resume).unwrap();
    services.observe_good(1, 2);
    assert_eq!(services.percents(["a", "b"]), [Some(0), Some(100)]);
}

#[test]
fn version_that_is_gone_is_not_ready() {
    let mut services = rolling_out();
    services.put("b", &[("a", 1, Ready)]);
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("Progressing", [Some(100), Some(0)]));
    services.put("b", &[("a", 1, Ready), ("b", 2, Unknown)]);
    assert_eq!(services.percents(["a", "b"]), [Some(100), Some(0)]);
    services.put("b", &[("a", 1, Ready), ("b", 2, Ready)]);
    assert_eq!(services.percents(["a", "b"]), [Some(80), Some(20)]);
    services.put("b", &[("a", 1, Unknown), ("b", 2, Unknown)]);
    assert_eq!(services.percents(["a", "b"]), [Some(80), Some(20)], "a lost pod of several changes nothing");
    services.put("b", &[("c", 9, Ready)]);
    assert_eq!(services.percents(["b", "c"]), [None, None], "the weights of the route apply");
}

#[test]
fn undo_needs_pods_of_the_previous_version() {
    let undone = |result: Result<Effects, Rejection>| match result {
        Err(Rejection::RolloutCommand { reason, .. }) => Err(reason),
        other => other.map(|_| ()).map_err(|other| panic!("{other:?}")),
    };
    let mut services = rolling_out();
    services.observe_good(1, 2);
    services.wait(700_000);
    services.put("b", &[("b", 2, Ready)]);
    assert_eq!(undone(services.steer(Steer::Undo)), Err(CommandRejection::PreviousGone));
    let mut services = rolling_out();
    assert_eq!(undone(services.steer(Steer::Undo)), Err(CommandRejection::NothingToUndo));
    services.observe_good(1, 2);
    assert_eq!(undone(services.steer(Steer::Undo)), Ok(()));
    assert_eq!((services.phase(), services.percents(["a", "b"])), ("RollingBack", [Some(100), Some(0)]));
}

#[test]
fn rollout_ends_with_its_policy_and_its_service() {
    let mut services = rolling_out();
    let effects = services.put_delivery(None);
    assert!(effects.rollouts.contains(&RolloutTarget::service(NAME)));
    assert_eq!((services.percents(["a", "b"]), services.service().rollout_generation()), ([None, None], 0));
    let error = services.steer(Steer::Pause).unwrap_err().to_string();
    assert!(error.contains("targetRef {kind: InferenceService, name: iris}"), "{error}");
    let mut services = rolling_out();
    let effects = services.apply(Command::DeleteService { name: NAME.into() }).unwrap();
    assert!(effects.rollouts.contains(&RolloutTarget::service(NAME)));
    assert_eq!(services.steer(Steer::Pause), Err(Rejection::UnknownService(NAME.into())));
}

#[test]
fn failed_write_reverts_the_step() {
    let mut services = rolling_out();
    let before = services.service().clone();
    services.state.begin();
    for _ in 0..20 {
        services.observe(&[(1, 40, 0), (2, 10, 10)]);
    }
    assert_eq!(services.percents(["a", "b"]), [Some(100), Some(0)]);
    services.state.rollback();
    assert_eq!(services.service(), &before);
    assert_eq!(services.percents(["a", "b"]), [Some(80), Some(20)]);
}
