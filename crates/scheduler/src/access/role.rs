//! The role of a caller, from the URIs of its certificate.

use gantry_core::scheduling::{Owner, ReplicaId};
use gantry_tls::{Peer, PeerCertificate};
use std::{fmt, str::FromStr};

/// Path of a role in a SPIFFE ID: `spiffe://TRUST-DOMAIN/gantry/role/ROLE`.
const PREFIX: &str = "/gantry/role/";
const SCHEME: &str = "spiffe://";

/// What a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The command line and automation: declares objects.
    Client,
    /// Reads statuses.
    Viewer,
    /// The sidecar of a server replica.
    Agent,
    /// The data plane.
    Gateway,
    /// The Kubernetes operator.
    Operator,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Client, Self::Viewer, Self::Agent, Self::Gateway, Self::Operator];

    /// The name in certificates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
            Self::Gateway => "gateway",
            Self::Operator => "operator",
        }
    }

    /// The number of path segments that may follow the role and restrict it.
    const fn max_restrictions(self) -> usize {
        match self {
            Self::Client | Self::Viewer => 0,
            // A name, a namespace.
            Self::Gateway | Self::Operator => 1,
            // A server and a replica.
            Self::Agent => 2,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rights of certificates that name no role, such as those of Seldon Core v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnmarkedCertificates {
    /// None but health.
    None,
    /// Those of a client.
    #[default]
    Client,
    /// All, as before roles.
    Any,
}

impl UnmarkedCertificates {
    /// The value of the flag.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Client => "client",
            Self::Any => "any",
        }
    }
}

impl FromStr for UnmarkedCertificates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::None, Self::Client, Self::Any]
            .into_iter()
            .find(|value| value.name() == text)
            .ok_or_else(|| format!("{text:?}: use none, client or any"))
    }
}

/// How the callers of a listener are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every caller has all rights: plaintext, or TLS without client certificates.
    Everyone,
    /// A caller has the rights of its certificate.
    Certificates(UnmarkedCertificates),
}

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Everything.
    All,
    /// What its role may do, restricted to the objects that its identity names.
    Role { role: Role, restrictions: Vec<String> },
    /// Nothing but health, with the reason.
    Nothing(String),
}

/// A caller and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The role's URI, else the certificate's subject; empty without a certificate.
    pub name: String,
    pub grant: Grant,
}

impl Identity {
    /// The identity of a peer.
    pub fn of(peer: &Peer, trust: Trust) -> Self {
        let Trust::Certificates(unmarked) = trust else {
            let name = match peer {
                Peer::Verified(certificate) => certificate.subject.clone(),
                Peer::Anonymous | Peer::Unreadable(_) => String::new(),
            };
            return Self { name, grant: Grant::All };
        };
        let nothing = |reason: String| Self { name: String::new(), grant: Grant::Nothing(reason) };
        match peer {
            Peer::Anonymous => nothing("presents no certificate".into()),
            Peer::Unreadable(reason) => nothing(format!("has a certificate that cannot be read ({reason})")),
            Peer::Verified(certificate) => Self::of_certificate(certificate, unmarked),
        }
    }

    fn of_certificate(certificate: &PeerCertificate, unmarked: UnmarkedCertificates) -> Self {
        let mut marks = certificate.uris.iter().filter(|uri| is_mark(uri));
        let Some(mark) = marks.next() else {
            let grant = match unmarked {
                UnmarkedCertificates::Any => Grant::All,
                UnmarkedCertificates::Client => Grant::Role { role: Role::Client, restrictions: Vec::new() },
                UnmarkedCertificates::None => Grant::Nothing("has a certificate without a role".into()),
            };
            return Self { name: certificate.subject.clone(), grant };
        };
        if marks.next().is_some() {
            let grant = Grant::Nothing("has a certificate with more than one role".into());
            return Self { name: mark.clone(), grant };
        }
        let grant = match parse(mark) {
            Ok((role, restrictions)) => Grant::Role { role, restrictions },
            Err(reason) => Grant::Nothing(format!("has a certificate with an invalid role: {reason}")),
        };
        Self { name: mark.clone(), grant }
    }

    /// The role, for messages and the audit log: `all` for all rights, `none` for none.
    pub const fn role(&self) -> &'static str {
        match &self.grant {
            Grant::All => "all",
            Grant::Role { role, .. } => role.name(),
            Grant::Nothing(_) => "none",
        }
    }
}

