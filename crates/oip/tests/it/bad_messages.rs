//! Invalid gRPC messages.

use bytes::Bytes;
use gantry_oip::{Limits, grpc};
use gantry_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
    InferInputTensor {
        name: "X".into(),
        datatype: datatype.into(),
        shape: shape.to_vec(),
        contents,
        ..Default::default()
    }
}

fn floats(values: &[f32]) -> Option<InferTensorContents> {
    Some(InferTensorContents { fp32_contents: values.to_vec(), ..Default::default() })
}

#[test]
fn invalid_messages_are_rejected() {
    let raw = |n: usize| vec![Bytes::from(vec![0; n])];
    let table: Vec<(Vec<InferInputTensor>, Vec<Bytes>, &str)> = vec![
        (vec![], vec![], "the request has no inputs: a model needs at least one tensor"),
        (
            vec![input("FP32", &[1, 4], floats(&[1.0, 2.0, 3.0]))],
            vec![],
            "input X: shape [1,4] needs 4 values, got 3",
        ),
        (vec![input("FP32", &[1], None)], vec![], "input X: shape [1] needs 1 values, got 0"),
        (
            vec![input("FP32", &[1], floats(&[1.0]))],
            raw(4),
            "input X: it has typed contents, and the message has raw contents: use one of them",
        ),
        (
            vec![
                input("FP32", &[1], None),
                InferInputTensor { name: "Y".into(), ..input("FP32", &[1], None) },
            ],
            raw(4),
            "raw_input_contents has 1 entries for 2 inputs: there must be one for each",
        ),
        (vec![input("FP32", &[1], None)], raw(5), "input X: shape [1] of FP32 needs 4 bytes, got 5"),
        (
            vec![input("FP16", &[1], None)],
            vec![],
            "input X: FP16 has no typed contents: send it in raw_input_contents",
        ),
        (
            vec![input("INT32", &[1], floats(&[1.0]))],
            vec![],
            "input X: INT32 belongs in int_contents, which is empty",
        ),
        (
            vec![input(
                "INT8",
                &[1],
                Some(InferTensorContents { int_contents: vec![200], ..Default::default() }),
            )],
            vec![],
            "input X: element 0 is out of the range of INT8",
        ),
        (vec![input("FP32", &[-1], floats(&[1.0]))], vec![], "input X: shape [-1] has a negative dimension"),
        (
            vec![input("FP32", &[i64::MAX, 3], floats(&[1.0]))],
            vec![],
            "input X: the product of shape [9223372036854775807,3] is too large",
        ),
        (
            vec![input("FP32", &[i64::MAX], floats(&[1.0]))],
            vec![],
            "input X: shape [9223372036854775807] has 9223372036854775807 elements, more than the 67108864 allowed",
        ),
        (
            vec![input("FP32", &[1], floats(&[1.0])), input("FP32", &[1], floats(&[1.0]))],
            vec![],
            "input X appears twice",
        ),
        (
            vec![InferInputTensor { name: String::new(), ..input("FP32", &[1], floats(&[1.0])) }],
            vec![],
            "input 0 has no name",
        ),
        (
            vec![input("BYTES", &[1], None)],
            vec![Bytes::from_static(&[9, 0, 0, 0, 1])],
            "input X: the length prefix of element 0 is 9 bytes, 1 are left",
        ),
    ];
    for (inputs, raw_input_contents, message) in table {
        let request = ModelInferRequest { inputs, raw_input_contents, ..Default::default() };
        let error = grpc::decode_request(request, &Limits::default()).expect_err(message);
        assert_eq!((error.message.as_str(), error.code.grpc()), (message, 3));
    }
}

#[test]
fn shared_memory_is_rejected() {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let region = || {
        let name = parameter(ParameterChoice::StringParam("r".into()));
        [("shared_memory_region".to_owned(), name)].into_iter().collect()
    };
    let refused = |request| grpc::decode_request(request, &Limits::default()).unwrap_err().message;
    let unsupported = "shared memory is not supported: send and receive tensors in the body";
    let plain = input("FP32", &[1], None);
    let shared = InferInputTensor { name: "Y".into(), parameters: region(), ..plain.clone() };
    let raw_input_contents = vec![Bytes::from_static(&[0; 4])];
    let request = ModelInferRequest {
        inputs: vec![plain.clone(), shared],
        raw_input_contents: raw_input_contents.clone(),
        ..Default::default()
    };
    assert_eq!(refused(request), format!("input Y: {unsupported}"));
    let output = InferRequestedOutputTensor { name: "Z".into(), parameters: region() };
    let request = ModelInferRequest {
        inputs: vec![plain],
        outputs: vec![output],
        raw_input_contents,
        ..Default::default()
    };
    assert_eq!(refused(request), format!("output Z: {unsupported}"));
}
