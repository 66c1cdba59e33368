//! Who manages an object, and so may change it.

use std::{convert::Infallible, fmt, str::FromStr};

/// Who asks for a change. An object belongs to the first that named itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// A manifest that is followed: its path.
    File(String),
    /// Somebody at a command line.
    Cli,
    /// The operator of a Kubernetes cluster.
    Operator {
        /// The namespace that the object is in.
        namespace: String,
    },
    /// A gateway that passes on a call to its model repository: it acts for the owner, whoever that is.
    Gateway,
    /// Somebody else, by their own word.
    Other(String),
}

impl fmt::Display for Manager {
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

impl FromStr for Manager {
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

/// The kinds of objects that have a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A model.
    Model,
    /// A server.
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

/// Whether somebody may change what belongs to somebody.
pub(super) fn may_change(owner: Option<&Manager>, by: &Manager) -> bool {
    *by == Manager::Gateway || owner.is_none_or(|owner| owner == by)
}

/// The owner after a change that was allowed.
pub(super) fn owner_after(owner: Option<Manager>, by: Manager) -> Option<Manager> {
    owner.or_else(|| (by != Manager::Gateway).then_some(by))
}
