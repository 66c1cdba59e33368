//! Validation rules beyond the schema: each as CEL for the API server and as Rust for the CLI, scheduler and operator.
//!
//! Both forms share one message in [`rules`], and a test checks that they agree. A rule that iterates over a list needs
//! a bound on it (`length(max = …)` on the field), and one over nested lists must be cheap: the API server rejects CRDs
//! whose estimated rule cost is too high.

mod rules;

#[cfg(test)]
pub(crate) mod tests;

use crate::{
    AlgorithmSpec, ExperimentSpec, InvalidName, ModelSpec, PipelineSpec, SeldonConfigSpec, SeldonRuntimeSpec,
    ServerConfigSpec, ServerSpec, algorithm, check_name, kserve,
    kserve::{
        ClusterStorageContainerSpec, InferenceGraphSpec, InferenceServiceSpec, ServingRuntimeSpec,
        TrainedModelSpec,
    },
    name::check_object_name,
    pipeline, rollout_policy,
    rollout_policy::RolloutPolicySpec,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A field path and its error with remedy.
pub type FieldError = (String, String);

/// A field path and the values for the placeholders of the rule's message.
pub(crate) type Violation = (String, Vec<String>);

/// The CEL form of a rule, for `x-kubernetes-validations`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CelRule {
    /// Location of the rule, such as `spec.steps[].name`; empty for the whole object. It is `self` in CEL.
    pub(crate) at: &'static str,
    /// The field below `at` that is reported; empty for `at` itself.
    pub(crate) field: &'static str,
    pub(crate) rule: &'static str,
    /// Each `{}` is replaced by one of the values.
    pub(crate) message: &'static str,
    /// The values of the message, as CEL.
    pub(crate) values: &'static [&'static str],
    /// CEL over `oldSelf` that exempts objects stored before the rule existed; empty where the API server ratchets by
    /// itself, which it does for unchanged values but not for the whole object. Without it, not even a finalizer could
    /// be removed from such an object.
    pub(crate) ratchet: &'static str,
}

/// A rule in both forms.
pub(crate) struct Rule<T: 'static> {
    pub(crate) cel: CelRule,
    pub(crate) check: Check<T>,
}

/// The Rust form of a rule: returns all violations.
pub(crate) enum Check<T: 'static> {
    Spec(fn(&T) -> Vec<Violation>),
    /// Also needs the object's name.
    Object(fn(&str, &T) -> Vec<Violation>),
    /// `CHECK_WHOLE`, which also reports the position. CEL has the time for some of its checks, and for small objects only.
    Whole,
}

impl CelRule {
    /// The entry in `x-kubernetes-validations`.
    pub(crate) fn validation(&self) -> Value {
        let mut rule = json!({ "rule": self.rule });
        if let Some(fields) = rule.as_object_mut() {
            if !self.ratchet.is_empty() {
                let rule = format!("{} || {}", self.ratchet, self.rule);
                fields.insert("rule".into(), rule.into());
                fields.insert("optionalOldSelf".into(), true.into());
            }
            if self.values.is_empty() {
                fields.insert("message".into(), self.message.into());
            } else {
                fields.insert("messageExpression".into(), self.message_expression().into());
            }
            if !self.field.is_empty() {
                fields.insert("fieldPath".into(), format!(".{}", self.field).into());
            }
        }
        rule
    }

    /// CEL for the message. Uses `format`: the API server estimates concatenation as unbounded.
    pub(crate) fn message_expression(&self) -> String {
        let message = self.message.replace('\\', "\\\\").replace('\'', "\\'");
        let message = message.replace('%', "%%").replace("{}", "%s");
        format!("'{message}'.format([{}])", self.values.join(", "))
    }

    fn format_message(&self, values: &[String]) -> String {
        let mut values = values.iter();
        let mut literals = self.message.split("{}");
        let mut message = literals.next().unwrap_or_default().to_owned();
        for literal in literals {
            message.push_str(values.next().map(String::as_str).unwrap_or_default());
            message.push_str(literal);
        }
        message
    }

    fn field_errors(self, violations: Vec<Violation>) -> impl Iterator<Item = FieldError> {
        violations.into_iter().map(move |(path, values)| (path, self.format_message(&values)))
    }
}

