//! What is true in the world, whoever knows it: the properties are judged by it.

use crate::plan::Asked;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What somebody's order to the scheduler may have led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was acknowledged.
    Done,
    /// It was refused: nothing changed.
    Refused,
    /// Nobody can know.
    Unknown,
}

/// A model as the people who ask for it know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelFacts {
    /// What may be asked for at this moment; `None` for nothing. The last one is the latest.
    pub(crate) possible: Vec<Option<Asked>>,
    /// Since when it has been available without a break that somebody asked for.
    pub(crate) available_since: Option<u64>,
    /// The content of each version that was ever loaded.
    pub(crate) contents: BTreeMap<u32, String>,
}

impl ModelFacts {
    /// Somebody is about to ask for something.
    pub(crate) fn ask(&mut self, wanted: Option<Asked>) {
        if wanted.as_ref().is_none_or(|asked| asked.replicas == 0) {
            self.available_since = None;
        }
        if self.possible.is_empty() {
            self.possible.push(None);
        }
        self.possible.push(wanted);
    }

    /// The answer to what was asked last.
    pub(crate) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Done => {
                self.possible.drain(..self.possible.len().saturating_sub(1));
            }
            Answer::Refused => {
                self.possible.pop();
            }
            Answer::Unknown => {}
        }
    }

    /// What is asked for, when nobody can doubt it.
    pub(crate) fn certain(&self) -> Option<&Option<Asked>> {
        match self.possible.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FactsInner {
    pub(crate) models: BTreeMap<String, ModelFacts>,
    /// Until when a host may have lost touch for longer than anybody waits for it.
    disturbed: BTreeMap<String, u64>,
    /// Until when a host may not be connected.
    apart: BTreeMap<String, u64>,
    /// Whether the scheduler may die between refusing and forgetting what its disk did not take.
    pub(crate) dies: bool,
    /// Nothing that must be served without a break is, until everything has come to rest.
    pub(crate) gaps_allowed: bool,
}

/// The facts; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts(Arc<Mutex<FactsInner>>);

impl Facts {
    pub(crate) fn lock(&self) -> MutexGuard<'_, FactsInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a host may have lost touch, and until when, for longer than anybody waits for it.
    pub(crate) fn disturb(&self, host: &str, until: u64) {
        later(&mut self.lock().disturbed, host, until);
    }

    pub(crate) fn is_disturbed(&self, host: &str, now: u64) -> bool {
        self.lock().disturbed.get(host).is_some_and(|until| now <= *until)
    }

    /// Notes that a host may not be connected, and until when.
    pub(crate) fn part(&self, host: &str, until: u64) {
        later(&mut self.lock().apart, host, until);
    }

    pub(crate) fn is_apart(&self, host: &str, now: u64) -> bool {
        self.lock().apart.get(host).is_some_and(|until| now <= *until)
    }
}

fn later(times: &mut BTreeMap<String, u64>, host: &str, until: u64) {
    let known = times.entry(host.to_owned()).or_default();
    *known = (*known).max(until);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Artifact;

    fn asked(content: u32) -> Asked {
        let artifact = Artifact::Good;
        Asked { content, artifact, memory: 1, requirement: "onnx".into(), replicas: 1, min: 0, server: None }
    }

    #[test]
    fn what_is_acknowledged_is_certain_and_what_is_lost_is_not() {
        let mut model = ModelFacts::default();
        model.ask(Some(asked(1)));
        model.answered(Answer::Done);
        assert_eq!(model.certain(), Some(&Some(asked(1))));
        model.ask(Some(asked(2)));
        model.answered(Answer::Unknown);
        assert_eq!(model.possible, [Some(asked(1)), Some(asked(2))]);
        model.ask(None);
        model.answered(Answer::Refused);
        assert_eq!(model.possible, [Some(asked(1)), Some(asked(2))]);
        model.ask(Some(asked(3)));
        model.answered(Answer::Done);
        assert_eq!(model.certain(), Some(&Some(asked(3))));
    }
}
