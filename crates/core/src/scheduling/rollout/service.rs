//! Versions of a service, whose pods are run by others: which of them run and are ready comes with its route.

use super::{ObjectRollout, Observation, RolloutTarget, Steer, Times, Traffic, policies::assign};
use crate::{
    rollout::{CommandRejection, Readiness, Revision, Rollout, RolloutPolicy},
    scheduling::{Millis, command::Effects, service::Service, state::State},
};
use std::sync::Arc;

/// How the versions of a service are rolled out. It comes with each route of the service, so that no version can be routed
/// before its policy is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Name of the policy.
    pub policy: Arc<str>,
    pub rules: Arc<RolloutPolicy>,
    pub desired: Revision,
    /// Those that run, each with its own revision and number.
    pub versions: Vec<DeliveredVersion>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredVersion {
    pub revision: Revision,
    /// For people, and in statistics of gateways.
    pub number: u32,
    pub readiness: Readiness,
    /// Pods that are ready.
    pub pods: u32,
}

impl Delivery {
    /// The first state under a policy: a version that serves is the stable one, and not the desired one if there is
    /// another.
    fn first_rollout(&self) -> Rollout {
        let serves = |v: &&DeliveredVersion| v.pods > 0;
        let others = self.versions.iter().filter(|v| v.revision != self.desired);
        let desired = self.versions.iter().filter(|v| v.revision == self.desired);
        match others.chain(desired).find(serves) {
            Some(version) => Rollout::running(version.revision.clone()),
            None => Rollout::new(self.desired.clone()),
        }
    }

    fn has(&self, revision: &Revision) -> bool {
        self.versions.iter().any(|version| version.revision == *revision)
    }
}

impl Service {
    /// Sets or removes the policy after the route changed.
    pub(in crate::scheduling) fn assign_policy(&mut self, target: &RolloutTarget, effects: &mut Effects) {
        let delivery = self.delivery.as_ref();
        let policy = delivery.map(|delivery| (delivery.policy.clone(), delivery.rules.clone()));
        let first = delivery.map(Delivery::first_rollout);
        let is_same = |known: &ObjectRollout| {
            policy.as_ref().is_some_and(|(name, rules)| (&known.policy, &known.rules) == (name, rules))
        };
        if !self.rollout.as_deref().is_some_and(is_same) {
            assign(&mut self.rollout, policy, first, target, effects);
        }
    }

    /// The percentage of a version's revision; `None` while the weights of the route apply: without a rollout, before the
    /// first version is ready, and while no version of the route has a share.
    pub fn percent(&self, revision: &str) -> Option<u32> {
        let (rollout, delivery) = (self.rollout.as_deref()?, self.delivery.as_ref()?);
        let share = |version: &DeliveredVersion| rollout.percent(&version.revision).unwrap_or(0);
        if delivery.versions.iter().all(|version| share(version) == 0) {
            return None;
        }
        rollout.percent(revision)
    }

    /// Changes with the weights of a rollout; 0 without a rollout policy.
    pub fn rollout_generation(&self) -> u64 {
        self.rollout.as_ref().map_or(0, |rollout| rollout.state.generation)
    }
}

impl State {
    /// Advances the rollout of a service. New weights are a new route, which is published after the state was stored.
    pub(in crate::scheduling) fn step_service(
        &mut self,
        name: &Arc<str>,
        traffic: Option<&Traffic>,
        steer: Option<Steer>,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), CommandRejection> {
        if self.services.get(name).is_none_or(|service| service.rollout.is_none()) {
            return Ok(());
        }
        self.save_service(name);
        let times = Times { now, monotonic_now: self.clock.monotonic_now };
        let Some(service) = self.services.get_mut(name) else { return Ok(()) };
        let (Some(rollout), Some(delivery)) = (service.rollout.as_deref_mut(), &service.delivery) else {
            return Ok(());
        };
        if steer == Some(Steer::Undo) {
            let previous = rollout.state.phase.stable().and_then(|stable| stable.previous.as_ref());
            if previous.is_some_and(|previous| !delivery.has(previous)) {
                return Err(CommandRejection::PreviousGone);
            }
        }
        let revision = |number| {
            let of_number = delivery.versions.iter().find(|version| version.number == number);
            of_number.map(|version| version.revision.clone())
        };
        let evidence = traffic.map(|traffic| rollout.observe(traffic, revision));
        let readiness = delivery.versions.iter().map(|v| (v.revision.clone(), v.readiness));
        // Those that do not run are not ready.
        let named = rollout.state.ready.iter().filter(|ready| !delivery.has(ready));
        let gone: Vec<_> = named.map(|revision| (revision.clone(), Readiness::NotReady)).collect();
        let observation =
            Observation { readiness: readiness.chain(gone).collect(), evidence: evidence.as_ref(), steer };
        let (target, generation) = (RolloutTarget::service(name.clone()), rollout.state.generation);
        rollout.step(&target, &delivery.desired, observation, times, effects)?;
        if rollout.state.generation != generation {
            self.sequence += 1;
            (service.route_sequence, service.admitted) = (self.sequence, false);
            effects.services.insert(name.clone());
            effects.service_routes.insert(name.clone(), self.sequence);
        }
        rollout.publish(service.route_sequence);
        self.schedule_service(name);
        Ok(())
    }
}
