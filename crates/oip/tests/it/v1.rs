//! The V1 protocol: instances to tensors, outputs to predictions, invalid bodies.

use gantry_oip::{InferTensor, Limits, fuzz, v1};
use gantry_tensor::{DataType, Elements, Tensor, TensorSpec};
use proptest::{collection::vec, prelude::*};

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

fn iris() -> Vec<TensorSpec> {
    vec![spec("X", DataType::Fp32, &[-1, 4])]
}

fn two() -> Vec<TensorSpec> {
    vec![spec("a", DataType::Int64, &[-1, 2]), spec("b", DataType::Bytes, &[-1])]
}

/// Decoded inputs as `name datatype shape elements`.
fn decode(inputs: &[TensorSpec], body: &str) -> Result<String, String> {
    let request = v1::decode_request(body.to_owned().into(), inputs, &Limits::default());
    let show = |t: &InferTensor| {
        let tensor = &t.tensor;
        let elements = format!("{:?}", tensor.elements());
        format!("{} {:?} {elements}", tensor.name(), tensor.shape())
    };
    request.map(|r| r.inputs.iter().map(show).collect::<Vec<_>>().join("; ")).map_err(|e| {
        assert_eq!(e.code.http(), 400, "{e}");
        e.message
    })
}

#[test]
fn instances_become_the_inputs_of_the_metadata() {
    let scalar = vec![spec("n", DataType::Int32, &[-1])];
    let image = vec![spec("i", DataType::Uint8, &[-1, -1, 2])];
    let none: Vec<TensorSpec> = vec![];
    for (inputs, body, expected) in [
        (
            iris(),
            r#"{"instances":[[1,2,3,4],[5,6,7,8.5]]}"#,
            "X [2, 4] Fp32([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5])",
        ),
        (iris(), r#"{"inputs":[[1,2,3,4]]}"#, "X [1, 4] Fp32([1.0, 2.0, 3.0, 4.0])"),
        (
            iris(),
            r#" { "signature_name" : "s", "instances" : [ { "X" : [1,2,3,4] } ], "x":{} } "#,
            "X [1, 4] Fp32([1.0, 2.0, 3.0, 4.0])",
        ),
        (iris(), r#"{"inputs":{"X":[[1,2,3,4]]}}"#, "X [1, 4] Fp32([1.0, 2.0, 3.0, 4.0])"),
        (scalar, r#"{"instances":[1,2,3]}"#, "n [3] Int32([1, 2, 3])"),
        (image, r#"{"instances":[[[1,2],[3,4],[5,6]]]}"#, "i [1, 3, 2] Uint8([1, 2, 3, 4, 5, 6])"),
        (
            two(),
            r#"{"instances":[{"a":[1,2],"b":"x"},{"b":"é\n","a":[3,4]}]}"#,
            "a [2, 2] Int64([1, 2, 3, 4]); b [2] Bytes([b\"x\", b\"\\xc3\\xa9\\n\"])",
        ),
        (two(), r#"{"inputs":{"b":["x"],"a":[[1,2]]}}"#, "b [1] Bytes([b\"x\"]); a [1, 2] Int64([1, 2])"),
        // Without metadata.
        (none.clone(), r#"{"instances":[[1,2]]}"#, "input-0 [1, 2] Int64([1, 2])"),
        (none.clone(), r#"{"instances":[[1,2.5]]}"#, "input-0 [1, 2] Fp64([1.0, 2.5])"),
        (none.clone(), r#"{"instances":[true]}"#, "input-0 [1] Bool([true])"),
        (none.clone(), r#"{"instances":[{"p":"x","q":1}]}"#, "p [1] Bytes([b\"x\"]); q [1] Int64([1])"),
        (none, r#"{"instances":[[],[]]}"#, "input-0 [2, 0] Bool([])"),
    ] {
        assert_eq!(decode(&inputs, body), Ok(expected.to_owned()), "{body}");
    }
}

#[test]
fn invalid_bodies_name_what_is_wrong() {
    let fixed = vec![spec("X", DataType::Fp32, &[1, 2])];
    let three: Vec<TensorSpec> = vec![];
    for (inputs, body, expected) in [
        (iris(), "", "the body must be a JSON object with \"instances\""),
        (iris(), "[]", "the body must be a JSON object with \"instances\""),
        (iris(), "{}", "the body has no \"instances\""),
        (iris(), "{\"instances\":[]}", "\"instances\" is empty: send at least one instance"),
        (iris(), "{\"instances\":5}", "\"instances\" must be an array with one element per instance"),
        (iris(), "{\"instances\":{}}", "\"instances\" must be an array with one element per instance"),
        (iris(), "{\"inputs\":{}}", "\"inputs\" has no \"X\""),
        (iris(), "{\"instances\":[[1]],\"inputs\":[[1]]}", "the body has both \"instances\" and \"inputs\""),
        (
            iris(),
            "{\"instances\":[[1,2,3,4]]",
            "the body is not valid JSON: it ends where ',' or '}' was expected",
        ),
        (
            iris(),
            "{\"instances\":[1,2,3,4]}",
            "input X: the instances are single values, but the model takes values of shape [4]",
        ),
        (
            iris(),
            "{\"instances\":[[1,2,3]]}",
            "input X: the instances are values of shape [3], but the model takes values of shape [4]",
        ),
        (iris(), "{\"instances\":[[1,2,3,4],[1,2,3]]}", "input X: the instances differ in shape"),
        (iris(), "{\"instances\":[[1,2,3,[4]]]}", "input X: the instances differ in shape"),
        (iris(), "{\"instances\":[1,[2]]}", "input X: the instances differ in shape"),
        (iris(), "{\"instances\":[[2],1]}", "input X: the instances differ in shape"),
        (iris(), "{\"instances\":[[1,2,3,\"4\"]]}", "input X: element 3 must be a number for FP32"),
        (
            iris(),
            "{\"instances\":[[1,2,3,null]]}",
            "input X: element 3 is null: every element of FP32 needs a value",
        ),
        (
            iris(),
            "{\"instances\":[[1,2,3,{}]]}",
            "input X: the values must be numbers, strings, true or false, not objects",
        ),
        (
            iris(),
            "{\"instances\":[{\"Y\":[1]}]}",
            "instance 0 has \"Y\", which is not an input of the model: it has X",
        ),
        (fixed, "{\"instances\":[[1,2],[3,4]]}", "input X: the model takes 1 instances, got 2"),
        (
            two(),
            "{\"instances\":[[1,2]]}",
            "the model has the inputs a, b: each instance must be an object with these names",
        ),
        (two(), "{\"instances\":[{\"a\":[1,2]}]}", "instance 0 has no \"b\""),
        (two(), "{\"instances\":[{\"a\":[1,2],\"a\":[1,2]}]}", "instance 0 has \"a\" twice"),
        (
            two(),
            "{\"instances\":[{\"a\":[1,2],\"b\":\"\"},7]}",
            "instance 1 must be an object, like the first",
        ),
        (
            two(),
            "{\"inputs\":{\"a\":[[1,2]],\"c\":[1]}}",
            "\"inputs\" has \"c\", which is not an input of the model: it has a, b",
        ),
        (two(), "{\"inputs\":{\"a\":1,\"b\":[]}}", "input a: the values must be an array"),
        (three.clone(), "{\"instances\":[{}]}", "instance 0 is an object without values"),
        (
            three,
            "{\"instances\":[{\"a\":1},{\"b\":1}]}",
            "instance 1 has \"b\", which is not an input of the model: it has a",
        ),
    ] {
        assert_eq!(decode(&inputs, body), Err(expected.to_owned()), "{body}");
    }
    let deep = format!("{{\"instances\":{}1{}}}", "[".repeat(40), "]".repeat(40));
    assert_eq!(decode(&[], &deep), Err("input input-0: more than the 32 dimensions allowed".into()));
    let limits = Limits { elements: 3, ..Limits::default() };
    let many = v1::decode_request("{\"instances\":[1,2,3,4]}".into(), &[], &limits).unwrap_err();
    assert_eq!(many.message, "input input-0: shape [4] has 4 elements, more than the 3 allowed");
}

#[test]
fn outputs_become_predictions() {
    let tensor = |name: &str, shape: &[usize], elements| Tensor::new(name, shape, elements).unwrap();
    let label = || tensor("label", &[2], Elements::Int64(vec![0, 2]));
    let scores = || tensor("scores", &[2, 2], Elements::Fp32(vec![0.5, 0.25, 1.0, f32::NAN]));
    for (outputs, expected) in [
        (vec![label()], r#"{"predictions":[0,2]}"#),
        (vec![scores()], r#"{"predictions":[[0.5,0.25],[1.0,null]]}"#),
        (vec![tensor("s", &[], Elements::Fp64(vec![1.5]))], r#"{"predictions":[1.5]}"#),
        (vec![tensor("s", &[2, 0], Elements::Fp64(vec![]))], r#"{"predictions":[[],[]]}"#),
        (
            vec![tensor("s", &[1, 2, 1], Elements::Bool(vec![true, false]))],
            r#"{"predictions":[[[true],[false]]]}"#,
        ),
        (
            vec![label(), scores()],
            r#"{"predictions":[{"label":0,"scores":[0.5,0.25]},{"label":2,"scores":[1.0,null]}]}"#,
        ),
        (
            vec![label(), tensor("n", &[1], Elements::Bytes(vec!["é\"".into()]))],
            r#"{"predictions":{"label":[0,2],"n":["é\""]}}"#,
        ),
        (vec![], r#"{"predictions":[]}"#),
    ] {
        let outputs: Vec<InferTensor> = outputs.into_iter().map(InferTensor::from).collect();
        assert_eq!(std::str::from_utf8(&v1::encode_response(&outputs).unwrap()).unwrap(), expected);
    }
    let bad = |tensor: Tensor| v1::encode_response(&[tensor.into()]).unwrap_err().message;
    assert_eq!(
        bad(tensor("t", &[2], Elements::Bytes(vec!["x".into(), vec![0xff].into()]))),
        "output t: element 1 is not UTF-8, which JSON cannot carry: use binary data or gRPC"
    );
    assert_eq!(bad(tensor("t", &[1 << 40, 0], Elements::Fp32(vec![]))), "output t has too many empty rows");
}

/// Text that is often nearly valid.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let token = prop::sample::select(vec![
        "{\"instances\":[",
        "{\"inputs\":{\"a\":",
        "\"a\":",
        "\"b\":",
        "[",
        "]",
        "{",
        "}",
        ",",
        "1",
        "2.5",
        "true",
        "\"x\"",
        "null",
        " ",
        "}",
        "[1,2]",
        "]}",
    ]);
    vec(token, 0..24).prop_map(|tokens| tokens.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_body_is_decoded_or_refused(choice in 0..4u8, body in body(), bytes in vec(any::<u8>(), 0..64)) {
        fuzz::v1_request(&[&[choice], body.as_slice()].concat());
        fuzz::v1_request(&bytes);
    }

    #[test]
    fn predictions_round_trip(rows in 1..5usize, width in 1..4usize, values in vec(any::<i64>(), 16), multi in any::<bool>()) {
        let tensor = |name: &str, shape: Vec<usize>| {
            let count = shape.iter().product();
            InferTensor::from(Tensor::new(name, shape, Elements::Int64(values[..count].to_vec())).unwrap())
        };
        let mut outputs = vec![tensor("a", vec![rows, width])];
        let mut inputs = vec![spec("a", DataType::Int64, &[-1, -1])];
        if multi {
            outputs.push(tensor("b", vec![rows]));
            inputs.push(spec("b", DataType::Int64, &[-1]));
        }
        let text = String::from_utf8(v1::encode_response(&outputs).unwrap().to_vec()).unwrap();
        let body = text.replacen("predictions", "instances", 1);
        let request = v1::decode_request(body.into(), &inputs, &Limits::default()).unwrap();
        prop_assert_eq!(request.inputs, outputs);
    }
}
