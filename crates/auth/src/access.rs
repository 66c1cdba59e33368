//! What a credential may do, and with which objects.

use serde::Deserialize;

/// A right in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Right {
    /// Requests of models, pipelines, experiments and services.
    Infer,
    /// Metadata, statistics, readiness, lists.
    Metadata,
    /// Load and unload.
    Repository,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Infer,
    Metadata,
    /// Readiness of one object: clients that infer poll it.
    Ready,
    Repository,
}

impl Action {
    const fn permitted_by(self, right: Right) -> bool {
        matches!(
            (self, right),
            (Self::Infer | Self::Ready, Right::Infer)
                | (Self::Metadata | Self::Ready, Right::Metadata)
                | (Self::Repository, Right::Repository)
        )
    }

    /// The right that the message about a refusal names.
    pub(crate) const fn right(self) -> &'static str {
        match self {
            Self::Infer => "infer",
            Self::Metadata | Self::Ready => "metadata",
            Self::Repository => "repository",
        }
    }
}

/// The object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    Model(&'a str),
    Pipeline(&'a str),
    Experiment(&'a str),
    /// An InferenceService or InferenceGraph.
    Service {
        namespace: &'a str,
    },
    /// A model that serves an InferenceService, in a request to that service.
    ServiceModel {
        namespace: &'a str,
        model: &'a str,
    },
    /// All models, in a response that cannot be filtered.
    AllModels,
}

/// A name, or the start of one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(Box<str>),
    Prefix(Box<str>),
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let shown = || text.chars().take(100).collect::<String>();
        match text.strip_suffix('*') {
            _ if text.is_empty() => Err("an empty name matches nothing: remove it".to_owned()),
            Some(prefix) if !prefix.contains('*') => Ok(Self::Prefix(prefix.into())),
            None if !text.contains('*') => Ok(Self::Exact(text.into())),
            _ => Err(format!("{:?} has a * before its end: use a name, or the start of one and *", shown())),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *name,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
        }
    }
}

/// `allow` of a key or a grant.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Allow {
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    pipelines: Vec<String>,
    #[serde(default)]
    experiments: Vec<String>,
    #[serde(default)]
    namespaces: Vec<String>,
    rights: Option<Vec<Right>>,
}

/// The rights on objects that one entry of the configuration grants.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    models: Vec<Pattern>,
    pipelines: Vec<Pattern>,
    experiments: Vec<Pattern>,
    namespaces: Vec<Pattern>,
    rights: Vec<Right>,
}

impl Access {
    pub(crate) fn new(allow: &Allow) -> Result<Self, String> {
        let patterns = |field: &str, names: &[String]| -> Result<Vec<Pattern>, String> {
            names.iter().map(|name| Pattern::parse(name).map_err(|e| format!("{field}: {e}"))).collect()
        };
        let access = Self {
            models: patterns("models", &allow.models)?,
            pipelines: patterns("pipelines", &allow.pipelines)?,
            experiments: patterns("experiments", &allow.experiments)?,
            namespaces: patterns("namespaces", &allow.namespaces)?,
            rights: allow.rights.clone().unwrap_or_else(|| vec![Right::Infer, Right::Metadata]),
        };
        let lists = [&access.models, &access.pipelines, &access.experiments, &access.namespaces];
        if lists.iter().all(|list| list.is_empty()) {
            return Err("permits no object: add models, pipelines, experiments or namespaces".to_owned());
        }
        if access.rights.is_empty() {
            return Err("rights is empty: use infer, metadata or repository".to_owned());
        }
        Ok(access)
    }

    pub(crate) fn has_right(&self, action: Action) -> bool {
        self.rights.iter().any(|right| action.permitted_by(*right))
    }

