//! What a schema cannot say about a spec: each rule once as CEL for the API server, once as Rust for everybody else.
//!
//! The two stand side by side in the [tables](table), with one message between them, and a test holds that they give
//! the same answers. A rule that walks a list needs a bound on it (`length(max = …)` at the field), and one that walks a
//! list in a list must be cheap: the API server refuses a definition whose rules could cost too much.

mod table;

#[cfg(test)]
pub(crate) mod tests;

use crate::{
    ExperimentSpec, ModelSpec, NameProblem, PipelineSpec, SeldonConfigSpec, SeldonRuntimeSpec,
    ServerConfigSpec, ServerSpec, check_name, name::check_object_name,
};
use serde_json::{Value, json};

/// Something that is refused: the field's path, and what is wrong with it and the remedy.
pub type Refusal = (String, String);

/// Where a rule is broken, and the values that its message names.
pub(crate) type Break = (String, Vec<String>);

/// A rule as the API server has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    /// Where the rule stands: `spec`, `spec.steps[].name`; empty for the whole object. It is `self` in CEL.
    pub(crate) at: &'static str,
    /// The field below that place which is to blame; empty for the place itself.
    pub(crate) field: &'static str,
    /// Holds when this is true.
    pub(crate) cel: &'static str,
    /// What is said when it does not hold; each `{}` is one of the values.
    pub(crate) says: &'static str,
    /// The values in the message, as CEL.
    pub(crate) values: &'static [&'static str],
    /// What excuses an object that broke the rule before it was there, as CEL over `oldSelf`; empty where Kubernetes sees
    /// to it: it does so for values that did not change, and a whole object always changes. Without an excuse not even a
    /// finalizer could be taken off such an object.
    pub(crate) excuse: &'static str,
}

/// A rule, and how it is checked here.
pub(crate) struct Rule<T: 'static> {
    pub(crate) text: Text,
    pub(crate) check: Check<T>,
}

/// Finds every place where a rule is broken.
pub(crate) enum Check<T: 'static> {
    /// The spec alone tells.
    Spec(fn(&T) -> Vec<Break>),
    /// The object's name is needed too.
    Object(fn(&str, &T) -> Vec<Break>),
}

impl Text {
    /// The rule as a schema carries it.
    pub(crate) fn validation(&self) -> Value {
        let mut rule = json!({ "rule": self.cel });
        if let Some(fields) = rule.as_object_mut() {
            if !self.excuse.is_empty() {
                let excused = format!("{} || {}", self.excuse, self.cel);
                fields.insert("rule".into(), excused.into());
                fields.insert("optionalOldSelf".into(), true.into());
            }
            if self.values.is_empty() {
                fields.insert("message".into(), self.says.into());
            } else {
                fields.insert("messageExpression".into(), self.message_expression().into());
            }
            if !self.field.is_empty() {
                fields.insert("fieldPath".into(), format!(".{}", self.field).into());
            }
        }
        rule
    }

    /// CEL for the message. By `format`, because the API server takes texts that are added up for endless.
    pub(crate) fn message_expression(&self) -> String {
        let says = self.says.replace('\\', "\\\\").replace('\'', "\\'");
        let says = says.replace('%', "%%").replace("{}", "%s");
        format!("'{says}'.format([{}])", self.values.join(", "))
    }

    /// The message with its values.
    fn message(&self, values: &[String]) -> String {
        let mut values = values.iter();
        let mut literals = self.says.split("{}");
        let mut message = literals.next().unwrap_or_default().to_owned();
        for literal in literals {
            message.push_str(values.next().map(String::as_str).unwrap_or_default());
            message.push_str(literal);
        }
        message
    }

    fn refusals(self, broken: Vec<Break>) -> impl Iterator<Item = Refusal> {
        broken.into_iter().map(move |(path, values)| (path, self.message(&values)))
    }
}

/// A spec with a table of rules.
pub(crate) trait Ruled: Sized + 'static {
    /// The table.
    const RULES: &'static [Rule<Self>];
    /// What the object's name must look like.
    const NAME: fn(&str) -> Result<(), NameProblem>;

    /// The rules as the API server has them.
    fn texts() -> Vec<Text> {
        Self::RULES.iter().map(|rule| rule.text).collect()
    }

    fn broken(&self) -> Vec<Refusal> {
        let of = |rule: &Rule<Self>| match rule.check {
            Check::Spec(find) => rule.text.refusals(find(self)).collect(),
            Check::Object(_) => Vec::new(),
        };
        Self::RULES.iter().flat_map(of).collect()
    }

    fn broken_named(&self, name: &str) -> Vec<Refusal> {
        let of = |rule: &Rule<Self>| match rule.check {
            Check::Spec(_) => Vec::new(),
            Check::Object(find) => rule.text.refusals(find(name, self)).collect(),
        };
        let named = Self::NAME(name).err().map(|p| ("metadata.name".to_owned(), p.to_string()));
        named
            .into_iter()
            .chain(self.broken())
            .chain(Self::RULES.iter().flat_map(of).collect::<Vec<_>>())
            .collect()
    }
}

macro_rules! ruled {
    ($($spec:ty: $table:expr, $name:expr;)*) => { $(
        impl Ruled for $spec {
            const RULES: &'static [Rule<Self>] = $table;
            const NAME: fn(&str) -> Result<(), NameProblem> = $name;
        }

        impl $spec {
            /// Every rule that the spec breaks, beyond what its schema says.
            pub fn rules(&self) -> Vec<Refusal> {
                self.broken()
            }

            /// Every rule that an object of this name with this spec breaks.
            pub fn rules_named(&self, name: &str) -> Vec<Refusal> {
                self.broken_named(name)
            }
        }
    )* };
}

ruled! {
    ModelSpec: table::MODEL, check_name;
    ServerSpec: table::SERVER, check_name;
    PipelineSpec: table::PIPELINE, check_name;
    ExperimentSpec: table::EXPERIMENT, check_object_name;
    SeldonRuntimeSpec: table::SELDON_RUNTIME, check_object_name;
    SeldonConfigSpec: table::SELDON_CONFIG, check_object_name;
    ServerConfigSpec: table::SERVER_CONFIG, check_object_name;
}
