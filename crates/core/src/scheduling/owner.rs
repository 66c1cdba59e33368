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
    /// Seldon's operator, as the owner of a pipeline or an experiment: it deletes them without naming itself.
    SeldonOperator { namespace: String },
    /// A client that deletes an object and does not name itself: Seldon's operator or CLI.
    Unnamed,
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
            // One operator or the other manages a namespace: clients need not know which one.
            Self::Operator { namespace } | Self::SeldonOperator { namespace } => {
                write!(f, "operator:{namespace}")
            }
            Self::Unnamed => f.write_str("unnamed"),
            Self::Gateway => f.write_str("owner"),
            Self::Other(word) => f.write_str(word),
        }
    }
}

impl Owner {
    /// The text of a durable record, from which the same owner is parsed.
    pub fn record(&self) -> String {
        match self {
            Self::SeldonOperator { namespace } => format!("seldon-operator:{namespace}"),
            owner => owner.to_string(),
        }
    }
}

impl FromStr for Owner {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.trim().split_once(':') {
            Some(("file", path)) => Self::File(path.to_owned()),
            Some(("operator", namespace)) => Self::Operator { namespace: namespace.to_owned() },
            Some(("seldon-operator", namespace)) => Self::SeldonOperator { namespace: namespace.to_owned() },
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
    /// Without an owner.
    Service,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Server => "server",
            Self::Pipeline => "pipeline",
            Self::Experiment => "experiment",
            Self::Service => "service",
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
    let Some(owner) = owner else { return true };
    match by {
        Owner::Gateway => true,
        // Seldon's clients delete what Seldon's operator or a command line loaded, and nothing else.
        Owner::Unnamed => matches!(owner, Owner::Cli | Owner::SeldonOperator { .. }),
        by => owner == by || is_next_operator(owner, by),
    }
}

/// Whether one operator replaces the other one in its namespace.
fn is_next_operator(owner: &Owner, by: &Owner) -> bool {
    use Owner::{Operator, SeldonOperator};
    match (owner, by) {
        (Operator { namespace: a }, SeldonOperator { namespace: b })
        | (SeldonOperator { namespace: a }, Operator { namespace: b }) => a == b,
        _ => false,
    }
}

/// The owner after an allowed change.
pub(super) fn owner_after(owner: Option<Owner>, by: Owner) -> Option<Owner> {
    match owner {
        Some(owner) if !is_next_operator(&owner, &by) => Some(owner),
        _ => Some(by).filter(|by| !matches!(by, Owner::Gateway | Owner::Unnamed)),
    }
}
