//! REST decoding.

use super::{
    HEADER_LENGTH,
    document::{Document, Kind, Reader},
};
use crate::{Code, Error, InferRequest, InferResponse, Limits, Parameter};
use bytes::Bytes;
use http::HeaderMap;

/// The value of `Inference-Header-Content-Length`, if present.
pub fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Error> {
    let Some(value) = headers.get(HEADER_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|v| v.trim().parse().ok());
    length.map(Some).ok_or_else(|| Error::invalid("Inference-Header-Content-Length is not a number"))
}

/// `header_length` is the value of `Inference-Header-Content-Length`, if present; the body is already decompressed.
pub fn decode_request(
    body: Bytes,
    header_length: Option<usize>,
    limits: &Limits,
) -> Result<InferRequest, Error> {
    let mut document = read(body, header_length, limits, Kind::Request)?;
    if !document.has_tensors {
        return Err(Error::invalid("the body has no \"inputs\""));
    }
    if document.tensors.is_empty() {
        return Err(Error::invalid("\"inputs\" is empty: a model needs at least one tensor"));
    }
    let binary_data_output = match document.parameters.remove("binary_data_output") {
        None => false,
        Some(Parameter::Bool(binary)) => binary,
        Some(_) => {
            return Err(Error::invalid("parameters: binary_data_output must be true or false"));
        }
    };
    Ok(InferRequest {
        model_name: document.model_name,
        model_version: document.model_version,
        id: document.id,
        parameters: document.parameters,
        inputs: document.tensors,
        outputs: document.requested,
        binary_data_output,
        raw_contents: false,
    })
}

/// Decodes a response on the client side.
pub fn decode_response(
    body: Bytes,
    header_length: Option<usize>,
    limits: &Limits,
) -> Result<InferResponse, Error> {
    let document = read(body, header_length, limits, Kind::Response)?;
    if !document.has_tensors {
        return Err(Error::invalid("the response has no \"outputs\""));
    }
    Ok(InferResponse {
        model_name: document.model_name,
        model_version: document.model_version,
        id: document.id,
        parameters: document.parameters,
        outputs: document.tensors,
    })
}

fn read(body: Bytes, header_length: Option<usize>, limits: &Limits, kind: Kind) -> Result<Document, Error> {
    if body.len() > limits.body {
        return Err(Error::new(
            Code::PayloadTooLarge,
            format!("the body has {} bytes, more than the {} allowed", body.len(), limits.body),
        ));
    }
    let mut json = body;
    let binary = match header_length {
        None => None,
        Some(length) if length > json.len() => {
            return Err(Error::invalid(format!(
                "Inference-Header-Content-Length is {length}, but the body has {} bytes",
                json.len()
            )));
        }
        Some(length) => Some(json.split_off(length)),
    };
    Reader { json: &json, binary, limits, kind }.document()
}
