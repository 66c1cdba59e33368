//! Fault injection: which requests fail, and how.

use super::{
    request::{Request, Subresource, Verb},
    state::State,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultPlan {
    pub rules: Vec<FaultRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// Default: all requests.
    #[serde(default)]
    pub on: RequestMatch,
    /// The first affected request, from 1.
    #[serde(default = "one")]
    pub nth: u64,
    /// Number of consecutive requests.
    #[serde(default = "one")]
    pub times: u64,
    pub then: Fault,
}

const fn one() -> u64 {
    1
}

/// All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verb: Option<Verb>,
    /// Such as `Model` or `deployments.apps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresource: Option<Subresource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Only writes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writes: bool,
}

impl RequestMatch {
    fn matches(&self, request: &Request, actor: &str) -> bool {
        let matches =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let kind =
            self.kind.as_deref().is_none_or(|kind| kind == request.kind.kind || kind == request.kind.id());
        self.verb.is_none_or(|verb| verb == request.verb)
            && kind
            && matches(&self.namespace, &request.namespace)
            && matches(&self.name, &request.name)
            && self.subresource.is_none_or(|subresource| subresource == request.subresource)
            && matches(&self.actor, actor)
            && (!self.writes || request.verb.writes())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Fault {
    /// 403.
    Forbidden,
    /// 409.
    Conflict,
    /// 429 with `Retry-After`.
    TooManyRequests {
        /// Seconds.
        retry_after: u32,
    },
    /// 500.
    InternalError,
    /// 503.
    Unavailable,
    /// The connection closes before the request takes effect.
    TimeoutBefore {
        millis: u64,
    },
    /// The connection closes after the request took effect.
    TimeoutAfterCommit {
        millis: u64,
    },
    Delay {
        millis: u64,
    },
    /// A watch closes after this many events.
    CutWatch {
        after: u64,
    },
    /// A watch ends with 410 after this many events.
    ExpireWatch {
        after: u64,
    },
    /// A watch omits events.
    HideEvents {
        /// From 1.
        from: u64,
        count: u64,
    },
    /// A watch merges changes of an object within this time.
    Coalesce {
        millis: u64,
    },
    /// Watches of the kind deliver nothing until the time is over, or until released.
    Freeze {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        millis: Option<u64>,
    },
    /// Reads and watches of the kind return a stale state until the time is over, or until released.
    TimeTravel {
        /// Revisions.
        back: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        millis: Option<u64>,
    },
}

/// Faults of one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    pub cut_after: Option<u64>,
    pub expire_after: Option<u64>,
    /// First and count.
    pub hidden: Vec<(u64, u64)>,
    pub coalesce: bool,
    pub gathers_millis: u64,
}

impl Trouble {
    pub fn hides(&self, nth: u64) -> bool {
        self.hidden.iter().any(|(from, count)| nth >= *from && nth < from.saturating_add(*count))
    }

    pub fn add(&mut self, fault: &Fault) {
        match fault {
            Fault::CutWatch { after } => self.cut_after = Some(*after),
            Fault::ExpireWatch { after } => self.expire_after = Some(*after),
            Fault::HideEvents { from, count } => self.hidden.push((*from, *count)),
            Fault::Coalesce { millis } => {
                self.coalesce = true;
                self.gathers_millis = *millis;
            }
            _ => {}
        }
    }
}

/// A stale view of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    revision: u64,
    until: Option<Timestamp>,
    reads: bool,
}

/// An active plan: counters and stale views.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    plan: FaultPlan,
    seen: Vec<u64>,
    views: BTreeMap<String, View>,
}

impl Faults {
    /// Replaces the active plan.
    pub(super) fn start(&mut self, plan: FaultPlan) {
        self.seen = vec![0; plan.rules.len()];
        self.plan = plan;
    }

    /// Counts a request and returns its faults.
    pub(super) fn meet(
        &mut self,
        request: &Request,
        actor: &str,
        state: &State,
        now: Timestamp,
    ) -> Vec<Fault> {
        let mut met = Vec::new();
        for (rule, seen) in self.plan.rules.iter().zip(&mut self.seen) {
            if !rule.on.matches(request, actor) {
                continue;
            }
            *seen += 1;
            if *seen >= rule.nth && *seen < rule.nth.saturating_add(rule.times) {
                met.push(rule.then.clone());
            }
        }
        for fault in &met {
            match fault {
                Fault::Freeze { millis } => {
                    self.see(&request.kind.id(), state.revision(), until(now, *millis), false);
                }
                Fault::TimeTravel { back, millis } => {
                    let revision = state.revision().saturating_sub(*back).max(state.compacted());
                    self.see(&request.kind.id(), revision, until(now, *millis), true);
                }
                _ => {}
            }
        }
        met
    }

    fn see(&mut self, kind: &str, revision: u64, until: Option<Timestamp>, reads: bool) {
        self.views.insert(kind.to_owned(), View { revision, until, reads });
    }

    /// Watches of a kind deliver nothing until [`Self::release`].
    pub(super) fn freeze(&mut self, kind: &str, state: &State) {
        self.see(kind, state.revision(), None, false);
    }

    /// Reads and watches of a kind return a stale state until [`Self::release`].
    pub(super) fn travel(&mut self, kind: &str, revision: u64) {
        self.see(kind, revision, None, true);
    }

    /// Ends the stale view of a kind.
    pub(super) fn release(&mut self, kind: &str) {
        self.views.remove(kind);
    }

    /// The newest revision visible to watches of a kind, and until when.
    pub(super) fn newest(&self, kind: &str, state: &State, now: Timestamp) -> (u64, Option<Timestamp>) {
        match self.views.get(kind).filter(|view| view.until.is_none_or(|until| until > now)) {
            Some(view) => (view.revision, view.until),
            None => (state.revision(), None),
        }
    }

    /// The newest revision visible to reads of a kind.
    pub(super) fn newest_read(&self, kind: &str, state: &State, now: Timestamp) -> u64 {
        match self.views.get(kind).filter(|view| view.reads && view.until.is_none_or(|until| until > now)) {
            Some(view) => view.revision,
            None => state.revision(),
        }
    }
}

fn until(now: Timestamp, millis: Option<u64>) -> Option<Timestamp> {
    let millis = i64::try_from(millis?).ok()?;
    now.saturating_add(SignedDuration::from_millis(millis)).ok()
}
