//! Why an object is as it is, in sentences: the root cause first, then what led there, then what to do.

mod model;
mod server;

use super::{Millis, reason::Reason, server::Server, state::State};
use std::fmt;

pub use model::model;
pub use server::server;

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

/// How many lines one fact has at most: an explanation is read by people.
const LINES: usize = 20;

fn fact(label: &'static str, lines: impl IntoIterator<Item = String>) -> Option<Fact> {
    let mut lines: Vec<String> = lines.into_iter().collect();
    let more = lines.len().saturating_sub(LINES);
    if more > 0 {
        lines.truncate(LINES);
        lines.push(format!("and {more} more"));
    }
    (!lines.is_empty()).then_some(Fact { label, lines })
}

/// A length of time for people to read.
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

/// How long ago something was. A clock that was set back makes it now.
fn ago(now: Millis, since: Millis) -> Span {
    Span(now.saturating_sub(since))
}

/// A number of things.
fn many(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// What a server offers: every capability of any of its replicas.
fn capabilities(server: &Server) -> String {
    let mut all: Vec<&str> = Vec::new();
    for capability in server.replicas.values().flat_map(|r| &r.capabilities) {
        if !all.contains(&capability.trim()) {
            all.push(capability.trim());
        }
    }
    if all.is_empty() { "offers nothing".to_owned() } else { all.join(", ") }
}
