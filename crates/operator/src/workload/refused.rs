//! What the API server would not take is not sent again until something is different.

use super::{family::Family, scaled::hand_over};
use crate::{
    cluster::{ChildKind, Desired, Key},
    conditions::{Outlook, Says},
    plan::Action,
};
use std::time::Duration;

/// When what was refused is tried again although nothing changed: rules of the cluster change, too.
const AGAIN: Duration = Duration::from_mins(5);

/// An object that the API server would not take.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its kind.
    pub kind: ChildKind,
    /// Where it was to be.
    pub key: Key,
    /// The digest of what was sent.
    pub digest: String,
    /// The identity of the object that was there; empty when there was none.
    pub there: String,
    /// Why, in the API server's words.
    pub why: String,
    /// How long ago.
    pub ago: Duration,
}

impl Refused {
    fn is_about(&self, wanted: &Desired, family: &Family) -> bool {
        let there = family.get(wanted.kind, &wanted.key.name).and_then(|c| c.metadata.uid.as_deref());
        self.kind == wanted.kind
            && self.key == wanted.key
            && self.ago < AGAIN
            && self.there == there.unwrap_or_default()
            && self.digest == wanted.digest()
    }

    /// For a status: the API server's words, and what helps.
    pub fn says(&self) -> Says {
        let (kind, name, namespace) = (self.kind, &self.key.name, &self.key.namespace);
        let lower = self.kind.name().to_lowercase();
        let remedy = if self.why.contains("updates to statefulset spec")
            || self.why.contains("field is immutable")
        {
            format!(
                "the change needs a new {kind}: kubectl delete {lower} {name} -n {namespace} --cascade=orphan keeps the \
                 pods, and the {kind} is made anew"
            )
        } else if self.why.contains("Only one reference can have Controller set to true") {
            format!("another object owns a {kind} of that name: rename one of the two")
        } else if self.why.contains("exceeded quota") {
            "raise the quota of the namespace, or ask for less".to_owned()
        } else if self.why.contains("cannot ") {
            "give the operator's service account the right".to_owned()
        } else {
            "change podSpec, here or in the configuration".to_owned()
        };
        let message =
            format!("the API server refuses the {kind} {name}: {}; {remedy}", self.why.trim_end_matches('.'));
        Says::new(false, "ApplyRefused", message, Outlook::Final)
    }
}

/// What is to be done about what is wanted, what is in the way of it, and when to look again.
#[derive(Clone, Debug, Default)]
pub struct Sorted {
    /// What can be asked of the API server.
    pub actions: Vec<Action>,
    /// The first that it would not take.
    pub refused: Option<Refused>,
    /// When that is tried again.
    pub wake: Option<Duration>,
}

/// Leaves out what the API server would not take.
pub fn sort(wanted: &[Desired], family: &Family, refusals: &[Refused]) -> Sorted {
    let mut sorted = Sorted::default();
    for desired in wanted {
        let desired = desired.adopting(family.get(desired.kind, &desired.key.name));
        if let Some(refused) = refusals.iter().find(|refused| refused.is_about(&desired, family)) {
            let left = AGAIN.saturating_sub(refused.ago);
            sorted.wake = Some(sorted.wake.map_or(left, |wake| wake.min(left)));
            sorted.refused.get_or_insert_with(|| refused.clone());
        } else {
            let live = family.get(desired.kind, &desired.key.name);
            sorted.actions.extend(hand_over(live, &desired));
            sorted.actions.push(Action::Ensure(Box::new(desired)));
        }
    }
    sorted
}
