//! Status of an `InferenceService`: KServe's conditions, components and URLs.

use super::{delivery::POLICY_ACCEPTED, runtime::Runtime};
use crate::{
    cluster::{Custom, EventDraft, InferenceService},
    conditions::{ConditionStatus, condition_status},
};
use gantry_api::{
    Condition,
    kserve::{InferenceServiceStatus, ModelStatus, StatusAddress},
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// Interval of status writes while a service is rolled out.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

pub(super) const READY: &str = "Ready";
pub(super) const PREDICTOR_READY: &str = "PredictorReady";
pub(super) const INGRESS_READY: &str = "IngressReady";
pub(super) const CANARY_READY: &str = "CanaryPredictorReady";
pub(super) const STOPPED: &str = "Stopped";
/// Only while the `ConfigMap` is invalid; `Ready` does not depend on it.
pub(super) const CONFIG_VALID: &str = "ConfigValid";
/// The conditions that `Ready` depends on.
const DEPENDENTS: [&str; 2] = [PREDICTOR_READY, INGRESS_READY];
/// Conditions that this controller writes; those of others are kept.
const OWN: [&str; 17] = [
    READY,
    PREDICTOR_READY,
    INGRESS_READY,
    STOPPED,
    "TransformerReady",
    "ExplainerReady",
    CANARY_READY,
    CONFIG_VALID,
    POLICY_ACCEPTED,
    "LatestDeploymentReady",
    "RoutesReady",
    "PredictorRouteReady",
    "TransformerRouteReady",
    "ExplainerRoutesReady",
    "PredictorConfigurationReady",
    "TransformerConfigurationReady",
    "ExplainerConfigurationReady",
];

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

impl Fact {
    pub(super) fn new(
        status: impl Into<ConditionStatus>,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { status: status.into(), reason: reason.into(), message: message.into() }
    }

    /// As it was reported.
    pub(super) fn of(condition: &Condition) -> Self {
        let status = condition_status(std::slice::from_ref(condition), &condition.r#type);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self::new(
            status.unwrap_or(ConditionStatus::Unknown),
            text(&condition.reason),
            text(&condition.message),
        )
    }

    pub(super) fn is_true(&self) -> bool {
        self.status == ConditionStatus::True
    }
}

/// What the status is built from.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub facts: Vec<(&'static str, Fact)>,
    /// The fields of the status besides conditions and generation.
    pub status: InferenceServiceStatus,
}

impl Observed {
    pub(super) fn fact(&mut self, name: &'static str, fact: Fact) {
        self.facts.push((name, fact));
    }

    pub(super) fn url(&mut self, url: &str, address: &str) {
        self.status.url = Some(url.to_owned());
        self.status.address = Some(StatusAddress { url: Some(address.to_owned()) });
    }

    /// The runtime of the model.
    pub(super) fn runtime(&mut self, runtime: Option<&Runtime>) {
        let Some(runtime) = runtime else { return };
        let name = Some(runtime.name.clone());
        if runtime.is_cluster_wide {
            self.status.cluster_serving_runtime_name = name;
        } else {
            self.status.serving_runtime_name = name;
        }
    }

    /// `Ready`: the first of the conditions it depends on that is false, else unknown.
    fn ready(&self) -> Fact {
        let dependents =
            || self.facts.iter().filter(|(name, _)| DEPENDENTS.contains(name)).map(|(_, fact)| fact);
        let with = |status| dependents().find(|fact| fact.status == status);
        match with(ConditionStatus::False).or_else(|| with(ConditionStatus::Unknown)) {
            Some(fact) => fact.clone(),
            None if dependents().count() < DEPENDENTS.len() => Fact::new(ConditionStatus::Unknown, "", ""),
            None => Fact::new(true, "", ""),
        }
    }

