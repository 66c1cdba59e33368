//! Why an object is as it is, in sentences: the root cause first, then what led there, then what to do.

use super::{Millis, reason::Reason, state::State};

/// Why an object is as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One sentence that answers the question. For an object that is not ready it names the root cause.
    pub headline: String,
    /// The cause as a word.
    pub reason: Reason,
    /// The chain that led there, in order.
    pub facts: Vec<Fact>,
    /// What to do, one concrete step; empty when nothing is wrong.
    pub next: String,
}

/// A part of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Such as `asked`, `servers`, `tried`.
    pub label: &'static str,
    /// What there is to say.
    pub lines: Vec<String>,
}

/// Why a model is as it is; `None` when it is not known.
pub fn model(state: &State, name: &str, _now: Millis) -> Option<Explanation> {
    let model = state.models().get(name)?;
    let summary = model.summary(model.latest()?);
    Some(Explanation {
        headline: format!("{name}: {}", summary.reason),
        reason: summary.code.unwrap_or(Reason::Ready),
        facts: Vec::new(),
        next: String::new(),
    })
}

/// Why a server is as it is; `None` when it is not known.
pub fn server(state: &State, name: &str, _now: Millis) -> Option<Explanation> {
    state.servers().get(name)?;
    Some(Explanation {
        headline: format!("{name} is ready"),
        reason: Reason::Ready,
        facts: Vec::new(),
        next: String::new(),
    })
}
