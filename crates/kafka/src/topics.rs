//! Names of topics and consumer groups.

use std::fmt;

/// A prefix or namespace that cannot be part of a topic's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {value:?} cannot be part of a topic's name: use letters, digits, dots, underscores and dashes"
)]
pub struct InvalidName {
    pub what: &'static str,
    pub value: String,
}

/// Kafka's limit for the name of a topic.
pub const MAX_NAME: usize = 249;

/// `<prefix>.<namespace>.(model|pipeline).<name>.(inputs|outputs)`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
    namespace: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Inputs,
    Outputs,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inputs => "inputs",
            Self::Outputs => "outputs",
        })
    }
}

impl Topics {
    /// An empty prefix is `seldon`, an empty namespace `default`.
    pub fn new(prefix: &str, namespace: &str) -> Result<Self, InvalidName> {
        Ok(Self {
            prefix: valid("topicPrefix", prefix, "seldon")?,
            namespace: valid("namespace", namespace, "default")?,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn pipeline(&self, name: &str, side: Side) -> String {
        let Self { prefix, namespace } = self;
        format!("{prefix}.{namespace}.pipeline.{name}.{side}")
    }

    pub fn model(&self, name: &str, side: Side) -> String {
        let Self { prefix, namespace } = self;
        format!("{prefix}.{namespace}.model.{name}.{side}")
    }

    /// Errors of all pipelines, and records that cannot be processed.
    pub fn errors(&self) -> String {
        let Self { prefix, namespace } = self;
        format!("{prefix}.{namespace}.errors.errors")
    }

    /// The consumer group of a pipeline: `[<prefix>-]<namespace>-seldon-dataflow-<pipeline>`. All versions share it, so that
    /// a new one continues where the old one ended.
    pub fn group(&self, prefix: &str, pipeline: &str) -> String {
        let namespace = &self.namespace;
        if prefix.is_empty() {
            return format!("{namespace}-seldon-dataflow-{pipeline}");
        }
        format!("{prefix}-{namespace}-seldon-dataflow-{pipeline}")
    }
}

fn valid(what: &'static str, value: &str, default: &str) -> Result<String, InvalidName> {
    if value.is_empty() {
        return Ok(default.to_owned());
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if value.chars().all(is_valid) && value.len() <= MAX_NAME / 2 {
        return Ok(value.to_owned());
    }
    Err(InvalidName { what, value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_seldon() {
        let topics = Topics::new("", "").unwrap();
        assert_eq!(topics.pipeline("checkout", Side::Inputs), "seldon.default.pipeline.checkout.inputs");
        assert_eq!(topics.pipeline("checkout", Side::Outputs), "seldon.default.pipeline.checkout.outputs");
        assert_eq!(topics.model("risk", Side::Inputs), "seldon.default.model.risk.inputs");
        assert_eq!(topics.errors(), "seldon.default.errors.errors");
        assert_eq!(topics.group("", "checkout"), "default-seldon-dataflow-checkout");
        let topics = Topics::new("team.a", "ml").unwrap();
        assert_eq!(topics.model("risk", Side::Outputs), "team.a.ml.model.risk.outputs");
        assert_eq!(topics.group("x", "p"), "x-ml-seldon-dataflow-p");
    }

    #[test]
    fn invalid_prefix_is_rejected() {
        for prefix in ["a b", "a/b", "ü", &"x".repeat(200)] {
            assert!(Topics::new(prefix, "").is_err(), "{prefix}");
            assert!(Topics::new("", prefix).is_err(), "{prefix}");
        }
    }
}