    pub(crate) fn allows(&self, action: Action, target: Target<'_>) -> bool {
        let any = |patterns: &[Pattern], name: &str| patterns.iter().any(|p| p.matches(name));
        self.has_right(action)
            && match target {
                Target::Model(name) => any(&self.models, name),
                Target::Pipeline(name) => any(&self.pipelines, name),
                Target::Experiment(name) => any(&self.experiments, name),
                Target::Service { namespace } => any(&self.namespaces, namespace),
                Target::ServiceModel { namespace, model } => {
                    any(&self.namespaces, namespace) || any(&self.models, model)
                }
                Target::AllModels => self.models.iter().any(|p| *p == Pattern::Prefix("".into())),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Action::{Infer, Metadata, Ready, Repository};
    use proptest::prelude::*;

    fn access(yaml: &str) -> Result<Access, String> {
        Access::new(&serde_saphyr::from_str(yaml).unwrap())
    }

    #[test]
    fn allows_lists_targets_and_rights() {
        let own = access("{models: [iris, fraud-*], pipelines: [join], namespaces: [team-*]}").unwrap();
        let infer = access("{models: [iris], rights: [infer]}").unwrap();
        let look = access("{models: ['*'], experiments: [half], rights: [metadata]}").unwrap();
        let load = access("{models: [iris], rights: [repository]}").unwrap();
        for (access, action, target, expected) in [
            (&own, Infer, Target::Model("iris"), true),
            (&own, Infer, Target::Model("iris2"), false),
            (&own, Infer, Target::Model("Iris"), false),
            (&own, Infer, Target::Model("fraud-eu"), true),
            (&own, Infer, Target::Model("fraud-"), true),
            (&own, Infer, Target::Model("fraud"), false),
            (&own, Metadata, Target::Model("iris"), true),
            (&own, Repository, Target::Model("iris"), false),
            (&own, Infer, Target::Model("join"), false),
            (&own, Infer, Target::Pipeline("join"), true),
            (&own, Infer, Target::Pipeline("iris"), false),
            (&own, Infer, Target::Experiment("join"), false),
            (&own, Infer, Target::Service { namespace: "team-a" }, true),
            (&own, Infer, Target::Service { namespace: "iris" }, false),
            (&own, Infer, Target::ServiceModel { namespace: "team-a", model: "other" }, true),
            (&own, Infer, Target::ServiceModel { namespace: "prod", model: "iris" }, true),
            (&own, Infer, Target::ServiceModel { namespace: "prod", model: "other" }, false),
            (&own, Metadata, Target::AllModels, false),
            (&infer, Ready, Target::Model("iris"), true),
            (&infer, Metadata, Target::Model("iris"), false),
            (&look, Metadata, Target::Model("any"), true),
            (&look, Ready, Target::Experiment("half"), true),
            (&look, Infer, Target::Model("any"), false),
            (&look, Infer, Target::Experiment("half"), false),
            (&look, Metadata, Target::AllModels, true),
            (&load, Repository, Target::Model("iris"), true),
            (&load, Infer, Target::Model("iris"), false),
            (&load, Ready, Target::Model("iris"), false),
        ] {
            assert_eq!(access.allows(action, target), expected, "{access:?} {action:?} {target:?}");
        }
    }

    #[test]
    fn invalid_lists_name_the_field_and_the_remedy() {
        for (yaml, expected) in [
            ("{}", "permits no object: add models"),
            ("{models: []}", "permits no object"),
            ("{models: ['']}", "models: an empty name"),
            ("{pipelines: ['a*b']}", "pipelines: \"a*b\" has a * before its end"),
            ("{models: ['**']}", "before its end"),
            ("{models: [a], rights: []}", "rights is empty"),
        ] {
            let error = access(yaml).unwrap_err();
            assert!(error.contains(expected), "{yaml}: {error}");
        }
    }

    proptest! {
        #[test]
        fn prefix_matches_exactly_the_names_that_start_with_it(prefix in "[a-c]{0,3}", name in "[a-c]{0,5}") {
            let pattern = Pattern::parse(&format!("{prefix}*")).unwrap();
            prop_assert_eq!(pattern.matches(&name), name.starts_with(&prefix));
        }

        #[test]
        fn pattern_without_star_matches_only_itself(text in "[a-c.]{1,4}", name in "[a-c.]{0,5}") {
            prop_assert_eq!(Pattern::parse(&text).unwrap().matches(&name), text == name);
        }
    }
}
