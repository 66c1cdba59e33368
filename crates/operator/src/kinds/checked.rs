//! Whether an object says something that can be done, and the status of those that have no figures of their own.

use crate::{
    cluster::{
        Custom, CustomKind, Experiment, Model, Pipeline, SeldonConfig, SeldonRuntime, Server, ServerConfig,
    },
    conditions::{Outlook, Says, conditions},
};
use gantry_api::{PlainStatus, Refusal};
use k8s_openapi::jiff::Timestamp;

/// A kind whose specs have rules.
pub trait Checked: CustomKind {
    /// Every rule that an object of this name breaks.
    fn broken(name: &str, spec: &Self::Spec) -> Vec<Refusal>;
}

macro_rules! checked {
    ($($kind:ty),*) => {$(
        impl Checked for $kind {
            fn broken(name: &str, spec: &Self::Spec) -> Vec<Refusal> {
                spec.rules_named(name)
            }
        }
    )*};
}

checked!(Model, Server, ServerConfig, SeldonRuntime, SeldonConfig, Pipeline, Experiment);

/// What is asked, if it can be done; else what is wrong with it, all of it.
pub(super) fn check<K: Checked>(object: &Custom<K>) -> Result<&K::Spec, Says> {
    let invalid = |message: String| Says::new(false, "InvalidSpec", message, Outlook::Final);
    let spec = object.spec.as_ref().map_err(|e| invalid(format!("spec cannot be read: {e}")))?;
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let problems = K::broken(name, spec);
    if problems.is_empty() {
        return Ok(spec);
    }
    let sentences: Vec<String> = problems.iter().map(|(path, message)| format!("{path} {message}")).collect();
    Err(invalid(sentences.join("; ")))
}

/// The whole status of an object without figures.
pub(super) fn told<K>(object: &Custom<K>, own: &[(&str, &Says)], ready: &Says, now: Timestamp) -> PlainStatus
where
    K: CustomKind<Status = PlainStatus>,
{
    let before = object.status.clone().unwrap_or_default();
    PlainStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(&before.conditions, own, ready, object.generation(), now),
        annotations: before.annotations,
    }
}
