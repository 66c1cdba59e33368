//! Headers of records.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;

pub type Header = (Cow<'static, str>, Bytes);
/// In the order of the record; names may repeat.
pub type Headers = Vec<Header>;

pub const PIPELINE: &str = "pipeline";
pub const PIPELINE_VERSION: &str = "x-pipeline-version";
pub const REQUEST_ID: &str = "x-request-id";
pub const ROUTE: &str = "x-seldon-route";
pub const TRACEPARENT: &str = "traceparent";
/// The step that failed, on a record of the errors topic.
pub const ERRORS: &str = "seldon-pipeline-errors";
/// The form of the value.
pub const INFER_TYPE: &str = "seldon-infer-type";
/// Where the record of an error was read: `<topic>/<partition>/<offset>`. Several for a join.
pub const SOURCE: &str = "x-gantry-source";
/// The value of the record that a dead letter carries.
pub const VALUE: &str = "x-gantry-value";
/// Before the names of that record's headers.
pub const HEADER_PREFIX: &str = "x-gantry-header.";
/// Why a dead letter carries no record.
pub const OMITTED: &str = "x-gantry-omitted";
/// `true` on the error of a step whose record was answered.
pub const ANSWERED: &str = "x-gantry-answered";

/// A forwarded header that is longer is left out.
const MAX_FORWARDED: usize = 8 << 10;
/// Further headers are left out.
const MAX_HEADERS: usize = 64;

pub fn get<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    let (_, value) = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(value).ok()
}

/// The headers that steps receive: `x-…` and the trace context, without those that Gantry sets itself.
pub fn forwarded(headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let is_own = matches!(
            name.as_str(),
            PIPELINE_VERSION | REQUEST_ID | ROUTE | SOURCE | VALUE | OMITTED | ANSWERED
        ) || name.starts_with(HEADER_PREFIX);
        let is_forwarded = (name.starts_with("x-") && !is_own) || name == TRACEPARENT;
        if !is_forwarded || value.len() > MAX_FORWARDED || map.len() >= MAX_HEADERS {
            continue;
        }
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            map.append(name, value);
        }
    }
    map
}

/// What the records of one run have in common.
#[derive(Clone, Debug)]
pub struct RunHeaders<'a> {
    pub pipeline: &'a str,
    pub version: u32,
    pub request_id: &'a str,
    pub forwarded: &'a HeaderMap,
}

impl RunHeaders<'_> {
    /// The headers of a record of the run; `routes` of the steps that it depends on.
    pub fn with_routes<'r>(&self, routes: impl IntoIterator<Item = &'r HeaderValue>) -> Headers {
        let text = |name: &'static str, value: String| (name.into(), Bytes::from(value));
        let mut headers: Headers = vec![
            text(PIPELINE, self.pipeline.to_owned()),
            text(PIPELINE_VERSION, self.version.to_string()),
            text(REQUEST_ID, self.request_id.to_owned()),
        ];
        let bytes = |value: &HeaderValue| Bytes::copy_from_slice(value.as_bytes());
        headers.extend(routes.into_iter().map(|route| (ROUTE.into(), bytes(route))));
        let forwarded = self.forwarded.iter();
        headers.extend(forwarded.map(|(name, value)| (name.as_str().to_owned().into(), bytes(value))));
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Headers {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned().into(), Bytes::copy_from_slice(value.as_bytes())))
            .collect()
    }

    #[test]
    fn headers_of_the_client_are_forwarded_once() {
        let read = of(&[
            ("x-tenant", "a"),
            ("X-Tenant", "b"),
            ("x-request-id", "1"),
            ("x-seldon-route", ":a_1:"),
            ("x-pipeline-version", "3"),
            ("pipeline", "p"),
            ("traceparent", "00-1-2-01"),
            ("authorization", "secret"),
            ("x-bad\n", "v"),
            ("x-bad", "a\nb"),
            ("x-gantry-source", "t/0/1"),
            ("x-gantry-value", "v"),
            ("x-gantry-header.x-tenant", "a"),
            ("x-gantry-omitted", "too large"),
            ("x-gantry-answered", "true"),
        ]);
        let forwarded = forwarded(&read);
        let kept: Vec<_> =
            forwarded.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(kept, [("x-tenant", "a"), ("x-tenant", "b"), ("traceparent", "00-1-2-01")]);
        let run = RunHeaders { pipeline: "p", version: 2, request_id: "id", forwarded: &forwarded };
        let written = run.with_routes([&HeaderValue::from_static(":a_1:")]);
        assert_eq!(get(&written, PIPELINE), Some("p"));
        assert_eq!(get(&written, "X-Pipeline-Version"), Some("2"));
        assert_eq!(get(&written, REQUEST_ID), Some("id"));
        assert_eq!(get(&written, ROUTE), Some(":a_1:"));
        assert_eq!(get(&written, "authorization"), None);
        assert_eq!(written.len(), 7);
    }

    #[test]
    fn number_and_size_of_forwarded_headers_are_limited() {
        let mut read = of(&[("x-large", &"v".repeat(MAX_FORWARDED + 1))]);
        read.extend((0..100).map(|i| (format!("x-{i}").into(), Bytes::new())));
        assert_eq!(forwarded(&read).len(), MAX_HEADERS);
        assert!(!forwarded(&read).contains_key("x-large"));
    }
}
