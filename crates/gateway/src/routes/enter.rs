//! Choosing a target for a request, and being counted there.

use super::{Route, Routes, Target, Weighted};
use crate::decide::{balance, breaker::Outcome};
use std::{
    ops::Deref,
    sync::{Arc, atomic::Ordering},
};

/// A request at its target; leaves when dropped.
pub(crate) struct Entered {
    target: Arc<Target>,
}

impl Deref for Entered {
    type Target = Target;
    fn deref(&self) -> &Target {
        &self.target
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.target.endpoint.end();
        self.target.leave();
    }
}

impl Entered {
    /// Tells the replica's breaker how the request ended.
    pub(crate) fn report(&self, outcome: Outcome) {
        self.target.endpoint.report(outcome);
    }
}

/// Why no target was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such model.
    Unknown,
    /// The model has no replica that serves it; one that sleeps is woken by asking for it.
    NoReplica { reason: String, sleeps: bool },
    /// All replicas failed lately; the next may be tried after so many milliseconds.
    AllOpen { replicas: usize, wait: u64 },
    /// All replicas have as many requests as they may.
    Full { replicas: usize },
}

impl Routes {
    /// Chooses a target for a request of this model and counts the request there.
    ///
    /// `sticky` is the client's `x-seldon-route`: a version it names is preferred to the weights. `tried` are
    /// endpoints not to choose again. `most` is how many requests a replica may have.
    pub(crate) fn enter(
        &self,
        model: &str,
        sticky: Option<&[u8]>,
        ticket: u64,
        tried: &[u64],
        most: usize,
    ) -> Result<Entered, Refused> {
        let found = self.inner.table.find(model);
        let cell = found.as_ref().and_then(|f| f.cell(model)).ok_or(Refused::Unknown)?;
        loop {
            let route = cell.route.load();
            let route = route.as_ref().ok_or(Refused::Unknown)?;
            let entered = route.choose(sticky, ticket, tried, most)?;
            // A change in between must either see us counted or be seen by us.
            let now = cell.route.load();
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(now, route)) {
                return Ok(entered);
            }
        }
    }

    /// A known model's name that is near to this one.
    pub(crate) fn nearest(&self, model: &str) -> Option<String> {
        // Only for an error, and only when that cannot be used to keep us busy.
        if model.len() > 64 || self.len() > 2000 {
            return None;
        }
        let names = self.models();
        names
            .into_iter()
            .map(|name| (distance(&name, model), name))
            .filter(|(d, name)| *d <= 1 + name.len() / 4 && *d < name.len())
            .min()
            .map(|(_, name)| name)
    }
}

impl Route {
    fn choose(
        &self,
        sticky: Option<&[u8]>,
        ticket: u64,
        tried: &[u64],
        most: usize,
    ) -> Result<Entered, Refused> {
        let wanted = sticky.and_then(|route| {
            let named = |v: &Weighted| !v.targets.is_empty() && contains(route, v.version.tag.as_bytes());
            self.versions.iter().position(named)
        });
        let by_weight = || balance::version(self.versions.iter().map(Weighted::share), ticket);
        let Some(first) = wanted.or_else(by_weight) else {
            return Err(Refused::NoReplica { reason: self.reason.clone(), sleeps: self.sleeps });
        };
        let Some(version) = self.versions.get(first) else {
            return Err(Refused::Unknown);
        };
        let refused = match version.choose(ticket, tried, most) {
            Ok(entered) => return Ok(entered),
            Err(refused) => refused,
        };
        // While a version's replicas are all out of reach, another version of the model answers for it.
        let others = self.versions.iter().enumerate().filter(|(i, v)| *i != first && v.share() > 0);
        if matches!(refused, Refused::AllOpen { .. }) || !tried.is_empty() {
            for (_, other) in others {
                if let Ok(entered) = other.choose(ticket, tried, most) {
                    return Ok(entered);
                }
            }
        }
        Err(refused)
    }
}

impl Weighted {
    /// The weight, if there is a replica to take the traffic.
    const fn share(&self) -> u32 {
        if self.targets.is_empty() { 0 } else { self.weight }
    }

    fn choose(&self, ticket: u64, tried: &[u64], most: usize) -> Result<Entered, Refused> {
        let targets = &self.targets;
        let load = |i: usize| {
            let target = targets.get(i)?;
            let load = target.endpoint.in_flight.load(Ordering::Relaxed);
            let usable = load < most && !tried.contains(&target.endpoint.id) && target.endpoint.usable();
            usable.then_some(load)
        };
        // The ticket has chosen the version: another part of it chooses the replica.
        let chosen = balance::replica(targets.len(), ticket.rotate_left(17), load);
        let Some(target) = chosen.and_then(|i| targets.get(i)) else {
            let replicas = targets.len();
            let open = targets.iter().filter(|t| !t.endpoint.usable());
            return Err(match open.map(|t| t.endpoint.opens_in()).min() {
                Some(wait) => Refused::AllOpen { replicas, wait },
                None => Refused::Full { replicas },
            });
        };
        target.in_flight.fetch_add(1, Ordering::SeqCst);
        target.endpoint.begin();
        Ok(Entered { target: Arc::clone(target) })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

/// The number of single-letter edits between two names.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (slot, y) in row.iter_mut().skip(1).zip(&b) {
            let up = *slot;
            *slot = (diagonal + usize::from(x != *y)).min(up + 1).min(left + 1);
            diagonal = up;
            left = *slot;
        }
    }
    row.last().copied().unwrap_or(0)
}
