//! Ownership of objects: only the owner may change one.

use std::{convert::Infallible, fmt, str::FromStr};

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
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Server => "server",
        })
    }
}

pub(super) fn may_change(owner: Option<&Owner>, by: &Owner) -> bool {
    *by == Owner::Gateway || owner.is_none_or(|owner| owner == by)
}

/// The owner after an allowed change.
pub(super) fn owner_after(owner: Option<Owner>, by: Owner) -> Option<Owner> {
    owner.or_else(|| (by != Owner::Gateway).then_some(by))
}
