//! Object references on the command line: `model iris fraud`, `model/iris server/builtin`.

use crate::error::CommandError;
use gantry_api::{Kind, nearest};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectRef {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", kind_name(self.kind), self.name)
    }
}

/// The kind as printed and as accepted in `KIND/NAME`.
pub(crate) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "model",
        Kind::Server => "server",
        Kind::Pipeline => "pipeline",
        Kind::Experiment => "experiment",
        Kind::RolloutPolicy => "rolloutpolicy",
    }
}

pub(crate) const fn kind_plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "models",
        Kind::Server => "servers",
        Kind::Pipeline => "pipelines",
        Kind::Experiment => "experiments",
        Kind::RolloutPolicy => "rolloutpolicies",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Kinds(Vec<Kind>),
    Named(Vec<ObjectRef>),
}

/// All kinds, in the order in which they are printed.
const KINDS: [Kind; 5] = [Kind::Model, Kind::Server, Kind::Pipeline, Kind::Experiment, Kind::RolloutPolicy];

/// Parses `KIND`, `KIND NAME…` or `KIND/NAME…`; no arguments select everything.
pub(crate) fn select(args: &[String]) -> Result<Selection, CommandError> {
    let Some((first, rest)) = args.split_first() else {
        return Ok(Selection::Kinds(KINDS.into()));
    };
    if first.contains('/') {
        return args.iter().map(|arg| parse(arg)).collect::<Result<_, _>>().map(Selection::Named);
    }
    if first == "all" && rest.is_empty() {
        return Ok(Selection::Kinds(KINDS.into()));
    }
    let kinds = first.split(',').map(parse_kind).collect::<Result<Vec<_>, _>>()?;
    if rest.is_empty() {
        return Ok(Selection::Kinds(kinds));
    }
    let [kind] = kinds.as_slice() else {
        return Err(CommandError::usage(format!("{first} names several kinds: write names as KIND/NAME")));
    };
    if let Some(mixed) = rest.iter().find(|n| n.contains('/')) {
        return Err(CommandError::usage(format!(
            "{mixed} cannot follow {first}: write {first} NAME…, or KIND/NAME for each object"
        )));
    }
    Ok(Selection::Named(rest.iter().map(|name| ObjectRef { kind: *kind, name: name.clone() }).collect()))
}

/// Parses `KIND NAME…` or `KIND/NAME…`, with at least one name.
pub(crate) fn named(args: &[String]) -> Result<Vec<ObjectRef>, CommandError> {
    match select(args)? {
        Selection::Named(references) => Ok(references),
        Selection::Kinds(_) => {
            let kind = args.first().and_then(|arg| Kind::from_word(arg)).map_or("model", kind_name);
            Err(CommandError::usage(format!("name missing: write {kind}/NAME")))
        }
    }
}

fn parse(text: &str) -> Result<ObjectRef, CommandError> {
    match text.split_once('/') {
        Some((kind, name)) if !name.is_empty() && !name.contains('/') => {
            Ok(ObjectRef { kind: parse_kind(kind)?, name: name.to_owned() })
        }
        _ => Err(CommandError::usage(format!(
            "\"{}\" is not KIND/NAME, such as model/iris",
            text.escape_debug()
        ))),
    }
}

fn parse_kind(text: &str) -> Result<Kind, CommandError> {
    Kind::from_word(text).ok_or_else(|| {
        let shown = text.escape_debug();
        let words = KINDS.map(kind_name);
        let plurals = KINDS.map(kind_plural);
        let hint = match nearest(text, words.into_iter().chain(plurals)) {
            Some(near) => format!("Did you mean {near}?"),
            None => format!("For a model, write model/{shown}."),
        };
        let list = "model, server, pipeline, experiment and rolloutpolicy";
        CommandError::usage(format!("\"{shown}\" is not a kind: kinds are {list}. {hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        match select(&args) {
            Ok(Selection::Kinds(kinds)) => format!("all {kinds:?}"),
            Ok(Selection::Named(list)) => list.iter().map(ObjectRef::to_string).collect::<Vec<_>>().join(" "),
            Err(error) => error.message,
        }
    }

    #[test]
    fn select_parses_kinds_and_names() {
        for (args, expected) in [
            (&[][..], "all [Model, Server, Pipeline, Experiment, RolloutPolicy]"),
            (&["all"], "all [Model, Server, Pipeline, Experiment, RolloutPolicy]"),
            (&["models"], "all [Model]"),
            (&["models,servers"], "all [Model, Server]"),
            (&["mlm", "iris", "fraud"], "model/iris model/fraud"),
            (&["model/iris", "servers/builtin"], "model/iris server/builtin"),
            (&["mlp", "a"], "pipeline/a"),
            (&["experiments"], "all [Experiment]"),
            (&["rp", "careful"], "rolloutpolicy/careful"),
            (
                &["pipelnes"],
                "\"pipelnes\" is not a kind: kinds are model, server, pipeline, experiment and rolloutpolicy. Did you mean pipelines?",
            ),
            (
                &["modle"],
                "\"modle\" is not a kind: kinds are model, server, pipeline, experiment and rolloutpolicy. Did you mean model?",
            ),
            (
                &["iris"],
                "\"iris\" is not a kind: kinds are model, server, pipeline, experiment and rolloutpolicy. For a model, write model/iris.",
            ),
            (&["model/"], "\"model/\" is not KIND/NAME, such as model/iris"),
            (&["model/a/b"], "\"model/a/b\" is not KIND/NAME, such as model/iris"),
            (&["model/a", "b"], "\"b\" is not KIND/NAME, such as model/iris"),
            (
                &["model", "server/b"],
                "server/b cannot follow model: write model NAME…, or KIND/NAME for each object",
            ),
            (&["model,server", "b"], "model,server names several kinds: write names as KIND/NAME"),
        ] {
            assert_eq!(selected(args), expected, "{args:?}");
        }
    }
}
