//! Conditions: `Ready`, the conditions of a kind, and those that kstatus reads.

use gantry_api::Condition;
use k8s_openapi::jiff::Timestamp;

pub const READY: &str = "Ready";
/// Present only while a change is in progress, as kstatus expects.
pub const RECONCILING: &str = "Reconciling";
/// Present only when the object has to be changed to become ready, as kstatus expects.
pub const STALLED: &str = "Stalled";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(yes: bool) -> Self {
        if yes { Self::True } else { Self::False }
    }
}

/// Whether a condition resolves by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Settled,
    /// It resolves by itself, or by a change of another object.
    InProgress,
    /// It needs a change of the spec.
    Stalled,
}

/// A condition without its `lastTransitionTime`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionUpdate {
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
    pub progress: Progress,
}

impl ConditionUpdate {
    pub fn new(
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
        progress: Progress,
    ) -> Self {
        Self { status: status.into(), reason: reason.into(), message: message.into(), progress }
    }

    /// For a condition that cannot be determined, with the same explanation.
    #[must_use]
    pub fn unknown(&self) -> Self {
        Self { status: ConditionStatus::Unknown, ..self.clone() }
    }
}

/// The conditions of a status: the kind's own, `Ready`, those of kstatus, then those of other controllers.
/// `lastTransitionTime` changes only with the status.
pub fn conditions(
    before: &[Condition],
    own: &[(&str, &ConditionUpdate)],
    ready: &ConditionUpdate,
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all: Vec<Condition> = Vec::new();
    let mut push = |name: &str, status: ConditionStatus, condition: &ConditionUpdate| {
        let known = before.iter().find(|c| c.r#type == name);
        let since = known
            .filter(|c| c.status == status.as_str())
            .and_then(|c| c.last_transition_time.clone())
            .unwrap_or_else(|| stamp(now));
        all.push(Condition {
            r#type: name.to_owned(),
            status: status.as_str().to_owned(),
            severity: None,
            last_transition_time: Some(since),
            reason: Some(condition.reason.clone()),
            message: Some(condition.message.clone()),
            observed_generation: Some(generation),
        });
    };
    for (name, condition) in own {
        push(name, condition.status, condition);
    }
    push(READY, ready.status, ready);
    match ready.progress {
        Progress::Settled => {}
        Progress::InProgress => push(RECONCILING, ConditionStatus::True, ready),
        Progress::Stalled => push(STALLED, ConditionStatus::True, ready),
    }
    let ours =
        |name: &str| [READY, RECONCILING, STALLED].contains(&name) || own.iter().any(|(o, _)| *o == name);
    all.extend(before.iter().filter(|c| !ours(&c.r#type)).cloned());
    all
}

pub fn condition_status(conditions: &[Condition], name: &str) -> Option<ConditionStatus> {
    conditions.iter().find(|c| c.r#type == name).map(|c| match c.status.as_str() {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    })
}

/// RFC 3339 in whole seconds, as Kubernetes writes times.
fn stamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
