//! Fuzz targets: each takes arbitrary bytes, must not panic, and checks invariants of the result.

use crate::{Error, InferRequest, InferResponse, Limits, grpc, rest, v1};
use bytes::Bytes;
use gantry_tensor::{DataType, TensorSpec};
use prost::Message as _;

/// Small limits, so that a violation is found quickly.
pub fn limits() -> Limits {
    Limits { body: 1 << 20, elements: 1 << 16, bytes_elements: 1 << 14, ..Limits::default() }
}

/// The first two bytes are the header length; zero means JSON only.
pub fn rest_request(input: &[u8]) {
    let (length, body) = split(input);
    if let Ok(request) = rest::decode_request(body, length, &limits()) {
        let again = rest::encode_request(&request, true)
            .and_then(|e| rest::decode_request(e.body, e.header_length, &Limits::default()));
        same(&request, again);
    }
}

pub fn rest_response(input: &[u8]) {
    let (length, body) = split(input);
    let _ = rest::decode_response(body, length, &limits());
}

/// The first byte chooses the inputs of the model. What was decoded is the same after it went back as a response.
pub fn v1_request(input: &[u8]) {
    let Some((&choice, body)) = input.split_first() else { return };
    let spec = |name: &str, datatype, shape: &[i64]| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: shape.to_vec(),
    };
    let specs = match choice % 4 {
        0 => vec![],
        1 => vec![spec("a", DataType::Fp32, &[-1, -1])],
        2 => vec![spec("a", DataType::Bytes, &[-1])],
        _ => vec![spec("a", DataType::Int64, &[-1, 2]), spec("b", DataType::Bool, &[-1])],
    };
    let body = Bytes::copy_from_slice(body);
    v1_batch(&body);
    let Ok(request) = v1::decode_request(body, &specs, &limits()) else { return };
    // Only an empty one has a shape that is too large.
    let Ok(response) = v1::encode_response(&request.inputs) else { return };
    let wanted: Vec<TensorSpec> = request
        .inputs
        .iter()
        .map(|i| spec(i.tensor.name(), i.tensor.datatype(), &vec![-1; i.tensor.shape().len()]))
        .collect();
    let text = String::from_utf8_lossy(&response).replacen("predictions", "inputs", 1);
    // A response with no rows, which a request must have, or with no common number of rows and a scalar.
    if let Ok(again) = v1::decode_request(text.into_bytes().into(), &wanted, &Limits::default()) {
        same(&request, Ok(again));
    }
}

/// A request that is joined with itself has twice the instances.
fn v1_batch(body: &Bytes) {
    if let Ok(instances) = v1::read_instances(body, &limits()) {
        let joined = v1::join_instances([&instances, &instances]);
        let both = v1::read_instances(&joined, &Limits::default()).map(|both| both.count);
        assert_eq!(both, Ok(2 * instances.count));
    }
    let _ = v1::split_predictions(body, &[1, 2], &limits());
}

pub fn grpc_request(input: &[u8]) {
    let _ = grpc::peek_frame_name(input, Some(b"gzip"), 100);
    let body = Bytes::copy_from_slice(input);
    let Ok(message) = grpc::decode_frame(&body, Some(b"gzip"), limits().body) else {
        return;
    };
    let _ = grpc::peek_name(&message);
    names(&message);
    let Ok(message) = gantry_proto::inference::ModelInferRequest::decode(message) else {
        return;
    };
    if let Ok(request) = grpc::decode_request(message, &limits()) {
        let again = grpc::decode_request(grpc::encode_request(request.clone()), &Limits::default());
        same(&request, again);
    }
}

pub fn grpc_response(input: &[u8]) {
    if let Ok(message) = gantry_proto::inference::ModelInferResponse::decode(input) {
        let _: Result<InferResponse, Error> = grpc::decode_response(message, &limits());
    }
}

pub fn compressed(input: &[u8]) {
    for encoding in [rest::Encoding::Gzip, rest::Encoding::Deflate] {
        let _ = rest::decompress(Bytes::copy_from_slice(input), encoding, limits().body);
    }
}

fn split(input: &[u8]) -> (Option<usize>, Bytes) {
    match input.split_first_chunk::<2>() {
        Some((&[0, 0], body)) => (None, Bytes::copy_from_slice(body)),
        Some((length, body)) => (Some(u16::from_le_bytes(*length).into()), Bytes::copy_from_slice(body)),
        None => (None, Bytes::copy_from_slice(input)),
    }
}

/// Encoding must round-trip. NaN is compared as text.
#[allow(clippy::panic, reason = "fuzz targets report by panicking")]
fn same(first: &InferRequest, again: Result<InferRequest, Error>) {
    match again {
        Ok(again) => assert_eq!(
            format!("{:?}", (&first.inputs, &first.outputs, &first.parameters)),
            format!("{:?}", (&again.inputs, &again.outputs, &again.parameters))
        ),
        Err(error) => panic!("round trip failed: {error}"),
    }
}

/// Replaced names count, whatever the rest of the message.
fn names(message: &Bytes) {
    let fields = grpc::peek_request(message);
    assert!(fields.is_none() || grpc::peek_start(message) == fields);
    let renamed = grpc::replace_name(message, "other");
    assert!(renamed.is_none_or(|m| grpc::peek_name(&m) == Some("other")));
    if let Some(renamed) = grpc::replace_leading_name(message, "other")
        && grpc::NameScanner::default().scan(&renamed)
    {
        assert!(grpc::peek_start(&renamed).is_none_or(|f| f.name == "other" && f.version.is_empty()));
    }
}