/// A spec with validation rules.
pub(crate) trait Validate: Sized + 'static {
    const RULES: &'static [Rule<Self>];
    const CHECK_NAME: fn(&str) -> Result<(), InvalidName>;
    /// Checks that CEL cannot express for all objects, for a spec that follows all other rules.
    const CHECK_WHOLE: fn(&str, &Self) -> Vec<FieldError>;

    fn cel_rules() -> Vec<CelRule> {
        Self::RULES.iter().map(|rule| rule.cel).collect()
    }

    fn validate(&self) -> Vec<FieldError> {
        let check = |rule: &Rule<Self>| match rule.check {
            Check::Spec(find) => rule.cel.field_errors(find(self)).collect(),
            Check::Object(_) | Check::Whole => Vec::new(),
        };
        Self::RULES.iter().flat_map(check).collect()
    }

    fn validate_named(&self, name: &str) -> Vec<FieldError> {
        let check = |rule: &Rule<Self>| match rule.check {
            Check::Spec(_) | Check::Whole => Vec::new(),
            Check::Object(find) => rule.cel.field_errors(find(name, self)).collect(),
        };
        let name_error = Self::CHECK_NAME(name).err().map(|p| ("metadata.name".to_owned(), p.to_string()));
        let errors: Vec<FieldError> = name_error
            .into_iter()
            .chain(self.validate())
            .chain(Self::RULES.iter().flat_map(check).collect::<Vec<_>>())
            .collect();
        if errors.is_empty() { Self::CHECK_WHOLE(name, self) } else { errors }
    }
}

/// Annotations that are neither `true` nor `false`, of those that have to be.
pub fn switch_errors(annotations: &BTreeMap<String, String>, switches: &[&str]) -> Vec<FieldError> {
    let error = |name: &&str| {
        let value = annotations.get(*name).filter(|value| !["true", "false"].contains(&value.as_str()))?;
        let got = if value.chars().count() > 40 { "a longer text" } else { value };
        let message = format!("must be \"true\" or \"false\", got {got:?}");
        Some((format!("metadata.annotations.{name}"), message))
    };
    switches.iter().filter_map(error).collect()
}

macro_rules! validate_impls {
    ($($spec:ty: $rules:expr, $name:expr, $whole:expr;)*) => { $(
        impl Validate for $spec {
            const RULES: &'static [Rule<Self>] = $rules;
            const CHECK_NAME: fn(&str) -> Result<(), InvalidName> = $name;
            const CHECK_WHOLE: fn(&str, &Self) -> Vec<FieldError> = $whole;
        }

        impl $spec {
            /// Validation errors beyond the schema.
            pub fn validate(&self) -> Vec<FieldError> {
                Validate::validate(self)
            }

            /// Validation errors of an object with this name and spec.
            pub fn validate_named(&self, name: &str) -> Vec<FieldError> {
                Validate::validate_named(self, name)
            }
        }
    )* };
}

validate_impls! {
    ModelSpec: rules::MODEL, check_name, |_, _| Vec::new();
    ServerSpec: rules::SERVER, check_name, |_, _| Vec::new();
    PipelineSpec: rules::PIPELINE, check_name, pipeline::graph_errors;
    ExperimentSpec: rules::EXPERIMENT, check_object_name, |_, _| Vec::new();
    SeldonRuntimeSpec: rules::SELDON_RUNTIME, check_object_name, |_, _| Vec::new();
    SeldonConfigSpec: rules::SELDON_CONFIG, check_object_name, |_, _| Vec::new();
    ServerConfigSpec: rules::SERVER_CONFIG, check_object_name, |_, _| Vec::new();
    InferenceServiceSpec: kserve::INFERENCE_SERVICE, check_name, kserve::inference_service_errors;
    ServingRuntimeSpec: kserve::SERVING_RUNTIME, check_object_name, kserve::serving_runtime_errors;
    ClusterStorageContainerSpec: kserve::CLUSTER_STORAGE_CONTAINER, check_object_name, kserve::storage_container_errors;
    TrainedModelSpec: kserve::TRAINED_MODEL, check_object_name, kserve::trained_model_errors;
    RolloutPolicySpec: rollout_policy::ROLLOUT_POLICY, check_name, rollout_policy::rollout_policy_errors;
    InferenceGraphSpec: kserve::INFERENCE_GRAPH, check_name, kserve::inference_graph_errors;
    AlgorithmSpec: algorithm::ALGORITHM, check_name, algorithm::algorithm_errors;
}
