//! REST encoding.

use super::HEADER_LENGTH;
use crate::{
    Error, InferRequest, InferResponse, InferTensor, Parameter, Parameters,
    json::{write_f32, write_f64, write_int, write_string},
};
use bytes::Bytes;
use gantry_tensor::{Elements, bf16_to_f32, f16_to_f32};
use http::{HeaderMap, HeaderValue, header};
use std::ops::Range;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub body: Bytes,
    /// Length of the JSON, if binary data follows.
    pub header_length: Option<usize>,
}

impl Encoded {
    /// Sets `Content-Type`, and `Inference-Header-Content-Length` if binary data follows.
    pub fn set_headers(&self, headers: &mut HeaderMap) {
        if let Some(length) = self.header_length {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
        } else {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
    }
}

/// Encodes each output in the requested form.
///
/// Fails only if a `BYTES` element in JSON is not UTF-8.
pub fn encode_response(response: &InferResponse, request: &InferRequest) -> Result<Encoded, Error> {
    let mut out = Vec::with_capacity(estimate(&response.outputs));
    out.extend_from_slice(b"{\"model_name\":");
    write_string(&mut out, &response.model_name);
    if !response.model_version.is_empty() {
        out.extend_from_slice(b",\"model_version\":");
        write_string(&mut out, &response.model_version);
    }
    if !response.id.is_empty() {
        out.extend_from_slice(b",\"id\":");
        write_string(&mut out, &response.id);
    }
    if !response.parameters.is_empty() {
        out.extend_from_slice(b",\"parameters\":");
        write_parameters(&mut out, &response.parameters, &[]);
    }
    out.extend_from_slice(b",\"outputs\":");
    let binary = |t: &InferTensor| request.wants_binary(t.tensor.name());
    write_tensors(&mut out, &response.outputs, "output", binary)?;
    out.push(b'}');
    Ok(finish(out, &response.outputs, binary))
}

/// Inputs become binary data, or all JSON.
pub fn encode_request(request: &InferRequest, binary: bool) -> Result<Encoded, Error> {
    let mut out = Vec::with_capacity(estimate(&request.inputs));
    out.push(b'{');
    if !request.id.is_empty() {
        out.extend_from_slice(b"\"id\":");
        write_string(&mut out, &request.id);
        out.push(b',');
    }
    let form = [("binary_data_output", Parameter::Bool(true))];
    let form = if request.binary_data_output { form.as_slice() } else { &[] };
    if !request.parameters.is_empty() || !form.is_empty() {
        out.extend_from_slice(b"\"parameters\":");
        write_parameters(&mut out, &request.parameters, form);
        out.push(b',');
    }
    out.extend_from_slice(b"\"inputs\":");
    write_tensors(&mut out, &request.inputs, "input", |_| binary)?;
    if !request.outputs.is_empty() {
        out.extend_from_slice(b",\"outputs\":[");
        for (i, output) in request.outputs.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"name\":");
            write_string(&mut out, &output.name);
            let form: Vec<_> = output
                .binary
                .map(|b| ("binary_data", Parameter::Bool(b)))
                .into_iter()
                .chain(output.classification.map(|c| ("classification", Parameter::I64(c.into()))))
                .collect();
            if !output.parameters.is_empty() || !form.is_empty() {
                out.extend_from_slice(b",\"parameters\":");
                write_parameters(&mut out, &output.parameters, &form);
            }
            out.push(b'}');
        }
        out.push(b']');
    }
    out.push(b'}');
    Ok(finish(out, &request.inputs, |_| binary))
}

/// `{"error":"…"}`
pub fn error_body(message: &str) -> Bytes {
    let mut out = Vec::with_capacity(message.len() + 16);
    out.extend_from_slice(b"{\"error\":");
    write_string(&mut out, message);
    out.push(b'}');
    out.into()
}

fn estimate(tensors: &[InferTensor]) -> usize {
    let data: usize = tensors
        .iter()
        .map(|t| 96 + t.tensor.name().len() + t.tensor.elements().len().saturating_mul(12))
        .sum();
    128 + data.min(1 << 20)
}

/// Appends the binary tensors, if any.
fn finish(mut out: Vec<u8>, tensors: &[InferTensor], binary: impl Fn(&InferTensor) -> bool) -> Encoded {
    let json = out.len();
    let mut any = false;
    for tensor in tensors.iter().filter(|t| binary(t)) {
        if !any {
            let rest: usize = tensors.iter().map(|t| t.tensor.elements().raw_len()).sum();
            out.reserve_exact(rest);
            any = true;
        }
        tensor.tensor.elements().write_raw(&mut out);
    }
    Encoded { body: out.into(), header_length: any.then_some(json) }
}

