//! Headers of proxied requests.

use gantry_oip::server::INTERNAL_MODEL;
use gantry_transport::{
    headers::{REQUEST_ID, remove_hop_by_hop},
    request_id::RequestIds,
};
use http::{HeaderMap, header};

/// The internal model name set by the gateway.
pub(super) fn internal_model(headers: &HeaderMap) -> Option<String> {
    headers.get(INTERNAL_MODEL)?.to_str().ok().map(str::to_owned)
}

pub(super) fn to_server(headers: &mut HeaderMap, ids: &RequestIds) {
    remove_hop_by_hop(headers);
    headers.remove(header::EXPECT);
    headers.remove(header::HOST);
    if !headers.contains_key(REQUEST_ID) {
        headers.insert(REQUEST_ID, ids.next());
    }
}
