//! How people name objects: `model iris fraud`, `model/iris server/builtin`.

use crate::failure::Failure;
use gantry_api::{Kind, nearest};
use std::fmt;

/// One object by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) kind: Kind,
    pub(crate) name: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", word(self.kind), self.name)
    }
}

/// A kind as commands print it.
pub(crate) const fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "model",
        Kind::Server => "server",
    }
}

/// What a list of words selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All objects of these kinds.
    Kinds(Vec<Kind>),
    /// These objects.
    Named(Vec<Reference>),
}

/// Reads `KIND`, `KIND NAME…` or `KIND/NAME…`.
pub(crate) fn select(words: &[String]) -> Result<Selection, Failure> {
    let Some((first, rest)) = words.split_first() else {
        return Ok(Selection::Kinds(vec![Kind::Model, Kind::Server]));
    };
    if first.contains('/') {
        return words.iter().map(|w| one(w)).collect::<Result<_, _>>().map(Selection::Named);
    }
    if first == "all" && rest.is_empty() {
        return Ok(Selection::Kinds(vec![Kind::Model, Kind::Server]));
    }
    let kinds = first.split(',').map(kind).collect::<Result<Vec<_>, _>>()?;
    if rest.is_empty() {
        return Ok(Selection::Kinds(kinds));
    }
    let [kind] = kinds.as_slice() else {
        return Err(Failure::usage(format!("{first} are several kinds: write names as KIND/NAME")));
    };
    if let Some(mixed) = rest.iter().find(|n| n.contains('/')) {
        return Err(Failure::usage(format!(
            "{mixed} cannot follow {first}: write {first} and names, or KIND/NAME for each"
        )));
    }
    Ok(Selection::Named(rest.iter().map(|name| Reference { kind: *kind, name: name.clone() }).collect()))
}

/// Reads `KIND NAME…` or `KIND/NAME…`: at least one name.
pub(crate) fn named(words: &[String]) -> Result<Vec<Reference>, Failure> {
    match select(words)? {
        Selection::Named(references) => Ok(references),
        Selection::Kinds(_) => {
            let kind = words.first().and_then(|w| Kind::from_word(w)).map_or("model", word);
            Err(Failure::usage(format!("a name is missing: write {kind}/NAME")))
        }
    }
}

fn one(text: &str) -> Result<Reference, Failure> {
    match text.split_once('/') {
        Some((word, name)) if !name.is_empty() && !name.contains('/') => {
            Ok(Reference { kind: kind(word)?, name: name.to_owned() })
        }
        _ => Err(Failure::usage(format!("\"{}\" is not KIND/NAME, such as model/iris", text.escape_debug()))),
    }
}

fn kind(word: &str) -> Result<Kind, Failure> {
    Kind::from_word(word).ok_or_else(|| {
        let shown = word.escape_debug();
        let hint = match nearest(word, ["model", "models", "server", "servers"]) {
            Some(near) => format!("Did you mean {near}?"),
            None => format!("For a model of that name, write model/{shown}."),
        };
        Failure::usage(format!("\"{shown}\" is not a kind: kinds are model and server. {hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|&w| w.to_owned()).collect();
        match select(&words) {
            Ok(Selection::Kinds(kinds)) => format!("all {kinds:?}"),
            Ok(Selection::Named(list)) => list.iter().map(Reference::to_string).collect::<Vec<_>>().join(" "),
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn words_select_objects() {
        for (words, expected) in [
            (&[][..], "all [Model, Server]"),
            (&["all"], "all [Model, Server]"),
            (&["models"], "all [Model]"),
            (&["models,servers"], "all [Model, Server]"),
            (&["mlm", "iris", "fraud"], "model/iris model/fraud"),
            (&["model/iris", "servers/builtin"], "model/iris server/builtin"),
            (&["modle"], "\"modle\" is not a kind: kinds are model and server. Did you mean model?"),
            (
                &["iris"],
                "\"iris\" is not a kind: kinds are model and server. For a model of that name, write model/iris.",
            ),
            (&["model/"], "\"model/\" is not KIND/NAME, such as model/iris"),
            (&["model/a/b"], "\"model/a/b\" is not KIND/NAME, such as model/iris"),
            (&["model/a", "b"], "\"b\" is not KIND/NAME, such as model/iris"),
            (
                &["model", "server/b"],
                "server/b cannot follow model: write model and names, or KIND/NAME for each",
            ),
            (&["model,server", "b"], "model,server are several kinds: write names as KIND/NAME"),
        ] {
            assert_eq!(said(words), expected, "{words:?}");
        }
    }
}
