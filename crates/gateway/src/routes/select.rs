//! Target selection.

use super::{Route, Routes, Target, WeightedVersion};
use crate::policy::{balance, breaker::Outcome};
use std::{
    ops::Deref,
    sync::{Arc, atomic::Ordering},
};

/// A request counted on its target until dropped.
pub(crate) struct InFlightRequest {
    target: Arc<Target>,
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
    pub(crate) fn report(&self, outcome: Outcome) {
        self.target.endpoint.report(outcome);
    }
}

/// Why no target was selected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SelectError {
    UnknownModel,
    NoReplica {
        reason: String,
        scaled_to_zero: bool,
    },
    /// The circuit breakers of all replicas are open.
    CircuitOpen {
        replicas: usize,
        retry_after_ms: u64,
    },
    /// All replicas are at their in-flight limit.
    AtCapacity {
        replicas: usize,
    },
}

impl Routes {
    /// Selects a target and counts the request on it.
    ///
    /// A version named in `sticky` (`x-seldon-route`) takes precedence over weights. `excluded` are endpoints
    /// to skip.
    pub(crate) fn acquire(
        &self,
        model: &str,
        sticky: Option<&[u8]>,
        random: u64,
        excluded: &[u64],
        max_in_flight: usize,
    ) -> Result<InFlightRequest, SelectError> {
        let found = self.inner.table.find(model);
        let slot = found.as_ref().and_then(|f| f.slot(model)).ok_or(SelectError::UnknownModel)?;
        loop {
            let route = slot.route.load();
            let route = route.as_ref().ok_or(SelectError::UnknownModel)?;
            let in_flight = route.select(sticky, random, excluded, max_in_flight)?;
            // Either a concurrent update sees this request counted, or this sees the update.
            let now = slot.route.load();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, route)) {
                return Ok(in_flight);
            }
        }
    }

    /// Closest known model name, for error messages.
    pub(crate) fn nearest(&self, model: &str) -> Option<String> {
        // Bounds the cost of a wrong name.
        if model.len() > 64 || self.len() > 2000 {
            return None;
        }
        let names = self.models();
        names
            .into_iter()
            .map(|name| (strsim::levenshtein(&name, model), name))
            .filter(|(d, name)| *d <= 1 + name.len() / 4 && *d < name.len())
            .min()
            .map(|(_, name)| name)
    }
}

impl Route {
    fn select(
        &self,
        sticky: Option<&[u8]>,
        random: u64,
        excluded: &[u64],
        max_in_flight: usize,
    ) -> Result<InFlightRequest, SelectError> {
        let pinned = sticky.and_then(|route| {
            let named = |v: &WeightedVersion| {
                !v.targets.is_empty() && contains(route, v.version.route_header.as_bytes())
            };
            self.versions.iter().position(named)
        });
        let by_weight =
            || balance::pick_version(self.versions.iter().map(WeightedVersion::effective_weight), random);
        let Some(first) = pinned.or_else(by_weight) else {
            return Err(SelectError::NoReplica {
                reason: self.reason.clone(),
                scaled_to_zero: self.scaled_to_zero,
            });
        };
        let Some(version) = self.versions.get(first) else {
            return Err(SelectError::UnknownModel);
        };
        let error = match version.select(random, excluded, max_in_flight) {
            Ok(in_flight) => return Ok(in_flight),
            Err(error) => error,
        };
        // While all replicas of a version are unreachable, another version takes its traffic.
        let others =
            self.versions.iter().enumerate().filter(|(i, v)| *i != first && v.effective_weight() > 0);
        if matches!(error, SelectError::CircuitOpen { .. }) || !excluded.is_empty() {
            for (_, other) in others {
                if let Ok(in_flight) = other.select(random, excluded, max_in_flight) {
                    return Ok(in_flight);
                }
            }
        }
        Err(error)
    }
}

impl WeightedVersion {
    /// The weight, or zero without replicas.
    const fn effective_weight(&self) -> u32 {
        if self.targets.is_empty() { 0 } else { self.weight }
    }

    fn select(
        &self,
        random: u64,
        excluded: &[u64],
        max_in_flight: usize,
    ) -> Result<InFlightRequest, SelectError> {
        let targets = &self.targets;
        let load = |i: usize| {
            let target = targets.get(i)?;
            let load = target.endpoint.in_flight.load(Ordering::Relaxed);
            let usable =
                load < max_in_flight && !excluded.contains(&target.endpoint.id) && target.endpoint.usable();
            usable.then_some(load)
        };
        // The version used the low bits.
        let chosen = balance::pick_replica(targets.len(), random.rotate_left(17), load);
        let Some(target) = chosen.and_then(|i| targets.get(i)) else {
            let replicas = targets.len();
            let open = targets.iter().filter(|t| !t.endpoint.usable());
            return Err(match open.map(|t| t.endpoint.retry_after_ms()).min() {
                Some(retry_after_ms) => SelectError::CircuitOpen { replicas, retry_after_ms },
                None => SelectError::AtCapacity { replicas },
            });
        };
        target.in_flight.fetch_add(1, Ordering::SeqCst);
        target.endpoint.begin();
        Ok(InFlightRequest { target: Arc::clone(target) })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}
