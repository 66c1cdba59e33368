//! Round trips in all four wire forms; arbitrary bytes never panic.

use bytes::Bytes;
use gantry_oip::{
    InferRequest, InferResponse, InferTensor, Limits, Parameter, Parameters, RequestedOutput, fuzz, grpc,
    rest,
};
use gantry_tensor::{DataType, Elements, Tensor, bf16_to_f32, f16_to_f32};
use proptest::{collection::vec, prelude::*};

/// Elements of any datatype. Floats are finite and texts UTF-8, as JSON requires.
fn elements(datatype: DataType, count: usize) -> BoxedStrategy<Elements> {
    let half = |value: fn(u16) -> f32| any::<u16>().prop_filter("finite", move |b| value(*b).is_finite());
    match datatype {
        DataType::Bool => vec(any::<bool>(), count).prop_map(Elements::Bool).boxed(),
        DataType::Uint8 => vec(any::<u8>(), count).prop_map(Elements::Uint8).boxed(),
        DataType::Uint16 => vec(any::<u16>(), count).prop_map(Elements::Uint16).boxed(),
        DataType::Uint32 => vec(any::<u32>(), count).prop_map(Elements::Uint32).boxed(),
        DataType::Uint64 => vec(any::<u64>(), count).prop_map(Elements::Uint64).boxed(),
        DataType::Int8 => vec(any::<i8>(), count).prop_map(Elements::Int8).boxed(),
        DataType::Int16 => vec(any::<i16>(), count).prop_map(Elements::Int16).boxed(),
        DataType::Int32 => vec(any::<i32>(), count).prop_map(Elements::Int32).boxed(),
        DataType::Int64 => vec(any::<i64>(), count).prop_map(Elements::Int64).boxed(),
        DataType::Fp16 => vec(half(f16_to_f32), count).prop_map(Elements::Fp16).boxed(),
        DataType::Bf16 => vec(half(bf16_to_f32), count).prop_map(Elements::Bf16).boxed(),
        DataType::Fp32 => {
            vec(any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()), count)
                .prop_map(Elements::Fp32)
                .boxed()
        }
        DataType::Fp64 => {
            vec(any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |x| x.is_finite()), count)
                .prop_map(Elements::Fp64)
                .boxed()
        }
        DataType::Bytes => vec("\\PC{0,12}|[\\x00-\\x1f\"\\\\]{0,4}".prop_map(Bytes::from), count)
            .prop_map(Elements::Bytes)
            .boxed(),
    }
}

fn parameters() -> impl Strategy<Value = Parameters> {
    let value = prop_oneof![
        any::<bool>().prop_map(Parameter::Bool),
        any::<i64>().prop_map(Parameter::I64),
        (-1e300..1e300f64).prop_map(|x| Parameter::F64(x + 0.5)),
        "\\PC{0,8}".prop_map(Parameter::String),
    ];
    prop::collection::btree_map("[a-z]{1,6}", value, 0..3)
}

fn tensor(name: &'static str) -> impl Strategy<Value = InferTensor> {
    let datatype = prop::sample::select(DataType::ALL.to_vec());
    (datatype, vec(0usize..4, 0..4), parameters()).prop_flat_map(move |(datatype, shape, parameters)| {
        let count = shape.iter().product();
        elements(datatype, count).prop_map(move |elements| InferTensor {
            tensor: Tensor::new(name, shape.clone(), elements).unwrap(),
            parameters: parameters.clone(),
        })
    })
}

fn request() -> impl Strategy<Value = InferRequest> {
    let output = (any::<Option<bool>>(), prop::option::of(1u32..9), parameters());
    (tensor("a"), tensor("b \"quoted\" é"), parameters(), "\\PC{0,8}", vec(output, 0..3), any::<bool>())
        .prop_map(|(a, b, parameters, id, outputs, binary_data_output)| InferRequest {
            id,
            parameters,
            inputs: vec![a, b],
            outputs: outputs
                .into_iter()
                .enumerate()
                .map(|(i, (binary, classification, parameters))| RequestedOutput {
                    name: format!("o{i}"),
                    binary,
                    classification,
                    parameters,
                })
                .collect(),
            binary_data_output,
            ..Default::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn request_round_trips_over_rest(request in request(), binary in any::<bool>()) {
        let encoded = rest::encode_request(&request, binary).unwrap();
        prop_assert_eq!(encoded.header_length.is_some(), binary);
        let again = rest::decode_request(encoded.body, encoded.header_length, &Limits::default()).unwrap();
        prop_assert_eq!(again, request);
    }

    #[test]
    fn encoded_request_is_valid_json(request in request()) {
        let encoded = rest::encode_request(&request, false).unwrap();
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&encoded.body).is_ok());
    }

    #[test]
    fn request_round_trips_over_grpc(request in request(), raw in any::<bool>()) {
        let has_half = request.inputs.iter().any(|t| matches!(t.tensor.datatype(), DataType::Fp16 | DataType::Bf16));
        let request = InferRequest { raw_contents: raw || has_half, binary_data_output: false, model_name: "m".into(), ..request };
        let frame = grpc::encode_frame(&grpc::encode_request(request.clone()));
        let message = grpc::decode_frame(&frame, None, 1 << 20).unwrap();
        prop_assert_eq!(grpc::peek_name(&message), Some("m"));
        let message = prost::Message::decode(message).unwrap();
        prop_assert_eq!(grpc::decode_request(message, &Limits::default()).unwrap(), request);
    }

    #[test]
    fn response_round_trips_in_every_form(a in tensor("a"), b in tensor("b"), request in request(), raw in any::<bool>()) {
        let request = InferRequest { raw_contents: raw, ..request };
        let response = InferResponse { model_name: "m_1".into(), id: "7".into(), outputs: vec![a, b], ..Default::default() };
        let encoded = rest::encode_response(&response, &request).unwrap();
        let again = rest::decode_response(encoded.body, encoded.header_length, &Limits::default()).unwrap();
        prop_assert_eq!(&again, &response);
        let message = grpc::encode_response(response.clone(), &request);
        prop_assert_eq!(grpc::decode_response(message, &Limits::default()).unwrap(), response);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..256)) {
        fuzz::rest_request(&bytes);
        fuzz::rest_response(&bytes);
        fuzz::grpc_request(&bytes);
        fuzz::grpc_response(&bytes);
        fuzz::compressed(&bytes);
    }

    #[test]
    fn damaged_request_never_panics(request in request(), binary in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let encoded = rest::encode_request(&request, binary).unwrap();
        let length = encoded.header_length.unwrap_or(0) as u16;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&encoded.body);
        let i = at.index(bytes.len());
        bytes[i] = byte;
        fuzz::rest_request(&bytes);
        fuzz::rest_request(&bytes[..cut.index(bytes.len())]);

        let mut frame = grpc::encode_frame(&grpc::encode_request(request)).to_vec();
        let i = at.index(frame.len());
        frame[i] = byte;
        fuzz::grpc_request(&frame);
        fuzz::grpc_request(&frame[..cut.index(frame.len())]);
    }
}
