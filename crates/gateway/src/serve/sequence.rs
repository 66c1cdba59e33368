//! Sequences: requests with the same `sequence_id` go to the same replica, which has the state of the sequence.

use super::{forward::Call, request_body::SMALL};
use crate::policy::balance::stable_hash;
use gantry_oip::{grpc::SequenceId, rest::HEADER_LENGTH};
use gantry_transport::{Protocol, body::Payload};
use http::{HeaderMap, HeaderName, header};
use memchr::memmem;

/// Names the sequence of a request whose body is not searched: large, or compressed.
const SEQUENCE: HeaderName = HeaderName::from_static("gantry-sequence-id");

/// Key of the request's sequence, if it has one: from the header, the gRPC parameter, or a buffered REST body.
pub(super) fn key(call: &Call, headers: &HeaderMap, payload: &Payload) -> Option<u64> {
    if let Some(id) = headers.get(SEQUENCE).filter(|id| !id.is_empty()) {
        return Some(hash(&call.model, id.as_bytes()));
    }
    let Payload::Whole(body) = payload else { return call.sequence };
    if call.protocol == Protocol::Grpc || headers.contains_key(header::CONTENT_ENCODING) {
        return call.sequence;
    }
    let length = headers.get(HEADER_LENGTH).and_then(|n| n.to_str().ok()?.trim().parse::<usize>().ok());
    let json = length.and_then(|n| body.get(..n)).unwrap_or(body);
    // A long search would delay the other requests of the worker.
    in_json(json.get(..SMALL).unwrap_or(json)).map(|id| hash(&call.model, id))
}

/// Key of a gRPC parameter; the same as of the equal REST parameter.
pub(super) fn grpc_key(model: &str, id: SequenceId<'_>) -> u64 {
    match id {
        SequenceId::Number(number) => hash(model, number.to_string().as_bytes()),
        SequenceId::Text(text) => hash(model, text.as_bytes()),
    }
}

fn hash(model: &str, id: &[u8]) -> u64 {
    stable_hash(&[model.as_bytes(), id])
}

/// The value of `"sequence_id"`, searched without parsing. Escaped quotes in texts do not match. Zero and the empty text
/// mean no sequence.
fn in_json(json: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"\"sequence_id\"";
    memmem::find_iter(json, NAME).find_map(|at| {
        let value = json.get(at + NAME.len()..)?.trim_ascii_start();
        let value = value.strip_prefix(b":")?.trim_ascii_start();
        let value = match value.strip_prefix(b"\"") {
            Some(text) => text.split(|b| *b == b'"').next()?,
            None => value.split(|b| !b.is_ascii_digit()).next().filter(|digits| *digits != b"0")?,
        };
        (!value.is_empty()).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_id_is_found_in_json() {
        for (json, expected) in [
            (r#"{"inputs":[],"parameters":{"sequence_id":42,"sequence_start":true}}"#, Some("42")),
            (r#"{"parameters":{"sequence_id" : "a b"}}"#, Some("a b")),
            (r#"{"inputs":[{"name":"sequence_id"}],"parameters":{"sequence_id":7}}"#, Some("7")),
            (r#"{"parameters":{"sequence_id":0}}"#, None),
            (r#"{"parameters":{"sequence_id":""}}"#, None),
            (r#"{"parameters":{"sequence_id":true}}"#, None),
            (r#"{"inputs":[{"data":["\"sequence_id\":5"]}]}"#, None),
            (r#"{"parameters":{"sequence_id""#, None),
            (r#"{"parameters":{"sequence_id":"#, None),
            ("{}", None),
        ] {
            assert_eq!(in_json(json.as_bytes()), expected.map(str::as_bytes), "{json}");
        }
    }
}