/// Also for a URI that differs from a valid role in its case or scheme: such a certificate is not unmarked.
fn is_mark(uri: &str) -> bool {
    uri.to_ascii_lowercase().contains(PREFIX)
}

fn parse(uri: &str) -> Result<(Role, Vec<String>), String> {
    let shape = || format!("use spiffe://TRUST-DOMAIN{PREFIX}ROLE");
    let (domain, path) = uri
        .strip_prefix(SCHEME)
        .and_then(|rest| rest.find('/').map(|slash| rest.split_at(slash)))
        .ok_or_else(shape)?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
    if domain.is_empty() || !domain.chars().all(is_plain) {
        return Err(format!("the trust domain of {uri} is invalid: {}", shape()));
    }
    let mut segments = path.strip_prefix(PREFIX).ok_or_else(shape)?.split('/');
    let name = segments.next().unwrap_or_default();
    let Some(role) = Role::ALL.into_iter().find(|role| role.name() == name) else {
        return Err(format!("{name:?} is not a role: use {}", list(&Role::ALL)));
    };
    let restrictions: Vec<String> = segments.map(str::to_owned).collect();
    if restrictions.len() > role.max_restrictions() || restrictions.iter().any(String::is_empty) {
        return Err(format!("{uri}: too many or empty path segments after the role"));
    }
    if role == Role::Agent && restrictions.get(1).is_some_and(|index| index.parse::<u32>().is_err()) {
        return Err(format!("{uri}: the replica is not a number"));
    }
    Ok((role, restrictions))
}

/// `client, viewer or agent`.
pub(crate) fn list(roles: &[Role]) -> String {
    match roles {
        [] => "none".into(),
        [one] => one.to_string(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(|role| role.name()).collect();
            format!("{} or {last}", first.join(", "))
        }
    }
}

impl Grant {
    /// The owner on whose behalf a caller that names this one acts. The error states what the role may do.
    pub fn owner(&self, named: Owner) -> Result<Owner, &'static str> {
        let Self::Role { role, restrictions } = self else {
            return match self {
                Self::All => Ok(named),
                _ => Err("may change nothing"),
            };
        };
        match (role, named) {
            // Without a name it could delete what Seldon's operator declared.
            (Role::Client, Owner::Unnamed) => Ok(Owner::Cli),
            (Role::Operator, Owner::Operator { namespace } | Owner::SeldonOperator { namespace })
                if !within(restrictions, &namespace) =>
            {
                Err("acts for its own namespace only")
            }
            (Role::Client, owner @ (Owner::Cli | Owner::File(_) | Owner::Other(_)))
            | (Role::Gateway, owner @ Owner::Gateway)
            | (Role::Operator, owner @ (Owner::Operator { .. } | Owner::SeldonOperator { .. })) => Ok(owner),
            // Seldon's operator deletes without naming itself. One restricted to a namespace has to name it.
            (Role::Operator, Owner::Unnamed) if restrictions.is_empty() => Ok(Owner::Unnamed),
            (Role::Client, _) => Err("acts as cli, as a file or under a name of its own"),
            (Role::Gateway, _) => Err("acts for the owner of a model only"),
            (Role::Operator, _) => Err("acts as the operator of a namespace only"),
            (Role::Viewer | Role::Agent, _) => Err("may declare nothing"),
        }
    }

    /// Whether an agent may act for a replica.
    pub fn is_replica(&self, id: &ReplicaId) -> bool {
        let Self::Role { role: Role::Agent, restrictions } = self else { return *self == Self::All };
        match restrictions.as_slice() {
            [] => true,
            [server] => **server == *id.server,
            [server, index, ..] => **server == *id.server && index.parse() == Ok(id.index),
        }
    }

    /// Whether a gateway may act under a name.
    pub fn is_gateway(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Role { role: Role::Gateway, restrictions } => within(restrictions, name),
            Self::Role { .. } | Self::Nothing(_) => false,
        }
    }

    /// Whether a caller may change objects of a namespace that have no owner.
    pub fn is_in_namespace(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Role { role: Role::Operator, restrictions } => within(restrictions, namespace),
            Self::Role { .. } | Self::Nothing(_) => false,
        }
    }
}

fn within(restrictions: &[String], name: &str) -> bool {
    restrictions.first().is_none_or(|only| only == name)
}
