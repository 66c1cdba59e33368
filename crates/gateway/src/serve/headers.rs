//! Routing headers.

use crate::routes::Version;
use gantry_oip::server::INTERNAL_MODEL;
use gantry_transport::headers::remove_hop_by_hop;
pub(super) use gantry_transport::headers::{REQUEST_ID, grpc_timeout};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

/// The client's route; several values, as a chain of experiments returns them, are joined.
pub(super) fn sticky(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(ROUTE).iter();
    let first = values.next()?;
    if values.next().is_none() {
        return Some(first.clone());
    }
    let all: Vec<&[u8]> = headers.get_all(ROUTE).iter().map(HeaderValue::as_bytes).collect();
    HeaderValue::from_bytes(&all.concat()).ok()
}

pub(super) const MODEL: HeaderName = HeaderName::from_static("seldon-model");
pub(super) const ROUTE: HeaderName = HeaderName::from_static("x-seldon-route");
const INTERNAL: HeaderName = HeaderName::from_static(INTERNAL_MODEL);

/// The headers with the host of an HTTP/2 request.
pub(super) fn with_host(mut headers: HeaderMap, uri: &Uri) -> HeaderMap {
    if let Some(host) = uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok()) {
        headers.entry(header::HOST).or_insert(host);
    }
    headers
}

pub(super) fn to_replica(headers: &mut HeaderMap, version: &Version, request_id: &HeaderValue) {
    remove_hop_by_hop(headers);
    headers.remove(header::EXPECT);
    if let Some(internal) = &version.internal_header {
        headers.insert(INTERNAL, internal.clone());
    }
    headers.insert(REQUEST_ID, request_id.clone());
}

pub(super) fn to_client(headers: &mut HeaderMap, version: &Version) {
    remove_hop_by_hop(headers);
    headers.insert(ROUTE, version.route_header.clone());
}
