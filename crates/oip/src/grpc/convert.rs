//! Conversion between messages and requests or responses.

use super::{decode_frame, status, typed};
use crate::{
    Error, InferRequest, InferResponse, InferTensor, Limits, Parameter, Parameters, RequestedOutput,
    raw::{checked_shape, parse_datatype, tensor_from_raw},
    rest::{SHARED_MEMORY, requested_output, shared_memory_unsupported},
};
use bytes::Bytes;
use gantry_proto::inference as pb;
use gantry_tensor::{DataType, Tensor};
use http::{HeaderMap, HeaderValue};
use pb::infer_parameter::ParameterChoice;
use prost::Message as _;
use std::collections::BTreeMap;

pub fn decode_request(message: pb::ModelInferRequest, limits: &Limits) -> Result<InferRequest, Error> {
    // Before the contents are counted: tensors in shared memory have none.
    if let Some(input) = message.inputs.iter().find(|t| t.parameters.contains_key(SHARED_MEMORY)) {
        return Err(shared_memory_unsupported().at(format_args!("input {}", input.name)));
    }
    let raw_contents = !message.raw_input_contents.is_empty();
    let tensors = message.inputs.into_iter().map(|t| Wire {
        name: t.name,
        datatype: t.datatype,
        shape: t.shape,
        parameters: t.parameters,
        contents: t.contents,
    });
    let inputs = decode_tensors(tensors, message.raw_input_contents, "input", limits)?;
    if inputs.is_empty() {
        return Err(Error::invalid("the request has no inputs: a model needs at least one tensor"));
    }
    if message.outputs.len() > limits.tensors {
        return Err(Error::invalid(format!(
            "more than the {} outputs allowed are requested",
            limits.tensors
        )));
    }
    let mut outputs: Vec<RequestedOutput> = Vec::with_capacity(message.outputs.len());
    for output in message.outputs {
        if outputs.iter().any(|o| o.name == output.name) {
            return Err(Error::invalid(format!("output {} is requested twice", output.name)));
        }
        outputs.push(requested_output(output.name, parameters_from_proto(output.parameters))?);
    }
    let mut parameters = parameters_from_proto(message.parameters);
    parameters.remove("binary_data_output");
    Ok(InferRequest {
        model_name: message.model_name,
        model_version: message.model_version,
        id: message.id,
        parameters,
        inputs,
        outputs,
        binary_data_output: false,
        raw_contents,
    })
}

pub fn decode_response(message: pb::ModelInferResponse, limits: &Limits) -> Result<InferResponse, Error> {
    let tensors = message.outputs.into_iter().map(|t| Wire {
        name: t.name,
        datatype: t.datatype,
        shape: t.shape,
        parameters: t.parameters,
        contents: t.contents,
    });
    Ok(InferResponse {
        outputs: decode_tensors(tensors, message.raw_output_contents, "output", limits)?,
        model_name: message.model_name,
        model_version: message.model_version,
        id: message.id,
        parameters: parameters_from_proto(message.parameters),
    })
}

/// Decodes the answer to a unary `ModelInfer`: headers, trailers and framed message.
pub fn decode_infer_answer(
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    data: &Bytes,
    limits: &Limits,
) -> Result<InferResponse, Error> {
    let ended = trailers.and_then(status).or_else(|| status(headers));
    ended.unwrap_or_else(|| Err(Error::internal("the response has no grpc-status")))?;
    let encoding = headers.get("grpc-encoding").map(HeaderValue::as_bytes);
    let message = pb::ModelInferResponse::decode(decode_frame(data, encoding, limits.body)?);
    let message = message.map_err(|e| Error::internal(format!("the response cannot be decoded: {e}")))?;
    decode_response(message, limits).map_err(|e| e.at("response"))
}

/// Encodes outputs in the form of the request's inputs.
pub fn encode_response(response: InferResponse, request: &InferRequest) -> pb::ModelInferResponse {
    let raw = request.raw_contents || response.outputs.iter().any(needs_raw);
    let mut message = pb::ModelInferResponse {
        model_name: response.model_name,
        model_version: response.model_version,
        id: response.id,
        parameters: parameters_to_proto(response.parameters),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::new(),
    };
    for tensor in response.outputs {
        let wire = encode_tensor(tensor, raw, &mut message.raw_output_contents);
        message.outputs.push(pb::model_infer_response::InferOutputTensor {
            name: wire.name,
            datatype: wire.datatype,
            shape: wire.shape,
            parameters: wire.parameters,
            contents: wire.contents,
        });
    }
    message
}

/// Inputs are raw if [`InferRequest::raw_contents`] is set or a datatype requires it.
pub fn encode_request(request: InferRequest) -> pb::ModelInferRequest {
    let raw = request.raw_contents || request.inputs.iter().any(needs_raw);
    let mut message = pb::ModelInferRequest {
        model_name: request.model_name,
        model_version: request.model_version,
        id: request.id,
        parameters: parameters_to_proto(request.parameters),
        inputs: Vec::with_capacity(request.inputs.len()),
        outputs: Vec::with_capacity(request.outputs.len()),
        raw_input_contents: Vec::new(),
    };
    for tensor in request.inputs {
        let wire = encode_tensor(tensor, raw, &mut message.raw_input_contents);
        message.inputs.push(pb::model_infer_request::InferInputTensor {
            name: wire.name,
            datatype: wire.datatype,
            shape: wire.shape,
            parameters: wire.parameters,
            contents: wire.contents,
        });
    }
    for output in request.outputs {
        let mut parameters = output.parameters;
        if let Some(classes) = output.classification {
            parameters.insert("classification".into(), Parameter::I64(classes.into()));
        }
        if let Some(binary) = output.binary {
            parameters.insert("binary_data".into(), Parameter::Bool(binary));
        }
        message.outputs.push(pb::model_infer_request::InferRequestedOutputTensor {
            name: output.name,
            parameters: parameters_to_proto(parameters),
        });
    }
    message
}

