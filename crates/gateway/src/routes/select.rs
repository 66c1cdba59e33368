//! Target selection.

use super::{AnswerComparison, Attribution, Experiment, Route, Routes, Target, WeightedVersion};
use crate::policy::{balance, breaker::Outcome, result_class::ResultClass};
use gantry_core::traffic::is_within;
use std::{
    ops::Deref,
    sync::{Arc, Weak, atomic::Ordering},
};
use tokio::time::Instant;

/// A request counted on its target until dropped.
pub(crate) struct InFlightRequest {
    target: Arc<Target>,
    /// Whether the route has other targets.
    pub(crate) has_alternatives: bool,
    /// The experiment that chose the model.
    pub(crate) experiment: Option<Arc<Experiment>>,
    /// What the request counts for, if the model has a rollout.
    pub(crate) attribution: Option<Attribution>,
    /// The version that the weights chose, if all its replicas are unreachable and another version takes the request.
    pub(crate) unreachable: Option<Box<Attribution>>,
    /// Set for a request that is copied to a version that is rolled out.
    pub(crate) mirror: Option<Box<MirrorCopy>>,
    /// Reads the response of a request that is copied, or that is a copy.
    pub(crate) comparison: Option<Arc<AnswerComparison>>,
}

/// A copy of a request for a version that is rolled out.
pub(crate) struct MirrorCopy {
    pub(crate) version: u32,
    /// `None` compares no answers.
    pub(crate) comparison: Option<Arc<AnswerComparison>>,
}

impl Deref for InFlightRequest {
    type Target = Target;
    fn deref(&self) -> &Target {
        &self.target
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.target.endpoint.end();
        self.target.leave();
    }
}

impl InFlightRequest {
    pub(crate) fn target(&self) -> Weak<Target> {
        Arc::downgrade(&self.target)
    }

    pub(crate) fn report(&self, outcome: Outcome) {
        self.target.endpoint.report(outcome);
    }
}

/// The constraints of a request on its target.
#[derive(Clone, Copy, Default)]
pub(crate) struct Selector<'a> {
    /// `x-seldon-route`: a version listed here takes precedence over weights.
    pub(crate) sticky: Option<&'a [u8]>,
    /// The version named by the client.
    pub(crate) version: Option<u32>,
    /// The version of an earlier attempt: a retry stays on it while it has another replica.
    pub(crate) retried: Option<u32>,
    /// Requests with the same key go to the same replica.
    pub(crate) sequence: Option<u64>,
    /// The model is chosen: no experiment takes the request over.
    pub(crate) is_chosen: bool,
    /// A component of an InferenceService is wanted, not a model: clients name models only.
    pub(crate) is_component: bool,
    pub(crate) random: u64,
    /// Endpoints to skip.
    pub(crate) excluded: &'a [u64],
    pub(crate) max_in_flight: usize,
}

/// Why no target was selected.
#[derive(Debug)]
pub(crate) enum SelectError {
    UnknownModel,
    /// The component was deleted after the InferenceService was found.
    UnknownComponent,
    /// An experiment chooses the model.
    TakenOver(Arc<Experiment>),
    /// The version is not in service; this one is.
    UnknownVersion {
        served: u32,
    },
    NoReplica {
        reason: String,
        scaled_to_zero: bool,
        /// Loading failed: waiting is pointless.
        failed: bool,
    },
    /// The circuit breakers of all replicas are open.
    CircuitOpen {
        replicas: usize,
        retry_after_ms: u64,
        /// Of the version that was chosen, if the model has a rollout.
        unreachable: Option<Box<Attribution>>,
    },
    /// All replicas are at their in-flight limit.
    AtCapacity {
        replicas: usize,
    },
}

/// Added to the load of avoided replicas.
const AVOIDED_LOAD: usize = usize::MAX / 2;

