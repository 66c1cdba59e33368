//! Parsing of `HOST:PORT` flags.

use crate::error::CommandError;
use http::uri::Authority;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    /// Set by the scheme, if there is one.
    tls: Option<bool>,
}

impl Address {
    /// Parses `host`, `host:port` or `http://host:port`; errors name `flag`.
    pub fn parse(text: &str, default_port: u16, flag: &str) -> Result<Self, CommandError> {
        let address = Self::parse_any(text, default_port, flag)?;
        if address.tls == Some(true) {
            let text = text.escape_debug();
            let remedy = format!("write HOST:PORT, such as 127.0.0.1:{default_port}");
            return Err(CommandError::usage(format!(
                "{flag} \"{text}\" requests TLS, which is not supported there: {remedy}"
            )));
        }
        Ok(address)
    }

    /// Like `parse`, and accepts `https://`.
    pub fn parse_any(text: &str, default_port: u16, flag: &str) -> Result<Self, CommandError> {
        let wrong = |why: &str| {
            CommandError::usage(format!(
                "{flag} \"{}\" {why}: write HOST:PORT, such as 127.0.0.1:{default_port}",
                text.escape_debug()
            ))
        };
        let plain = text.trim().trim_end_matches('/');
        let (plain, tls) = match (plain.strip_prefix("https://"), plain.strip_prefix("http://")) {
            (Some(rest), _) => (rest, Some(true)),
            (None, Some(rest)) => (rest, Some(false)),
            (None, None) => (plain, None),
        };
        let authority: Authority = plain.parse().map_err(|_| wrong("is not an address"))?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(wrong("is not an address"));
        }
        let after_host = authority.as_str().get(authority.host().len()..).unwrap_or_default();
        let port = match (after_host, authority.port_u16()) {
            ("", _) => default_port,
            (_, Some(port)) if port > 0 => port,
            _ => return Err(wrong("has no valid port")),
        };
        Ok(Self { host: authority.host().to_owned(), port, tls })
    }

    pub fn url(&self) -> String {
        format!("http://{self}")
    }

    /// Whether the scheme requests TLS; `None` without a scheme.
    pub const fn tls(&self) -> Option<bool> {
        self.tls
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Addresses of one service, of which one answers: a scheduler and its standbys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    first: Address,
    others: Vec<Address>,
}

impl Addresses {
    /// Parses a comma-separated list, each item as by [`Address::parse_any`]; errors name `flag`.
    pub fn parse_any(text: &str, default_port: u16, flag: &str) -> Result<Self, CommandError> {
        let mut parsed = text.split(',').map(|item| Address::parse_any(item, default_port, flag));
        let first = parsed.next().unwrap_or_else(|| Address::parse_any(text, default_port, flag))?;
        let others = parsed.collect::<Result<Vec<_>, _>>()?;
        if let Some(other) = others.iter().find(|other| other.tls != first.tls) {
            return Err(CommandError::usage(format!(
                "{flag} names {first} and {other} with different schemes: use TLS for all of them or for none"
            )));
        }
        Ok(Self { first, others })
    }

    /// Whether the scheme requests TLS; `None` without a scheme.
    pub const fn tls(&self) -> Option<bool> {
        self.first.tls()
    }

    pub const fn first(&self) -> &Address {
        &self.first
    }

    pub const fn is_single(&self) -> bool {
        self.others.is_empty()
    }

    /// `HOST:PORT` of each.
    pub fn list(&self) -> Vec<String> {
        std::iter::once(&self.first).chain(&self.others).map(Address::to_string).collect()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_addresses_are_parsed_or_rejected_with_a_reason() {
        for (text, expected) in [
            ("a", "a:9004"),
            ("a:1,b", "a:1, b:9004"),
            ("https://a, https://b:2", "a:9004, b:2"),
            ("a,", "is not an address"),
            ("", "is not an address"),
            ("a,https://b", "different schemes"),
        ] {
            match Addresses::parse_any(text, 9004, "--scheduler") {
                Ok(addresses) => assert_eq!(addresses.to_string(), expected, "{text}"),
                Err(failure) => assert!(failure.message.contains(expected), "{text}: {failure}"),
            }
        }
    }

    #[test]
    fn addresses_are_parsed_or_rejected_with_a_reason() {
        for (text, expected) in [
            ("127.0.0.1:9004", "127.0.0.1:9004"),
            ("localhost", "localhost:9004"),
            ("http://gantry:80/", "gantry:80"),
            ("[::1]:9004", "[::1]:9004"),
            ("[::1]", "[::1]:9004"),
            ("", "is not an address"),
            (":9004", "is not an address"),
            ("host:0", "has no valid port"),
            ("host:99999", "has no valid port"),
            ("host:", "has no valid port"),
            ("https://host:1", "requests TLS"),
            ("a b", "is not an address"),
            ("user@host:1", "is not an address"),
        ] {
            match Address::parse(text, 9004, "--scheduler") {
                Ok(address) => assert_eq!(address.to_string(), expected, "{text}"),
                Err(failure) => assert!(failure.message.contains(expected), "{text}: {failure}"),
            }
        }
    }
}
