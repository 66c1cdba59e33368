//! Headers that a graph passes on to its steps.

use gantry_transport::headers::remove_hop_by_hop;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use regex::{Regex, RegexBuilder};

/// Bound on the memory of one pattern.
const MAX_PATTERN_BYTES: usize = 256 << 10;

/// Never passed on: they describe the connection or the encoding of the body.
const EXCLUDED: [HeaderName; 6] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::ACCEPT_ENCODING,
    header::EXPECT,
    header::TE,
];

/// Regular expressions of header names, from `router.headers.propagate` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct HeaderPatterns {
    patterns: Vec<Regex>,
}

impl HeaderPatterns {
    /// Compiles the patterns. Those that are invalid are left out and returned as errors, as in KServe.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> (Self, Vec<String>) {
        let mut compiled = Vec::new();
        let mut errors = Vec::new();
        for pattern in patterns.into_iter().map(str::trim).filter(|pattern| !pattern.is_empty()) {
            match RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build() {
                Ok(regex) => compiled.push(regex),
                Err(error) => errors.push(format!("header pattern \"{pattern}\" is invalid: {error}")),
            }
        }
        (Self { patterns: compiled }, errors)
    }

    /// The headers for a step: those that match, and a content type.
    pub(super) fn select(&self, headers: &HeaderMap) -> HeaderMap {
        let mut selected = HeaderMap::new();
        for name in headers.keys().filter(|name| !EXCLUDED.contains(name) && self.matches(name)) {
            for value in headers.get_all(name) {
                selected.append(name.clone(), value.clone());
            }
        }
        // `Connection` names further ones.
        if let Some(connection) = headers.get(header::CONNECTION) {
            selected.insert(header::CONNECTION, connection.clone());
        }
        remove_hop_by_hop(&mut selected);
        let json = HeaderValue::from_static("application/json");
        selected.entry(header::CONTENT_TYPE).or_insert(json);
        selected
    }

    /// Patterns are written for names such as `X-Request-Id`, which the reference compares; ours are in lower case.
    fn matches(&self, name: &HeaderName) -> bool {
        let canonical = canonical(name.as_str());
        self.patterns.iter().any(|pattern| pattern.is_match(name.as_str()) || pattern.is_match(&canonical))
    }
}

fn canonical(name: &str) -> String {
    let mut is_start = true;
    let upper = |c: char| {
        let upper = if is_start { c.to_ascii_uppercase() } else { c };
        is_start = c == '-';
        upper
    };
    name.chars().map(upper).collect()
}
