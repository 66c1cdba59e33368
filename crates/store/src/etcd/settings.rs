//! Where etcd is, and how to connect.

use std::fmt;
use std::time::Duration;

/// Prefix of all keys, unless set.
pub const DEFAULT_PREFIX: &str = "/gantry";

/// A standby takes over when the leader has not renewed its lease for this long.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(5);

const SCHEME: &str = "etcd://";
const DEFAULT_PORT: u16 = 2379;
/// More members than an etcd cluster has.
const MAX_ENDPOINTS: usize = 16;

/// The members of an etcd cluster, and a prefix of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// `HOST:PORT` of each member.
    pub endpoints: Vec<String>,
    /// Starts with a slash, and does not end with one.
    pub prefix: String,
}

impl Location {
    /// Parses `etcd://HOST:PORT,HOST:PORT/PREFIX`; ports and prefix have defaults.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = "write etcd://HOST:PORT,HOST:PORT/PREFIX, such as etcd://127.0.0.1:2379/gantry";
        let wrong = |why: &str| format!("{:?} {why}: {example}", text.trim());
        let rest = text.trim().strip_prefix(SCHEME).ok_or_else(|| wrong("does not start with etcd://"))?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if members.contains('@') {
            return Err("a password does not belong into the address: set GANTRY_ETCD_USER and \
                        GANTRY_ETCD_PASSWORD"
                .into());
        }
        let prefix = prefix.trim_matches('/');
        let mut endpoints = Vec::new();
        for member in members.split(',') {
            let endpoint = with_port(member.trim()).ok_or_else(|| wrong("has an invalid member"))?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(wrong("has too many members"));
        }
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX.to_owned() } else { format!("/{prefix}") };
        Ok(Self { endpoints, prefix })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.endpoints.join(","), self.prefix)
    }
}

/// `host` or `host:port` as `host:port`.
fn with_port(member: &str) -> Option<String> {
    let after_bracket = member.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match member.get(after_bracket..)?.rfind(':') {
        Some(at) => (member.get(..after_bracket + at)?, member.get(after_bracket + at + 1..)?),
        None => (member, ""),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    let port = if port.is_empty() && !member.ends_with(':') { DEFAULT_PORT } else { port.parse().ok()? };
    let bare_v6 = host.contains(':') && !host.starts_with('[');
    (!host.is_empty() && host.chars().all(allowed) && port > 0 && !bare_v6).then(|| format!("{host}:{port}"))
}

/// User of an etcd with authentication.
#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub location: Location,
    pub tls: Option<gantry_tls::Client>,
    pub credentials: Option<Credentials>,
    /// How other schedulers name this one, such as its host and process.
    pub name: String,
    /// At least two seconds.
    pub lease: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed_or_rejected_with_an_example() {
        for (text, expected) in [
            ("etcd://a:1,b:2,c:3/team", Ok("etcd://a:1,b:2,c:3/team")),
            ("etcd://a", Ok("etcd://a:2379/gantry")),
            ("etcd://a,a:2379", Ok("etcd://a:2379/gantry")),
            ("etcd://127.0.0.1:2379/", Ok("etcd://127.0.0.1:2379/gantry")),
            ("etcd://[::1]:2379,[::2]/a/b/", Ok("etcd://[::1]:2379,[::2]:2379/a/b")),
            ("http://a:1", Err("does not start with etcd://")),
            ("etcd://", Err("invalid member")),
            ("etcd://a:1,", Err("invalid member")),
            ("etcd://a:0", Err("invalid member")),
            ("etcd://a:b", Err("invalid member")),
            ("etcd://a:", Err("invalid member")),
            ("etcd://::1", Err("invalid member")),
            ("etcd://a b", Err("invalid member")),
            ("etcd://user:secret@a:1", Err("GANTRY_ETCD_PASSWORD")),
        ] {
            match (Location::parse(text), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.to_string(), expected, "{text}"),
                (Err(got), Err(expected)) => {
                    assert!(got.contains(expected) && !got.contains("secret"), "{text}: {got}");
                }
                (got, expected) => panic!("{text}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn password_is_not_shown() {
        let credentials = Credentials { user: "gantry".into(), password: "secret".into() };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
