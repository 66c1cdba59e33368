//! Bodies of real clients.

use bytes::Bytes;
use gantry_oip::{InferRequest, InferResponse, Limits, Parameter, rest};
use gantry_tensor::{Elements, Tensor};

fn read(body: &str) -> InferRequest {
    rest::decode_request(Bytes::copy_from_slice(body.as_bytes()), None, &Limits::default()).unwrap()
}

#[test]
fn key_order_and_nesting_are_free() {
    let expected = Tensor::new("X", [2, 2], Elements::Fp32(vec![5.1, 3.5, -1.0, 2e-3])).unwrap();
    for body in [
        r#"{"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":[5.1,3.5,-1,2e-3]}]}"#,
        r#"{"inputs":[{"data":[[5.1,3.5],[-1.0,0.002]],"datatype":"FP32","name":"X","shape":[2,2]}]}"#,
        r#" { "id" : null, "unknown" : {"a":[1,{"b":null}]}, "inputs" : [ { "shape" : [ 2 , 2 ] , "data" : [ [ 5.1 , 3.5 ] , [ -1 , 2E-3 ] ] , "name" : "X" , "extra" : 1 , "datatype" : "FP32" } ] } "#,
    ] {
        assert_eq!(read(body).inputs[0].tensor, expected, "{body}");
    }
}

#[test]
fn all_request_fields_are_decoded() {
    let request = read(
        r#"{"id":"42","parameters":{"a":true,"b":-3,"c":1.5,"d":"x","e":null,"binary_data_output":true},
            "inputs":[{"name":"s","shape":[3],"datatype":"BYTES","parameters":{"content_type":"str"},"data":["é","","a\n\u00e9\ud83d\ude00"]},
                      {"name":"b","shape":[4],"datatype":"BOOL","data":[true,false,1,0]},
                      {"name":"i","shape":[2],"datatype":"INT8","data":[1.0,-1e2]},
                      {"name":"e","shape":[0,4],"datatype":"INT64","data":[]}],
            "outputs":[{"name":"y","parameters":{"binary_data":false,"classification":2,"k":1}},{"name":"z"}]}"#,
    );
    assert_eq!(request.id, "42");
    assert_eq!(
        request.parameters.into_iter().collect::<Vec<_>>(),
        [
            ("a".to_owned(), Parameter::Bool(true)),
            ("b".to_owned(), Parameter::I64(-3)),
            ("c".to_owned(), Parameter::F64(1.5)),
            ("d".to_owned(), Parameter::String("x".into())),
        ]
    );
    let elements: Vec<_> = request.inputs.iter().map(|t| t.tensor.elements().clone()).collect();
    assert_eq!(
        elements,
        [
            Elements::Bytes(["é", "", "a\né😀"].map(Bytes::from).to_vec()),
            Elements::Bool(vec![true, false, true, false]),
            Elements::Int8(vec![1, -100]),
            Elements::Int64(vec![]),
        ]
    );
    assert_eq!(request.inputs[0].parameters["content_type"], Parameter::String("str".into()));
    assert_eq!(request.outputs[0].binary, Some(false));
    assert_eq!(request.outputs[0].classification, Some(2));
    assert_eq!(request.outputs[0].parameters["k"], Parameter::I64(1));
    assert!(request.binary_data_output);
}

#[test]
fn outputs_have_the_requested_form() {
    let request = read(
        r#"{"inputs":[{"name":"X","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{"binary_data_output":true},
            "outputs":[{"name":"a","parameters":{"binary_data":false}},{"name":"b"}]}"#,
    );
    let response = InferResponse {
        model_name: "m_1".into(),
        model_version: "1".into(),
        outputs: vec![
            Tensor::new("a", [2], Elements::Fp32(vec![0.1, f32::NAN])).unwrap().into(),
            Tensor::new("b", [1], Elements::Int32(vec![7])).unwrap().into(),
        ],
        ..Default::default()
    };
    let encoded = rest::encode_response(&response, &request).unwrap();
    let length = encoded.header_length.unwrap();
    let (json, binary) = encoded.body.split_at(length);
    assert_eq!(
        std::str::from_utf8(json).unwrap(),
        r#"{"model_name":"m_1","model_version":"1","outputs":[{"name":"a","shape":[2],"datatype":"FP32","data":[0.1,null]},{"name":"b","shape":[1],"datatype":"INT32","parameters":{"binary_data_size":4}}]}"#
    );
    assert_eq!(binary, 7i32.to_le_bytes());
    let text = Tensor::new("t", [1], Elements::Bytes(vec![Bytes::from_static(&[255])])).unwrap();
    let error = rest::encode_response(
        &InferResponse { outputs: vec![text.into()], ..Default::default() },
        &InferRequest::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.message,
        "output t: element 0 is not UTF-8, which JSON cannot carry: use binary data or gRPC"
    );
}

#[test]
fn errors_and_metadata_encode_as_json() {
    use gantry_oip::{IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata};
    use gantry_tensor::{DataType, TensorSpec};
    let text = |b: Bytes| String::from_utf8(b.to_vec()).unwrap();
    assert_eq!(text(rest::error_body("a \"b\"\n\u{1}é")), "{\"error\":\"a \\\"b\\\"\\n\\u0001é\"}");
    let spec = |name: &str, shape: &[i64]| TensorSpec {
        name: name.into(),
        datatype: DataType::Fp32,
        shape: shape.to_vec(),
    };
    let model = ModelMetadata {
        name: "iris".into(),
        versions: vec!["1".into()],
        platform: "onnx".into(),
        inputs: vec![spec("X", &[-1, 4])],
        outputs: vec![spec("Y", &[-1])],
        ..Default::default()
    };
    assert_eq!(
        text(rest::encode_model_metadata(&model)),
        r#"{"name":"iris","versions":["1"],"platform":"onnx","inputs":[{"name":"X","datatype":"FP32","shape":[-1,4]}],"outputs":[{"name":"Y","datatype":"FP32","shape":[-1]}]}"#
    );
    let server = ServerMetadata {
        name: "gantry".into(),
        version: "1".into(),
        extensions: vec!["binary_tensor_data".into()],
    };
    assert_eq!(
        text(rest::encode_server_metadata(&server)),
        r#"{"name":"gantry","version":"1","extensions":["binary_tensor_data"]}"#
    );
    let entry =
        IndexEntry { name: "iris".into(), version: "1".into(), state: "READY".into(), reason: String::new() };
    assert_eq!(
        text(rest::encode_index(&[entry])),
        r#"[{"name":"iris","version":"1","state":"READY","reason":""}]"#
    );
    let stats = text(rest::encode_statistics(&[ModelStatistics {
        name: "iris".into(),
        inference_count: 3,
        ..Default::default()
    }]));
    let value: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(value["model_stats"][0]["inference_count"], 3);
    assert_eq!(value["model_stats"][0]["inference_stats"]["success"]["count"], 0);
}