    /// The new status of an object. Conditions are sorted by type; the time of one changes with any of its fields.
    pub(super) fn build(&self, object: &Custom<InferenceService>, now: Timestamp) -> InferenceServiceStatus {
        let before: &[Condition] =
            object.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let ready = self.ready();
        let own = self.facts.iter().map(|(name, fact)| (*name, fact)).chain([(READY, &ready)]);
        let mut conditions: Vec<Condition> =
            own.map(|(name, fact)| condition(name, fact, before, now)).collect();
        conditions.extend(before.iter().filter(|c| !OWN.contains(&c.r#type.as_str())).cloned());
        conditions.sort_by(|a, b| a.r#type.cmp(&b.r#type));
        InferenceServiceStatus {
            observed_generation: Some(object.generation()),
            conditions,
            annotations: object.status.as_ref().and_then(|s| s.annotations.clone()),
            ..self.status.clone()
        }
    }
}

/// A status with one more condition.
pub(super) fn with_condition(
    mut status: InferenceServiceStatus,
    object: &Custom<InferenceService>,
    name: &str,
    fact: &Fact,
    now: Timestamp,
) -> InferenceServiceStatus {
    let before = object.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    status.conditions.retain(|known| known.r#type != name);
    status.conditions.push(condition(name, fact, before, now));
    status.conditions.sort_by(|a, b| a.r#type.cmp(&b.r#type));
    status
}

fn condition(name: &str, fact: &Fact, before: &[Condition], now: Timestamp) -> Condition {
    let optional = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let is_dependent = name == READY || DEPENDENTS.contains(&name);
    let condition = Condition {
        r#type: name.to_owned(),
        status: fact.status.as_str().to_owned(),
        severity: (!is_dependent).then(|| "Info".to_owned()),
        last_transition_time: None,
        reason: optional(&fact.reason),
        message: optional(&fact.message),
        observed_generation: None,
    };
    let same =
        before.iter().find(|known| Condition { last_transition_time: None, ..(*known).clone() } == condition);
    let since = same.and_then(|known| known.last_transition_time.clone());
    let now = || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    Condition { last_transition_time: Some(since.unwrap_or_else(now)), ..condition }
}

/// How long a change waits for others: pods pass through several states within a second. A change of `Ready`, and the first
/// status of a generation, are written at once.
pub(super) fn write_delay(
    object: &Custom<InferenceService>,
    status: &InferenceServiceStatus,
    age: Option<Duration>,
) -> Option<Duration> {
    let before = object.status.as_ref()?;
    let ready = |s: &InferenceServiceStatus| condition_status(&s.conditions, READY);
    let is_progress =
        before.observed_generation == status.observed_generation && ready(before) == ready(status);
    let left = PROGRESS_INTERVAL.checked_sub(age?).filter(|left| !left.is_zero());
    left.filter(|_| is_progress && before != status)
}

/// The event of a change of `Ready`.
pub(super) fn transition_event(
    object: &Custom<InferenceService>,
    status: &InferenceServiceStatus,
) -> Option<EventDraft> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.as_ref().and_then(|s| condition_status(&s.conditions, READY));
    let after = condition_status(&status.conditions, READY);
    match (before, after) {
        (Some(ConditionStatus::True), Some(ConditionStatus::True)) => None,
        (_, Some(ConditionStatus::True)) => Some(EventDraft {
            warning: false,
            reason: "InferenceServiceReady",
            message: format!("InferenceService [{name}] is Ready"),
        }),
        (Some(ConditionStatus::True), _) => {
            let failed = status.conditions.iter().filter(|c| c.status == "False").map(|c| c.r#type.as_str());
            let failed: Vec<&str> = failed.collect();
            Some(EventDraft {
                warning: true,
                reason: "InferenceServiceNotReady",
                message: format!(
                    "InferenceService [{name}] is no longer Ready because of: {}",
                    failed.join(", ")
                ),
            })
        }
        _ => None,
    }
}

/// The model's state before this plan.
pub(super) fn model_status(object: &Custom<InferenceService>) -> Option<&ModelStatus> {
    object.status.as_ref()?.model_status.as_ref()
}
