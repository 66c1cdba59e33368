//! `HOST:PORT` as people write it.

use crate::failure::Failure;
use http::uri::Authority;
use std::fmt;

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
    /// What the scheme says, if there is one.
    tls: Option<bool>,
}

impl Address {
    /// Reads `host`, `host:port` or `http://host:port`; `flag` is named when it is wrong.
    pub(crate) fn parse(text: &str, default_port: u16, flag: &str) -> Result<Self, Failure> {
        let address = Self::parse_any(text, default_port, flag)?;
        if address.tls == Some(true) {
            let text = text.escape_debug();
            let remedy = format!("write HOST:PORT, such as 127.0.0.1:{default_port}");
            return Err(Failure::usage(format!(
                "{flag} \"{text}\" asks for TLS, which is not spoken there: {remedy}"
            )));
        }
        Ok(address)
    }

    /// The same, where `https://` may stand before it.
    pub(crate) fn parse_any(text: &str, default_port: u16, flag: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::usage(format!(
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

    /// The address as a base for URLs.
    pub(crate) fn url(&self) -> String {
        format!("http://{self}")
    }

    /// Whether it asks for TLS, or for none; most say nothing.
    pub(crate) const fn tls(&self) -> Option<bool> {
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
    fn addresses() {
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
            ("https://host:1", "asks for TLS"),
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
