//! Status of a `SeldonRuntime`.

use super::{components::Part, kafka};
use crate::{
    cluster::{Custom, EventDraft, SeldonRuntime},
    conditions::{ConditionStatus, ConditionUpdate, Progress, READY, condition_status, conditions},
    workload::ApplyFailure,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

/// The condition type of a component: Seldon's name, or one of the same form.
pub(super) fn condition_type(component: &str) -> String {
    let word = match component {
        "seldon-dataflow-engine" => "DataflowEngine",
        "seldon-modelgateway" => "ModelGateway",
        "seldon-pipelinegateway" => "PipelineGateway",
        other => {
            let words = other.strip_prefix("seldon-").unwrap_or(other).split(['-', '.']);
            let capital = |word: &str| {
                let mut letters = word.chars();
                letters
                    .next()
                    .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
                    .unwrap_or_default()
            };
            return words.map(capital).collect::<String>() + READY;
        }
    };
    format!("{word}{READY}")
}

/// `Ready`, from the conditions of the components and of the Kafka settings.
pub(super) fn ready(
    components: &[(Part, ConditionUpdate)],
    kafka: Option<&ConditionUpdate>,
    refused: Option<&ApplyFailure>,
) -> ConditionUpdate {
    if let Some(refused) = refused {
        return refused.condition();
    }
    let waiting: Vec<String> = components
        .iter()
        .filter(|(_, condition)| condition.status != ConditionStatus::True)
        .map(|(part, condition)| format!("{}: {}", part.name, condition.message))
        .collect();
    if !waiting.is_empty() {
        return ConditionUpdate::new(false, "ComponentsNotReady", waiting.join("; "), Progress::InProgress);
    }
    // Requests are served, but what the configuration asks for is not.
    if let Some(kafka) = kafka.filter(|kafka| kafka.status != ConditionStatus::True) {
        return kafka.clone();
    }
    let names: Vec<&str> = components.iter().map(|(part, _)| part.name.as_str()).collect();
    let message = match names.as_slice() {
        [] => "no components are enabled".to_owned(),
        [one] => format!("{one} is ready"),
        many => format!("{} are ready", many.join(", ")),
    };
    ConditionUpdate::new(true, "RuntimeReady", message, Progress::Settled)
}

/// Removes the conditions of components and settings that the runtime no longer has.
pub(super) fn build_status(
    object: &Custom<SeldonRuntime>,
    components: &[(Part, ConditionUpdate)],
    kafka: Option<&ConditionUpdate>,
    ready: &ConditionUpdate,
    now: Timestamp,
) -> PlainStatus {
    let mut before = object.status.clone().unwrap_or_default();
    let named: Vec<(String, &ConditionUpdate)> =
        components.iter().map(|(part, condition)| (condition_type(&part.name), condition)).collect();
    let own: Vec<(&str, &ConditionUpdate)> = named
        .iter()
        .map(|(name, condition)| (name.as_str(), *condition))
        .chain(kafka.map(|kafka| (kafka::CONDITION, kafka)))
        .collect();
    before.conditions.retain(|c| {
        let is_ours = c.r#type != READY && (c.r#type.ends_with(READY) || c.r#type == kafka::CONDITION);
        !is_ours || own.iter().any(|(name, _)| *name == c.r#type)
    });
    PlainStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, &own, ready, object.generation(), now),
        annotations: before.annotations,
    }
}

/// A condition of the last status.
pub(super) fn known_condition(object: &Custom<SeldonRuntime>, name: &str) -> Option<ConditionUpdate> {
    let conditions = &object.status.as_ref()?.conditions;
    let known = conditions.iter().find(|c| c.r#type == name)?;
    let status = condition_status(conditions, name)?;
    let progress = if status == ConditionStatus::True { Progress::Settled } else { Progress::Stalled };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(ConditionUpdate::new(status, text(&known.reason), text(&known.message), progress))
}

/// An event when `Ready` changes, and for every new failure.
pub(super) fn transition_event(
    object: &Custom<SeldonRuntime>,
    condition: &ConditionUpdate,
) -> Option<EventDraft> {
    let known = object.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.r#type == READY));
    let before = object.status.as_ref().and_then(|s| condition_status(&s.conditions, READY));
    let is_new = known.and_then(|c| c.reason.as_deref()) != Some(condition.reason.as_str());
    let (warning, reason) = match (before, condition.status, condition.progress) {
        (Some(ConditionStatus::False | ConditionStatus::Unknown), ConditionStatus::True, _) => {
            (false, "RuntimeReady")
        }
        (Some(ConditionStatus::True), ConditionStatus::False, _) => (true, "SeldonRuntimeNotReady"),
        (_, ConditionStatus::False, Progress::Stalled) if is_new => (true, "SeldonRuntimeNotReady"),
        _ => return None,
    };
    Some(EventDraft { warning, reason, message: condition.message.clone() })
}