fn write_tensors(
    out: &mut Vec<u8>,
    tensors: &[InferTensor],
    kind: &str,
    binary: impl Fn(&InferTensor) -> bool,
) -> Result<(), Error> {
    out.push(b'[');
    for (i, t) in tensors.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"name\":");
        write_string(out, t.tensor.name());
        out.extend_from_slice(b",\"shape\":[");
        for (d, dim) in t.tensor.shape().iter().enumerate() {
            if d > 0 {
                out.push(b',');
            }
            write_int(out, *dim);
        }
        out.extend_from_slice(b"],\"datatype\":\"");
        out.extend_from_slice(t.tensor.datatype().name().as_bytes());
        out.push(b'"');
        if binary(t) {
            let size = i64::try_from(t.tensor.elements().raw_len()).unwrap_or(i64::MAX);
            out.extend_from_slice(b",\"parameters\":");
            write_parameters(out, &t.parameters, &[("binary_data_size", Parameter::I64(size))]);
        } else {
            if !t.parameters.is_empty() {
                out.extend_from_slice(b",\"parameters\":");
                write_parameters(out, &t.parameters, &[]);
            }
            out.extend_from_slice(b",\"data\":[");
            write_data(out, t.tensor.elements(), 0..t.tensor.elements().len())
                .map_err(|e| e.at(format_args!("{kind} {}", t.tensor.name())))?;
            out.push(b']');
        }
        out.push(b'}');
    }
    out.push(b']');
    Ok(())
}

/// Elements in this range, separated by commas.
pub(crate) fn write_data(out: &mut Vec<u8>, elements: &Elements, range: Range<usize>) -> Result<(), Error> {
    fn list<T: Copy>(out: &mut Vec<u8>, values: &[T], range: Range<usize>, write: impl Fn(&mut Vec<u8>, T)) {
        for (i, &value) in values.get(range).unwrap_or_default().iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write(out, value);
        }
    }
    match elements {
        Elements::Bool(v) => list(out, v, range, |out, b| {
            out.extend_from_slice(if b { b"true" } else { b"false" });
        }),
        Elements::Uint8(v) => list(out, v, range, write_int),
        Elements::Uint16(v) => list(out, v, range, write_int),
        Elements::Uint32(v) => list(out, v, range, write_int),
        Elements::Uint64(v) => list(out, v, range, write_int),
        Elements::Int8(v) => list(out, v, range, write_int),
        Elements::Int16(v) => list(out, v, range, write_int),
        Elements::Int32(v) => list(out, v, range, write_int),
        Elements::Int64(v) => list(out, v, range, write_int),
        Elements::Fp16(v) => list(out, v, range, |out, bits| write_f32(out, f16_to_f32(bits))),
        Elements::Bf16(v) => list(out, v, range, |out, bits| write_f32(out, bf16_to_f32(bits))),
        Elements::Fp32(v) => list(out, v, range, write_f32),
        Elements::Fp64(v) => list(out, v, range, write_f64),
        Elements::Bytes(v) => {
            let start = range.start;
            for (i, element) in v.get(range).unwrap_or_default().iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                let text = std::str::from_utf8(element).map_err(|_| {
                    Error::invalid(format!(
                        "element {} is not UTF-8, which JSON cannot carry: use binary data or gRPC",
                        start + i
                    ))
                })?;
                write_string(out, text);
            }
        }
    }
    Ok(())
}

/// Wire-level parameters come first.
pub(crate) fn write_parameters(out: &mut Vec<u8>, parameters: &Parameters, form: &[(&str, Parameter)]) {
    out.push(b'{');
    let form = form.iter().map(|(k, v)| (*k, v));
    let own = parameters.iter().map(|(k, v)| (k.as_str(), v));
    for (i, (key, value)) in form.chain(own).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_string(out, key);
        out.push(b':');
        match value {
            Parameter::Bool(true) => out.extend_from_slice(b"true"),
            Parameter::Bool(false) => out.extend_from_slice(b"false"),
            Parameter::I64(n) => write_int(out, *n),
            Parameter::F64(n) => write_f64(out, *n),
            Parameter::String(text) => write_string(out, text),
        }
    }
    out.push(b'}');
}
