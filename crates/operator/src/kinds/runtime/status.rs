//! What is reported of a runtime.

use super::components::Part;
use crate::{
    cluster::{Custom, Happening, SeldonRuntime},
    conditions::{Outlook, READY, Says, Truth, conditions, truth_of},
    workload::Refused,
};
use gantry_api::PlainStatus;
use gantry_core::mutant;
use k8s_openapi::jiff::Timestamp;

/// The condition of a component: the reference's name for those that it knows, and one of the same form for others.
pub(super) fn condition(component: &str) -> String {
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

/// What `Ready` says, from what the components say.
pub(super) fn ready(components: &[(Part, Says)], refused: Option<&Refused>) -> Says {
    if let Some(refused) = refused {
        return refused.says();
    }
    let waiting: Vec<String> = components
        .iter()
        .filter(|(_, says)| says.truth != Truth::True && !mutant::is("is_ready_without_components"))
        .map(|(part, says)| format!("{}: {}", part.name, says.message))
        .collect();
    if !waiting.is_empty() {
        return Says::new(false, "ComponentsNotReady", waiting.join("; "), Outlook::Passing);
    }
    let names: Vec<&str> = components.iter().map(|(part, _)| part.name.as_str()).collect();
    let message = match names.as_slice() {
        [] => "no component is wanted".to_owned(),
        [one] => format!("{one} is ready"),
        many => format!("{} are ready", many.join(", ")),
    };
    Says::new(true, "RuntimeReady", message, Outlook::Settled)
}

/// The whole status. Conditions of components that the runtime no longer has go.
pub(super) fn told(
    object: &Custom<SeldonRuntime>,
    components: &[(Part, Says)],
    ready: &Says,
    now: Timestamp,
) -> PlainStatus {
    let mut before = object.status.clone().unwrap_or_default();
    let named: Vec<(String, &Says)> =
        components.iter().map(|(part, says)| (condition(&part.name), says)).collect();
    let own: Vec<(&str, &Says)> = named.iter().map(|(name, says)| (name.as_str(), *says)).collect();
    before.conditions.retain(|c| {
        let is_of_component = c.r#type != READY && c.r#type.ends_with(READY);
        !is_of_component || own.iter().any(|(name, _)| *name == c.r#type)
    });
    PlainStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, &own, ready, object.generation(), now),
        annotations: before.annotations,
    }
}

/// An event where the truth changes, and where something new fails.
pub(super) fn news(object: &Custom<SeldonRuntime>, says: &Says) -> Option<Happening> {
    let known = object.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.r#type == READY));
    let before = object.status.as_ref().and_then(|s| truth_of(&s.conditions, READY));
    let is_new = known.and_then(|c| c.reason.as_deref()) != Some(says.reason.as_str());
    let (warning, reason) = match (before, says.truth, says.outlook) {
        (Some(Truth::False | Truth::Unknown), Truth::True, _) => (false, "RuntimeReady"),
        (Some(Truth::True), Truth::False, _) => (true, "SeldonRuntimeNotReady"),
        (_, Truth::False, Outlook::Final) if is_new => (true, "SeldonRuntimeNotReady"),
        _ => return None,
    };
    Some(Happening { warning, reason, message: says.message.clone() })
}
