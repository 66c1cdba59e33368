//! What cannot be made is not sent again until something is different.

use super::{family::Family, scaled::hand_over};
use crate::{
    cluster::{ResourceKind, Desired, Key},
    conditions::{Progress, ConditionUpdate},
    plan::{Action, ClusterAction},
};
use std::time::Duration;

/// When what was refused is tried again although nothing changed: rules of the cluster change, too.
const AGAIN: Duration = Duration::from_mins(5);
/// When a name that was taken is looked at again: what others make is not watched.
const LOOK: Duration = Duration::from_secs(10);

/// What is in the way of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The API server would not take it, in its words.
    ApiServer(String),
    /// Its place is still that of an object which belongs to the one that had the owner's name before: which.
    PreviousOwner(String),
    /// Its name is taken by what is not ours: why.
    Foreign(String),
}

/// An object that could not be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its kind.
    pub kind: ResourceKind,
    /// Where it was to be.
    pub key: Key,
    /// The digest of what was sent.
    pub digest: String,
    /// The identity of the object that was known to be there; empty when there was none.
    pub there: String,
    /// Why.
    pub why: Obstacle,
    /// How long ago.
    pub ago: Duration,
}

impl Refused {
    fn is_about(&self, wanted: &Desired, family: &Family) -> bool {
        let there = family.occupant(wanted.kind, &wanted.key.name);
        self.kind == wanted.kind
            && self.key == wanted.key
            && self.ago < self.again()
            && self.there == there.unwrap_or_default()
            && self.digest == wanted.digest()
    }

    const fn again(&self) -> Duration {
        match self.why {
            Obstacle::ApiServer(_) => AGAIN,
            Obstacle::PreviousOwner(_) | Obstacle::Foreign(_) => LOOK,
        }
    }

    /// For a status: what is in the way, and what helps.
    pub fn condition(&self) -> ConditionUpdate {
        let (kind, name, namespace) = (self.kind, &self.key.name, &self.key.namespace);
        let lower = kind.kind.to_lowercase();
        match &self.why {
            Obstacle::ApiServer(why) => {
                let remedy = self.remedy(why);
                let message = format!(
                    "the API server refuses the {kind} {name}: {}; {remedy}",
                    why.trim_end_matches('.')
                );
                ConditionUpdate::new(false, "ApplyRefused", message, Progress::Stalled)
            }
            Obstacle::PreviousOwner(whose) => {
                let message =
                    format!("waits until the {kind} {name} of the {whose} that was there before is gone");
                ConditionUpdate::new(false, "Progressing", message, Progress::InProgress)
            }
            Obstacle::Foreign(whose) => {
                let message = format!(
                    "there is a {kind} {name} in namespace {namespace} already, and {whose}: it was left as it is; give \
                     one of the two another name, or remove it (kubectl delete {lower} {name} -n {namespace})"
                );
                ConditionUpdate::new(false, "NameTaken", message, Progress::Stalled)
            }
        }
    }

    fn remedy(&self, why: &str) -> String {
        let (kind, name, namespace) = (self.kind, &self.key.name, &self.key.namespace);
        let lower = kind.kind.to_lowercase();
        if why.contains("updates to statefulset spec") || why.contains("field is immutable") {
            format!(
                "the change needs a new {kind}: kubectl delete {lower} {name} -n {namespace} --cascade=orphan keeps the \
                 pods, and the {kind} is made anew"
            )
        } else if why.contains("exceeded quota") {
            "raise the quota of the namespace, or ask for less".to_owned()
        } else if why.contains("cannot ") {
            "give the operator's service account the right".to_owned()
        } else {
            "change podSpec, here or in the configuration".to_owned()
        }
    }
}

/// What is to be done about what is wanted, what is in the way of it, and when to look again.
#[derive(Clone, Debug, Default)]
pub struct Sorted {
    /// What can be asked of the API server.
    pub actions: Vec<Action>,
    /// The first that could not be made.
    pub refused: Option<Refused>,
    /// When that is tried again.
    pub wake: Option<Duration>,
}

/// Leaves out what could not be made.
pub fn sort(wanted: &[Desired], family: &Family, refusals: &[Refused]) -> Sorted {
    let mut sorted = Sorted::default();
    for desired in wanted {
        let desired = desired.adopting(family.get(desired.kind, &desired.key.name));
        if let Some(refused) = refusals.iter().find(|refused| refused.is_about(&desired, family)) {
            let left = refused.again().saturating_sub(refused.ago);
            sorted.wake = Some(sorted.wake.map_or(left, |wake| wake.min(left)));
            sorted.refused.get_or_insert_with(|| refused.clone());
        } else {
            let live = family.get(desired.kind, &desired.key.name);
            sorted.actions.extend(hand_over(live, &desired));
            sorted.actions.push(ClusterAction::Apply(Box::new(desired)).into());
        }
    }
    sorted
}