impl Routes {
    /// Selects a target and counts the request on it.
    pub(crate) fn acquire(
        &self,
        model: &str,
        selector: &Selector<'_>,
    ) -> Result<InFlightRequest, SelectError> {
        let found = self.inner.table.find(model);
        let slot = found.as_ref().and_then(|f| f.slot(model));
        let slot = slot.filter(|slot| slot.is_component == selector.is_component);
        let unknown =
            || if selector.is_component { SelectError::UnknownComponent } else { SelectError::UnknownModel };
        let slot = slot.ok_or_else(unknown)?;
        loop {
            let route = slot.route.load();
            let route = route.as_ref().ok_or_else(unknown)?;
            if let Some(experiment) = &route.experiment
                && !selector.is_chosen
            {
                return Err(SelectError::TakenOver(Arc::clone(experiment)));
            }
            let in_flight = route.select(selector)?;
            // Either a concurrent update sees this request counted, or this sees the update.
            let now = slot.route.load();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, route)) {
                return Ok(in_flight);
            }
        }
    }

    /// The experiment that takes over the model's name.
    pub(crate) fn takeover(&self, model: &str) -> Option<Arc<Experiment>> {
        let found = self.inner.table.find(model)?;
        found.slot(model)?.route.load().as_ref()?.experiment.clone()
    }

    /// Whether new requests of the model may go to the target.
    pub(crate) fn is_routed(&self, model: &str, target: &Weak<Target>) -> bool {
        let found = self.inner.table.find(model);
        let Some(slot) = found.as_ref().and_then(|f| f.slot(model)) else { return false };
        let route = slot.route.load();
        let is_target = |t: &Arc<Target>| Arc::as_ptr(t) == target.as_ptr();
        let is_routed = |v: &WeightedVersion| v.weight > 0 && v.targets.iter().any(is_target);
        route.as_ref().is_some_and(|route| route.versions.iter().any(is_routed))
    }

    /// Closest known model name, for error messages.
    pub(crate) fn nearest(&self, model: &str) -> Option<String> {
        nearest(self.inner.table.len(), || self.models(), model)
    }

    pub(crate) fn nearest_pipeline(&self, name: &str) -> Option<String> {
        nearest(self.inner.pipelines.len(), || self.pipelines(), name)
    }

    pub(crate) fn nearest_experiment(&self, name: &str) -> Option<String> {
        nearest(self.inner.experiments.len(), || self.experiments(), name)
    }
}

fn nearest(count: usize, names: impl FnOnce() -> Vec<String>, wrong: &str) -> Option<String> {
    // Bounds the cost of a wrong name.
    if wrong.len() > 64 || count > 2000 {
        return None;
    }
    let distances = names().into_iter().map(|name| (strsim::levenshtein(&name, wrong), name));
    let close =
        distances.filter(|(distance, name)| *distance <= 1 + name.len() / 4 && *distance < name.len());
    close.min().map(|(_, name)| name)
}

impl Route {
    fn select(&self, selector: &Selector<'_>) -> Result<InFlightRequest, SelectError> {
        // All requests of a sequence compute the same version.
        let random = selector.sequence.unwrap_or(selector.random);
        let by_weight =
            || balance::pick_version(self.versions.iter().map(WeightedVersion::effective_weight), random);
        let first = self.pinned(selector).or_else(by_weight).and_then(|first| self.versions.get(first));
        let Some(version) = first else {
            return Err(SelectError::NoReplica {
                reason: self.reason.clone(),
                scaled_to_zero: self.scaled_to_zero,
                failed: self.failed,
            });
        };
        if selector.version.is_some_and(|wanted| wanted != version.version.number) {
            return Err(SelectError::UnknownVersion { served: version.version.number });
        }
        let in_flight = |version: &WeightedVersion, target: &Arc<Target>, unreachable| {
            target.in_flight.fetch_add(1, Ordering::SeqCst);
            target.endpoint.begin();
            let (target, has_alternatives) = (Arc::clone(target), self.has_alternatives);
            InFlightRequest {
                target,
                has_alternatives,
                experiment: None,
                attribution: version.attribution(),
                unreachable,
                mirror: self.mirror_copy(version),
                comparison: None,
            }
        };
        let mut error = match version.select(selector) {
            Ok(target) => return Ok(in_flight(version, target, None)),
            Err(error) => error,
        };
        // While all replicas of a version are unreachable, another version takes its traffic.
        let is_failing = matches!(error, SelectError::CircuitOpen { .. }) || !selector.excluded.is_empty();
        if let SelectError::CircuitOpen { unreachable, .. } = &mut error
            && selector.excluded.is_empty()
        {
            *unreachable = version.attribution().map(Box::new);
        }
        if is_failing && selector.version.is_none() {
            let number = version.version.number;
            let others =
                self.versions.iter().filter(|v| v.version.number != number && v.effective_weight() > 0);
            for other in others {
                if let Ok(target) = other.select(selector) {
                    return Ok(in_flight(other, target, error.into_unreachable()));
                }
            }
        }
        Err(error)
    }

