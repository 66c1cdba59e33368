//! Header parsing, and removal of hop-by-hop headers.

use http::{HeaderMap, HeaderName, header};
use std::time::Duration;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if let Some(connection) = headers.remove(header::CONNECTION)
        && let Ok(names) = connection.to_str()
    {
        for name in names.split(',').map(str::trim) {
            // Connection options that are no headers here.
            if !name.eq_ignore_ascii_case("keep-alive")
                && !name.eq_ignore_ascii_case("close")
                && !name.is_empty()
            {
                headers.remove(name);
            }
        }
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        HTTP2_SETTINGS,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
    ] {
        headers.remove(name);
    }
}

/// The client's deadline in `grpc-timeout`.
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0'));
    Some(match unit {
        b'H' => Duration::from_hours(number),
        b'M' => Duration::from_mins(number),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// `grpc-status` in headers or trailers.
pub fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn grpc_timeout_is_parsed() {
        for (text, expected) in [
            ("1S", Some(Duration::from_secs(1))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999H", Some(Duration::from_hours(99_999_999))),
            ("123456789S", None),
            ("S", None),
            ("-1S", None),
            ("1s", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", HeaderValue::from_static(text));
            assert_eq!(grpc_timeout(&headers), expected, "{text}");
        }
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("connection", "keep-alive, x-secret"), ("x-secret", "1"), ("te", "trailers"), ("x-kept", "1")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["te", "x-kept"]);
    }
}
