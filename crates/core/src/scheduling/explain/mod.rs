//! Explanations of the current state of an object: root cause, details, suggested fix.

mod experiment;
mod model;
mod pipeline;
mod server;

use super::{Millis, Owner, reason::Reason, server::Server, state::State};
use std::{fmt, sync::Arc};

pub use experiment::experiment;
pub use model::model;
pub use pipeline::pipeline;
pub use server::server;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// One sentence; for an object that is not ready, the root cause.
    pub headline: String,
    pub reason: Reason,
    pub facts: Vec<Fact>,
    /// Suggested fix; empty when nothing is wrong.
    pub next: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Such as `desired`, `servers`, `retries`.
    pub label: &'static str,
    pub lines: Vec<String>,
}

type Answer = (Reason, String, String);

const CHECK_GATEWAYS: &str = "check that every gateway runs and is connected";

const MAX_LINES: usize = 20;

fn fact(label: &'static str, lines: impl IntoIterator<Item = String>) -> Option<Fact> {
    let mut lines: Vec<String> = lines.into_iter().collect();
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more"));
    }
    (!lines.is_empty()).then_some(Fact { label, lines })
}

struct Span(Millis);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} ms", self.0),
            1_000..120_000 => write!(f, "{} s", self.0 / 1_000),
            120_000..7_200_000 => write!(f, "{} min", self.0 / 60_000),
            _ => write!(f, "{} h", self.0 / 3_600_000),
        }
    }
}

/// Zero when the clock was set back.
fn ago(now: Millis, since: Millis) -> Span {
    Span(now.saturating_sub(since))
}

pub(super) fn many(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// Who declared an object.
fn managed(owner: Option<&Owner>, generation: Option<i64>) -> Option<String> {
    let generation = generation.map(|g| format!(", generation {g}")).unwrap_or_default();
    owner.map(|owner| format!("managed by {owner}{generation}"))
}

/// The root cause of an explanation, without the object's name and the full stop.
fn cause(name: &str, explanation: &Explanation) -> String {
    let headline = explanation.headline.trim_end_matches('.');
    headline.strip_prefix(&format!("{name} is not ready: ")).unwrap_or(headline).to_owned()
}

/// Why a model that something depends on does not serve.
fn unready_model(state: &State, name: &Arc<str>, now: Millis) -> Answer {
    match state.models().get(name).filter(|m| !m.deleted).and_then(|_| model(state, name, now)) {
        Some(explained) => (explained.reason, cause(name, &explained), explained.next),
        None => (
            Reason::UnknownModel,
            format!("model {name} does not exist"),
            format!("apply a Model named {name}"),
        ),
    }
}

/// Union of the capabilities of all replicas.
fn capabilities(server: &Server) -> String {
    let mut all: Vec<&str> = Vec::new();
    for capability in server.replicas.values().flat_map(|r| &r.capabilities) {
        if !all.contains(&capability.trim()) {
            all.push(capability.trim());
        }
    }
    if all.is_empty() { "offers nothing".to_owned() } else { all.join(", ") }
}

/// A foreign message without its full stop.
fn strip_period(sentence: &str) -> &str {
    let strip_period = sentence.trim().trim_end_matches('.');
    if strip_period.is_empty() { "no reason given" } else { strip_period }
}