fn needs_raw(tensor: &InferTensor) -> bool {
    matches!(tensor.tensor.datatype(), DataType::Fp16 | DataType::Bf16)
}

/// Fields common to input and output tensors.
struct Wire {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    parameters: BTreeMap<String, pb::InferParameter>,
    contents: Option<pb::InferTensorContents>,
}

fn encode_tensor(tensor: InferTensor, raw: bool, raw_contents: &mut Vec<Bytes>) -> Wire {
    let datatype = tensor.tensor.datatype();
    let (name, shape, contents) = if raw {
        let (elements, shape) = (tensor.tensor.elements(), tensor.tensor.shape().to_vec());
        let mut bytes = Vec::with_capacity(elements.raw_len());
        elements.write_raw(&mut bytes);
        raw_contents.push(bytes.into());
        (tensor.tensor.name().to_owned(), shape, None)
    } else {
        let (name, shape, elements) = tensor.tensor.into_parts();
        (name, shape, typed::to_contents(elements))
    };
    Wire {
        name,
        datatype: datatype.name().to_owned(),
        shape: shape.into_iter().map(|d| i64::try_from(d).unwrap_or(i64::MAX)).collect(),
        parameters: parameters_to_proto(tensor.parameters),
        contents,
    }
}

fn decode_tensors(
    wires: impl ExactSizeIterator<Item = Wire>,
    raw: Vec<Bytes>,
    kind: &str,
    limits: &Limits,
) -> Result<Vec<InferTensor>, Error> {
    let count = wires.len();
    if count > limits.tensors {
        return Err(Error::invalid(format!("{count} {kind}s are more than the {} allowed", limits.tensors)));
    }
    let is_raw = !raw.is_empty();
    if is_raw && raw.len() != count {
        return Err(Error::invalid(format!(
            "raw_{kind}_contents has {} entries for {count} {kind}s: there must be one for each",
            raw.len()
        )));
    }
    let mut raw = raw.into_iter();
    let mut tensors: Vec<InferTensor> = Vec::with_capacity(count);
    for (index, wire) in wires.enumerate() {
        if wire.name.is_empty() {
            return Err(Error::invalid(format!("{kind} {index} has no name")));
        }
        if tensors.iter().any(|t| t.tensor.name() == wire.name) {
            return Err(Error::invalid(format!("{kind} {} appears twice", wire.name)));
        }
        let context = format!("{kind} {}", wire.name);
        tensors.push(decode_tensor(wire, raw.next(), is_raw, limits).map_err(|e| e.at(context))?);
    }
    Ok(tensors)
}

fn decode_tensor(
    wire: Wire,
    raw: Option<Bytes>,
    is_raw: bool,
    limits: &Limits,
) -> Result<InferTensor, Error> {
    let datatype = parse_datatype(&wire.datatype)?;
    let (shape, count) = checked_shape(&wire.shape, datatype, limits)?;
    let contents = wire.contents.filter(|c| !typed::is_empty(c));
    let tensor = match (contents, raw) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "it has typed contents, and the message has raw contents: use one of them",
            ));
        }
        (None, Some(raw)) => tensor_from_raw(wire.name, shape, count, datatype, &raw)?,
        (contents, None) if !is_raw => {
            let elements = typed::from_contents(contents.unwrap_or_default(), datatype, count, &shape)?;
            Tensor::new(wire.name, shape, elements).map_err(|e| Error::invalid(e.to_string()))?
        }
        (_, None) => return Err(Error::invalid("it has no raw contents")),
    };
    let mut parameters = parameters_from_proto(wire.parameters);
    parameters.remove("binary_data_size");
    Ok(InferTensor { tensor, parameters })
}

fn parameters_from_proto(parameters: BTreeMap<String, pb::InferParameter>) -> Parameters {
    parameters
        .into_iter()
        .filter_map(|(key, value)| {
            let value = match value.parameter_choice? {
                ParameterChoice::BoolParam(b) => Parameter::Bool(b),
                ParameterChoice::Int64Param(n) => Parameter::I64(n),
                ParameterChoice::Uint64Param(n) => {
                    i64::try_from(n).map_or(Parameter::F64(n as f64), Parameter::I64)
                }
                ParameterChoice::DoubleParam(n) => Parameter::F64(n),
                ParameterChoice::StringParam(text) => Parameter::String(text),
            };
            Some((key, value))
        })
        .collect()
}

pub(crate) fn parameters_to_proto(parameters: Parameters) -> BTreeMap<String, pb::InferParameter> {
    parameters
        .into_iter()
        .map(|(key, value)| {
            let choice = match value {
                Parameter::Bool(b) => ParameterChoice::BoolParam(b),
                Parameter::I64(n) => ParameterChoice::Int64Param(n),
                Parameter::F64(n) => ParameterChoice::DoubleParam(n),
                Parameter::String(text) => ParameterChoice::StringParam(text),
            };
            (key, pb::InferParameter { parameter_choice: Some(choice) })
        })
        .collect()
}
