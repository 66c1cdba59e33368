//! Values of records: messages of the Open Inference Protocol, as protobuf or JSON.
//!
//! The header `seldon-infer-type` states the form. Without it a value is protobuf: a request on topics of inputs, a response
//! on topics of outputs. Gantry writes protobuf with raw contents, and no header.

use crate::{
    headers::{self, Headers},
    topics::Side,
};
use bytes::Bytes;
use gantry_oip::{Error, InferRequest, InferResponse, InferTensor, Limits, Parameters, grpc, rest};
use gantry_proto::inference as pb;
use prost::Message as _;

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferType {
    JsonRequest,
    JsonResponse,
    ProtoRequest,
    ProtoResponse,
}

impl InferType {
    const ALL: [Self; 4] = [Self::JsonRequest, Self::JsonResponse, Self::ProtoRequest, Self::ProtoResponse];

    /// The value of the header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JsonRequest => "json/inferModelRequest",
            Self::JsonResponse => "json/inferModelResponse",
            Self::ProtoRequest => "proto/InferModelRequest",
            Self::ProtoResponse => "proto/InferModelResponse",
        }
    }

    /// The form of a record of a topic of this side.
    pub fn of(headers: &Headers, side: Side) -> Result<Self, Error> {
        let Some(written) = headers::get(headers, headers::INFER_TYPE) else {
            return Ok(match side {
                Side::Inputs => Self::ProtoRequest,
                Side::Outputs => Self::ProtoResponse,
            });
        };
        Self::ALL.into_iter().find(|form| form.name().eq_ignore_ascii_case(written)).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("the header seldon-infer-type is none of {names}"))
        })
    }
}

/// A request, or a response whose outputs are read as inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    pub id: String,
    pub parameters: Parameters,
    pub tensors: Vec<InferTensor>,
}

impl From<InferRequest> for Tensors {
    fn from(request: InferRequest) -> Self {
        Self { id: request.id, parameters: request.parameters, tensors: request.inputs }
    }
}

impl From<InferResponse> for Tensors {
    fn from(response: InferResponse) -> Self {
        Self { id: response.id, parameters: response.parameters, tensors: response.outputs }
    }
}

/// Decodes a record of a topic of this side.
pub fn decode(value: Bytes, headers: &Headers, side: Side, limits: &Limits) -> Result<Tensors, Error> {
    let malformed =
        |error: prost::DecodeError| Error::invalid(format!("the value is not valid protobuf: {error}"));
    if value.len() > limits.body {
        let message = format!("the value has {} bytes, more than the {} allowed", value.len(), limits.body);
        return Err(Error::new(gantry_oip::Code::PayloadTooLarge, message));
    }
    Ok(match InferType::of(headers, side)? {
        InferType::JsonRequest => rest::decode_request(value, None, limits)?.into(),
        InferType::JsonResponse => rest::decode_response(value, None, limits)?.into(),
        InferType::ProtoRequest => {
            grpc::decode_request(pb::ModelInferRequest::decode(value).map_err(malformed)?, limits)?.into()
        }
        InferType::ProtoResponse => {
            grpc::decode_response(pb::ModelInferResponse::decode(value).map_err(malformed)?, limits)?.into()
        }
    })
}

/// The value of a topic of inputs.
pub fn encode_inputs(model: &str, tensors: Tensors) -> Bytes {
    let Tensors { id, parameters, tensors: inputs } = tensors;
    let model_name = model.to_owned();
    let request =
        InferRequest { model_name, id, parameters, inputs, raw_contents: true, ..InferRequest::default() };
    grpc::encode_request(request).encode_to_vec().into()
}

/// The value of a topic of outputs.
pub fn encode_outputs(model: &str, tensors: Tensors) -> Bytes {
    let Tensors { id, parameters, tensors: outputs } = tensors;
    let raw = InferRequest { raw_contents: true, ..InferRequest::default() };
    let response =
        InferResponse { model_name: model.to_owned(), id, parameters, outputs, ..InferResponse::default() };
    grpc::encode_response(response, &raw).encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_tensor::{Elements, Tensor};
    use proptest::prelude::*;

    fn of(pairs: &[(&str, &str)]) -> Headers {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned().into(), Bytes::copy_from_slice(value.as_bytes())))
            .collect()
    }

    #[test]
    fn header_selects_the_form() {
        const REQUEST: &str =
            r#"{"id":"7","inputs":[{"name":"x","shape":[2],"datatype":"INT64","data":[1,2]}]}"#;
        const RESPONSE: &str = r#"{"model_name":"m","id":"7","outputs":[{"name":"x","shape":[2],"datatype":"INT64","data":[1,2]}]}"#;
        let tensor = Tensor::new("x", vec![2], Elements::Int64(vec![1, 2])).unwrap();
        let expected = Tensors { id: "7".into(), tensors: vec![tensor.into()], ..Tensors::default() };
        let (inputs, outputs) = (encode_inputs("m", expected.clone()), encode_outputs("m", expected.clone()));
        let table = [
            (None, Side::Inputs, inputs.clone()),
            (None, Side::Outputs, outputs.clone()),
            (Some("proto/InferModelRequest"), Side::Outputs, inputs),
            (Some("proto/InferModelResponse"), Side::Inputs, outputs),
            (Some("json/inferModelRequest"), Side::Inputs, REQUEST.into()),
            (Some("JSON/InferModelResponse"), Side::Inputs, RESPONSE.into()),
        ];
        for (form, side, value) in table {
            let headers = form.map(|form| of(&[(headers::INFER_TYPE, form)])).unwrap_or_default();
            let decoded = decode(value, &headers, side, &Limits::default());
            assert_eq!(decoded.as_ref(), Ok(&expected), "{form:?} {side}");
        }
    }

    #[test]
    fn values_that_cannot_be_decoded_are_errors() {
        let limits = Limits { body: 64, ..Limits::default() };
        let table = [
            (&[][..], "\u{1}garbage", "protobuf"),
            (&[], "", "no inputs"),
            (&[(headers::INFER_TYPE, "xml")], "", "seldon-infer-type"),
            (&[(headers::INFER_TYPE, "json/inferModelRequest")], "{", ""),
            (&[], &"x".repeat(65), "more than the 64 allowed"),
        ];
        for (headers, value, message) in table {
            let error = decode(Bytes::copy_from_slice(value.as_bytes()), &of(headers), Side::Inputs, &limits)
                .unwrap_err();
            assert!(error.message.contains(message), "{value:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn tensors_round_trip(id in "[a-z0-9]{0,12}", columns in prop::collection::vec(prop::collection::vec(any::<i64>(), 0..9), 1..5)) {
            let tensors = columns.into_iter().enumerate().map(|(i, values)| {
                Tensor::new(format!("t{i}"), vec![values.len()], Elements::Int64(values)).unwrap().into()
            });
            let sent = Tensors { id, tensors: tensors.collect(), ..Tensors::default() };
            let limits = Limits::default();
            prop_assert_eq!(decode(encode_inputs("m", sent.clone()), &Headers::new(), Side::Inputs, &limits).unwrap(), sent.clone());
            prop_assert_eq!(decode(encode_outputs("m", sent.clone()), &Headers::new(), Side::Outputs, &limits).unwrap(), sent);
        }

        #[test]
        fn arbitrary_values_never_panic(value in prop::collection::vec(any::<u8>(), 0..200), form in 0usize..4) {
            let headers = of(&[(headers::INFER_TYPE, InferType::ALL[form].name())]);
            let _ = decode(value.into(), &headers, Side::Inputs, &Limits::default());
        }
    }
}
