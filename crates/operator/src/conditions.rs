//! Conditions: what is true of an object, since when, and why.

use gantry_api::Condition;
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;

/// The one that people wait for.
pub const READY: &str = "Ready";
/// There only while something is under way: kstatus reads it as "in progress".
pub const RECONCILING: &str = "Reconciling";
/// There only when nothing will change until somebody changes something: kstatus reads it as "failed".
pub const STALLED: &str = "Stalled";

/// Whether something is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// Yes.
    True,
    /// No.
    False,
    /// Nobody can tell.
    Unknown,
}

impl Truth {
    /// As Kubernetes writes it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}

/// How a thing that is not as it should be will go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing is to be waited for.
    Settled,
    /// It goes on by itself, or when something else in the cluster changes.
    Passing,
    /// Somebody has to change the object.
    Final,
}

/// What is to be said, before it is known since when.
#[derive(Clone, Debug, PartialEq)]
pub struct Says {
    /// Whether it is true.
    pub truth: Truth,
    /// A word that a program can match.
    pub reason: String,
    /// A sentence that a person can act on.
    pub message: String,
    /// How it goes on.
    pub outlook: Outlook,
}

impl Says {
    /// Says something.
    pub fn new(
        truth: impl Into<Truth>,
        reason: impl Into<String>,
        message: impl Into<String>,
        outlook: Outlook,
    ) -> Self {
        Self { truth: truth.into(), reason: reason.into(), message: message.into(), outlook }
    }
}

/// The conditions of an object: `Ready` and the kind's own, then what kstatus wants to see, then those of others.
/// A time changes only when the truth does.
pub fn conditions(
    before: &[Condition],
    own: &[(&str, &Says)],
    ready: &Says,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all: Vec<Condition> = Vec::new();
    let mut say = |name: &str, truth: Truth, says: &Says| {
        let known = before.iter().find(|c| c.r#type == name);
        let since = known
            .filter(|c| c.status == truth.word() && !mutant::is("changes_times_without_a_change"))
            .and_then(|c| c.last_transition_time.clone())
            .unwrap_or_else(|| stamp(now));
        all.push(Condition {
            r#type: name.to_owned(),
            status: truth.word().to_owned(),
            severity: None,
            last_transition_time: Some(since),
            reason: Some(says.reason.clone()),
            message: Some(says.message.clone()),
            observed_generation: Some(generation),
        });
    };
    for (name, says) in own {
        say(name, says.truth, says);
    }
    say(READY, ready.truth, ready);
    match ready.outlook {
        Outlook::Settled => {}
        Outlook::Passing => say(RECONCILING, Truth::True, ready),
        Outlook::Final => say(STALLED, Truth::True, ready),
    }
    let ours =
        |name: &str| [READY, RECONCILING, STALLED].contains(&name) || own.iter().any(|(o, _)| *o == name);
    all.extend(before.iter().filter(|c| !ours(&c.r#type)).cloned());
    all
}

/// The truth of a condition, if it is there.
pub fn truth_of(conditions: &[Condition], name: &str) -> Option<Truth> {
    conditions.iter().find(|c| c.r#type == name).map(|c| match c.status.as_str() {
        "True" => Truth::True,
        "False" => Truth::False,
        _ => Truth::Unknown,
    })
}

/// A time as Kubernetes writes it: whole seconds.
fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
