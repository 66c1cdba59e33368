//! Headers read and written by the proxy.

use gantry_oip::server::INTERNAL_MODEL;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|k| k.starts_with(b"application/grpc"))
}

/// The internal model name set by the gateway.
pub(super) fn internal_model(headers: &HeaderMap) -> Option<String> {
    headers.get(INTERNAL_MODEL)?.to_str().ok().map(str::to_owned)
}

pub(super) fn to_server(headers: &mut HeaderMap) {
    let named = headers.remove(header::CONNECTION);
    for name in named.iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')) {
        let name = name.trim();
        if !name.is_empty() && !name.eq_ignore_ascii_case("close") {
            headers.remove(name);
        }
    }
    for name in [header::TRANSFER_ENCODING, header::UPGRADE, header::EXPECT, header::HOST] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "http2-settings"] {
        headers.remove(name);
    }
    if !headers.contains_key(REQUEST_ID) {
        headers.insert(REQUEST_ID, request_id());
    }
}

/// Unique per process and request.
fn request_id() -> HeaderValue {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    HeaderValue::from_str(&format!("{process:016x}{count:08x}")).unwrap_or(HeaderValue::from_static("0"))
}

pub(super) fn to_client(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}

pub(super) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
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

/// From headers or trailers.
pub(super) fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}
