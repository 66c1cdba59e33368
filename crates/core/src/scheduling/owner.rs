//! Ownership of objects: only the owner may change one.

use super::command::Rejection;
use std::{convert::Infallible, fmt, str::FromStr, sync::Arc};

/// The origin of a change. The first named origin owns the object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A watched manifest, by path.
    File(String),
    /// The command line.
    Cli,
    /// The Kubernetes operator.
    Operator { namespace: String },
    /// A gateway forwarding a model repository call; it acts for the owner.
    Gateway,
    /// Any other client, by its own name.
    Other(String),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{path}"),
            Self::Cli => f.write_str("cli"),
            Self::Operator { namespace } => write!(f, "operator:{namespace}"),
            Self::Gateway => f.write_str("owner"),
            Self::Other(word) => f.write_str(word),
        }
    }
}

impl FromStr for Owner {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.trim().split_once(':') {
            Some(("file", path)) => Self::File(path.to_owned()),
            Some(("operator", namespace)) => Self::Operator { namespace: namespace.to_owned() },
            _ => match text.trim() {
                "cli" => Self::Cli,
                "owner" => Self::Gateway,
                "operator" => Self::Operator { namespace: String::new() },
                word => Self::Other(word.to_owned()),
            },
        })
    }
}

/// Kinds of owned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Model,
    Server,
    Pipeline,
    Experiment,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Server => "server",
            Self::Pipeline => "pipeline",
            Self::Experiment => "experiment",
        })
    }
}

/// Rejects a change by another than the owner.
pub(super) fn check_owner(
    kind: Kind,
    name: &Arc<str>,
    owner: Option<&Owner>,
    generation: Option<i64>,
    by: &Owner,
    delete: bool,
) -> Result<(), Rejection> {
    match owner {
        Some(owner) if !may_change(Some(owner), by) => {
            Err(Rejection::Owned { kind, name: name.clone(), owner: owner.clone(), generation, delete })
        }
        _ => Ok(()),
    }
}

/// Rejects a late load. A recreated object starts again at generation 1: its sender replaces the newer generation
/// knowingly.
pub(super) fn check_generation(
    kind: Kind,
    name: &Arc<str>,
    known: Option<i64>,
    sent: Option<i64>,
    replaces: Option<i64>,
) -> Result<(), Rejection> {
    match (known, sent, replaces) {
        (Some(known), Some(sent), Some(replaces)) if sent < known && replaces != known => {
            Err(Rejection::NewerGeneration { kind, name: name.clone(), known, sent })
        }
        _ => Ok(()),
    }
}

pub(super) fn may_change(owner: Option<&Owner>, by: &Owner) -> bool {
    *by == Owner::Gateway || owner.is_none_or(|owner| owner == by)
}

/// The owner after an allowed change.
pub(super) fn owner_after(owner: Option<Owner>, by: Owner) -> Option<Owner> {
    owner.or_else(|| (by != Owner::Gateway).then_some(by))
}