    /// The copy of a request to a version, if it is one of the mirrored share.
    fn mirror_copy(&self, chosen: &WeightedVersion) -> Option<Box<MirrorCopy>> {
        let mirror = self.mirror.as_ref().filter(|mirror| mirror.version != chosen.version.number)?;
        let comparison = || Some(Arc::new(mirror.counters.as_ref()?.compare(mirror.tolerance?)));
        is_within(fastrand::u64(..), mirror.percent)
            .then(|| Box::new(MirrorCopy { version: mirror.version, comparison: comparison() }))
    }

    /// The version that the request names or has tried, if it has a replica. A session leaves a version whose weight is zero.
    fn pinned(&self, selector: &Selector<'_>) -> Option<usize> {
        let position = |is_named: &dyn Fn(&WeightedVersion) -> bool| {
            self.versions.iter().position(|v| !v.targets.is_empty() && is_named(v))
        };
        if let Some(number) = selector.version {
            return position(&|v| v.version.number == number);
        }
        let retried = |v: &WeightedVersion| v.weight > 0 && Some(v.version.number) == selector.retried;
        let retried = selector.retried.and_then(|_| position(&retried));
        if retried.is_some() {
            return retried;
        }
        let route = selector.sticky?;
        position(&|v| v.weight > 0 && contains(route, v.version.route_header.as_bytes()))
    }
}

impl SelectError {
    /// Records an inference without a response, if all replicas of the chosen version are unreachable.
    pub(crate) fn record_unreachable(&self) {
        if let Self::CircuitOpen { unreachable: Some(version), .. } = self {
            version.record(ResultClass::NoResponse, Instant::now());
        }
    }

    fn into_unreachable(self) -> Option<Box<Attribution>> {
        if let Self::CircuitOpen { unreachable, .. } = self { unreachable } else { None }
    }
}

impl WeightedVersion {
    fn attribution(&self) -> Option<Attribution> {
        self.counters.as_ref().and_then(|counters| counters.attribute())
    }

    /// The weight, or zero without replicas.
    const fn effective_weight(&self) -> u32 {
        if self.targets.is_empty() { 0 } else { self.weight }
    }

    fn select(&self, selector: &Selector<'_>) -> Result<&Arc<Target>, SelectError> {
        let targets = &self.targets;
        let is_usable = |t: &Target| !selector.excluded.contains(&t.endpoint.id) && t.endpoint.usable();
        let load = |i: usize| {
            let target = targets.get(i)?;
            let load = target.endpoint.in_flight.load(Ordering::Relaxed);
            let usable = load < selector.max_in_flight && is_usable(target);
            usable.then(|| if target.is_avoided() { load.saturating_add(AVOIDED_LOAD) } else { load })
        };
        let chosen = match selector.sequence {
            // The state of a sequence is on its replica: no other one relieves it.
            Some(sequence) => {
                let score = |i: usize| {
                    let target = targets.get(i).filter(|t| is_usable(t) && !t.is_avoided())?;
                    Some(target.endpoint.key)
                };
                let replica = balance::pick_sequence_replica(targets.len(), sequence, score);
                replica.map_or_else(
                    || balance::pick_replica(targets.len(), sequence, load),
                    |replica| load(replica).map(|_| replica),
                )
            }
            // The version used the low bits.
            None => balance::pick_replica(targets.len(), selector.random.rotate_left(17), load),
        };
        chosen.and_then(|i| targets.get(i)).ok_or_else(|| {
            let replicas = targets.len();
            let open = targets.iter().filter(|t| !t.endpoint.usable());
            match open.map(|t| t.endpoint.retry_after_ms()).min() {
                Some(retry_after_ms) => {
                    SelectError::CircuitOpen { replicas, retry_after_ms, unreachable: None }
                }
                None => SelectError::AtCapacity { replicas },
            }
        })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}
