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

#[cfg(test)]
mod tests {
    use super::*;

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
