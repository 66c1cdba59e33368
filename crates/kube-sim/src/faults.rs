//! What goes wrong, as data: which request, which time, what happens.

use super::{
    request::{Request, Subresource, Verb},
    state::State,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that goes wrong in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Each on its own.
    pub rules: Vec<Rule>,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// With which requests; with all when nothing is said.
    #[serde(default)]
    pub on: On,
    /// The first of them that it hits, counted from 1.
    #[serde(default = "one")]
    pub nth: u64,
    /// How many in a row.
    #[serde(default = "one")]
    pub times: u64,
    /// What happens.
    pub then: Fault,
}

const fn one() -> u64 {
    1
}

/// Which requests: everything that is said must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct On {
    /// What they ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verb: Option<Verb>,
    /// Of which kind, such as `Model` or `deployments.apps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// In which namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Of which object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// At which endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresource: Option<Subresource>,
    /// From whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Only those that may change something.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writes: bool,
}

impl On {
    fn holds(&self, request: &Request, actor: &str) -> bool {
        let says =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let kind =
            self.kind.as_deref().is_none_or(|kind| kind == request.kind.kind || kind == request.kind.id());
        self.verb.is_none_or(|verb| verb == request.verb)
            && kind
            && says(&self.namespace, &request.namespace)
            && says(&self.name, &request.name)
            && self.subresource.is_none_or(|subresource| subresource == request.subresource)
            && says(&self.actor, actor)
            && (!self.writes || request.verb.writes())
    }
}

/// What happens to a request, or from it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Fault {
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
    /// The connection breaks after a while; nothing happened.
    TimeoutBefore {
        /// How long the client waits.
        millis: u64,
    },
    /// The connection breaks after a while; the write happened.
    TimeoutAfterCommit {
        /// How long the client waits.
        millis: u64,
    },
    /// The answer takes a while.
    Delay {
        /// How long.
        millis: u64,
    },
    /// A watch ends without a word after so many events.
    CutWatch {
        /// Events.
        after: u64,
    },
    /// A watch ends with 410 after so many events.
    ExpireWatch {
        /// Events.
        after: u64,
    },
    /// A watch never tells of some events.
    HideEvents {
        /// The first of them, counted from 1.
        from: u64,
        /// How many.
        count: u64,
    },
    /// A watch tells of several changes of an object as of one.
    Coalesce {
        /// How long it gathers them.
        millis: u64,
    },
    /// Watches of the request's kind tell nothing for a while, or until they are released.
    Freeze {
        /// How long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        millis: Option<u64>,
    },
    /// Reads and watches of the request's kind, this one first, see the past for a while, or until they are released.
    TimeTravel {
        /// How many revisions back.
        back: u64,
        /// How long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        millis: Option<u64>,
    },
}

/// What goes wrong with one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// It ends without a word after so many events.
    pub cut_after: Option<u64>,
    /// It ends with 410 after so many events.
    pub expire_after: Option<u64>,
    /// Events that it does not tell: the first, and how many.
    pub hidden: Vec<(u64, u64)>,
    /// It tells of several changes of an object as of one.
    pub coalesce: bool,
    /// How long it gathers them.
    pub gathers_millis: u64,
}

impl Trouble {
    /// Whether the nth event is hidden.
    pub fn hides(&self, nth: u64) -> bool {
        self.hidden.iter().any(|(from, count)| nth >= *from && nth < from.saturating_add(*count))
    }

    /// Takes over what a fault says about watches.
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

/// How a kind is seen for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct View {
    revision: u64,
    until: Option<Timestamp>,
    reads: bool,
}

/// A plan at work: what was counted, and which kinds are seen late.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    plan: Plan,
    seen: Vec<u64>,
    views: BTreeMap<String, View>,
}

impl Faults {
    /// Starts a plan; what the plan before it counted is forgotten.
    pub(super) fn start(&mut self, plan: Plan) {
        self.seen = vec![0; plan.rules.len()];
        self.plan = plan;
    }

    /// Counts a request, and says what happens to it.
    pub(super) fn meet(
        &mut self,
        request: &Request,
        actor: &str,
        state: &State,
        now: Timestamp,
    ) -> Vec<Fault> {
        let mut met = Vec::new();
        for (rule, seen) in self.plan.rules.iter().zip(&mut self.seen) {
            if !rule.on.holds(request, actor) {
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

    /// Watches of a kind tell nothing until [`Self::release`].
    pub(super) fn freeze(&mut self, kind: &str, state: &State) {
        self.see(kind, state.revision(), None, false);
    }

    /// Reads and watches of a kind see the past until [`Self::release`].
    pub(super) fn travel(&mut self, kind: &str, revision: u64) {
        self.see(kind, revision, None, true);
    }

    /// A kind is seen as it is.
    pub(super) fn release(&mut self, kind: &str) {
        self.views.remove(kind);
    }

    /// The newest revision that watches of a kind see, and when that ends.
    pub(super) fn newest(&self, kind: &str, state: &State, now: Timestamp) -> (u64, Option<Timestamp>) {
        match self.views.get(kind).filter(|view| view.until.is_none_or(|until| until > now)) {
            Some(view) => (view.revision, view.until),
            None => (state.revision(), None),
        }
    }

    /// The newest revision that reads of a kind see.
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
