//! Invalid REST bodies and their error messages.

use gantry_oip::{Code, Limits, rest};

fn limits() -> Limits {
    Limits {
        body: 4096,
        elements: 1000,
        bytes_elements: 100,
        tensors: 3,
        rank: 4,
        parameters: 2,
        text: 16,
        depth: 8,
    }
}

/// The error of a JSON-only body.
fn refused(body: &[u8]) -> String {
    let error = rest::decode_request(body.to_vec().into(), None, &limits()).expect_err("it must be refused");
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    error.message
}

/// A body with one input of these members.
fn input(members: &str) -> String {
    format!("{{\"inputs\":[{{{members}}}]}}")
}

const TYPES: &str =
    "BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES";

#[test]
fn invalid_documents_are_rejected() {
    let long = "x".repeat(17);
    let table: Vec<(String, String)> = [
        ("", "the body is empty: send a JSON object with \"inputs\""),
        ("  \n ", "the body is empty: send a JSON object with \"inputs\""),
        ("[]", "the body must be a JSON object with \"inputs\""),
        ("hello", "the body must be a JSON object with \"inputs\""),
        ("{", "the body is not valid JSON: it ends where a key in quotes was expected"),
        ("{}", "the body has no \"inputs\""),
        ("{\"inputs\":[]}", "\"inputs\" is empty: a model needs at least one tensor"),
        ("{\"inputs\":{}}", "\"inputs\" must be an array of tensors"),
        ("{\"inputs\":[1]}", "input 0 must be an object"),
        ("{\"inputs\":null}", "\"inputs\" must be an array of tensors"),
        ("{\"inputs\" []}", "the body is not valid JSON: expected ':' at byte 10"),
        ("{\"id\":7}", "id must be a string (at byte 6)"),
        ("{\"id\":\"a\",\"id\":\"b\"}", "the body has \"id\" twice"),
        ("{\"id\":\"a\"} x", "the body is not valid JSON: unexpected data after the end, at byte 11"),
        ("{\"id\":\"\\x\"}", "the body is not valid JSON: an unknown escape in the string at byte 7"),
        (
            "{\"id\":\"\\ud800\"}",
            "the body is not valid JSON: half of a surrogate pair in the string at byte 13",
        ),
        (
            "{\"id\":\"\\u12g4\"}",
            "the body is not valid JSON: \\u needs four hex digits in the string at byte 7",
        ),
        ("{\"id\":\"a", "the body is not valid JSON: it ends where the end of a string was expected"),
        (
            "{\"id\":\"a\nb\"}",
            "the body is not valid JSON: a control character in a string must be escaped, at byte 8",
        ),
        ("{\"parameters\":[]}", "parameters: parameters must be an object"),
        (
            "{\"parameters\":{\"a\":[1]}}",
            "parameters: parameter \"a\" must be a string, a number, true or false",
        ),
        ("{\"parameters\":{\"a\":1,\"a\":2}}", "parameters: parameter \"a\" appears twice"),
        ("{\"parameters\":{\"a\":1e999}}", "parameters: the number 1e999 is too large"),
        ("{\"parameters\":{\"a\":1,\"b\":2,\"c\":3}}", "parameters: more than the 2 parameters allowed"),
        ("{\"other\":[[[[[[[[[]]]]]]]]]}", "the JSON is nested deeper than 8 levels"),
        ("{\"other\":[1,]}", "the body is not valid JSON: expected a value at byte 12"),
        ("{\"other\":01}", "the body is not valid JSON: expected a number at byte 9"),
        ("{\"other\":truth}", "the body is not valid JSON: expected a value at byte 9"),
        ("{\"outputs\":{}}", "\"outputs\" must be an array of objects with a \"name\""),
        ("{\"outputs\":[{}]}", "output 0 has no \"name\""),
        ("{\"outputs\":[{\"name\":\"a\"},{\"name\":\"a\"}]}", "output a is requested twice"),
        (
            "{\"outputs\":[{\"name\":\"a\",\"parameters\":{\"binary_data\":1}}]}",
            "output a: binary_data must be true or false",
        ),
        (
            "{\"outputs\":[{\"name\":\"a\",\"parameters\":{\"classification\":0}}]}",
            "output a: classification must be the number of classes",
        ),
    ]
    .into_iter()
    .map(|(body, message)| (body.to_owned(), message.to_owned()))
    .chain([(format!("{{\"id\":\"{long}\"}}"), "id has 17 bytes, more than the 16 allowed".to_owned())])
    .collect();
    for (body, message) in table {
        assert_eq!(refused(body.as_bytes()), message, "{body}");
    }
    assert_eq!(
        refused(b"{\"id\":\"\xff\"}"),
        "the body is not valid JSON: the string at byte 7 is not UTF-8"
    );
    assert_eq!(refused("[".repeat(4000).as_bytes()), "the body must be a JSON object with \"inputs\"");
    assert_eq!(
        refused(format!("{{\"x\":{}", "[".repeat(4000)).as_bytes()),
        "the JSON is nested deeper than 8 levels"
    );
}

#[test]
fn invalid_tensors_are_rejected() {
    let fp32 = |shape: &str, data: &str| {
        input(&format!("\"name\":\"X\",\"shape\":{shape},\"datatype\":\"FP32\",\"data\":{data}"))
    };
    let typed = |datatype: &str, data: &str| {
        input(&format!("\"name\":\"X\",\"shape\":[1],\"datatype\":\"{datatype}\",\"data\":{data}"))
    };
    let unknown = format!("input X: datatype \"FLOAT\" is not one of {TYPES}");
    let table: Vec<(String, &str)> = vec![
        (fp32("[1,4]", "[1,2,3]"), "input X: shape [1,4] needs 4 values, got 3"),
        (fp32("[1,4]", "[1,2,3,4,5]"), "input X: shape [1,4] needs 4 values, got 5"),
        (fp32("[0]", "[1]"), "input X: shape [0] needs 0 values, got 1"),
        (fp32("[2,2]", "[[1,2],[3]]"), "input X: the rows of data differ in length"),
        (fp32("[2]", "[[1],2]"), "input X: the rows of data are nested unevenly"),
        (fp32("[2]", "[1,[2]]"), "input X: the rows of data are nested unevenly"),
        (fp32("[2]", "[[1],[[2]]]"), "input X: the rows of data are nested unevenly"),
        (fp32("[1]", "[[[[[[[[[1]]]]]]]]]"), "input X: the JSON is nested deeper than 8 levels"),
        (fp32("[1]", "1"), "input X: data must be an array"),
        (fp32("[1]", "null"), "input X: data must be an array"),
        (fp32("[2]", "[1,null]"), "input X: element 1 is null: every element of FP32 needs a value"),
        (
            fp32("[2]", "[1,NaN]"),
            "input X: element 1 is NaN or infinite, which JSON cannot carry: send the tensor as binary data or over gRPC",
        ),
        (
            fp32("[2]", "[-Infinity,1]"),
            "input X: element 0 is NaN or infinite, which JSON cannot carry: send the tensor as binary data or over gRPC",
        ),
        (fp32("[1]", "[1e39]"), "input X: element 0 is out of the range of FP32"),
        (fp32("[1]", "[\"1\"]"), "input X: element 0 must be a number for FP32"),
        (fp32("[1]", "[true]"), "input X: element 0 must be a number for FP32"),
        (fp32("[1]", "[1"), "input X: the body is not valid JSON: expected ',' or ']' at byte 62"),
        (fp32("[1]", "[1,]"), "input X: the body is not valid JSON: expected a number at byte 63"),
        (fp32("[-1]", "[]"), "input X: shape [-1] has a negative dimension"),
        (fp32("[1.5]", "[]"), "input 0: shape has 1.5, which is not a valid dimension"),
        (fp32("[99999999999999999999]", "[]"), "input 0: shape has 99999999999999999999, which is not a valid dimension"),
        (fp32("[9223372036854775807,3]", "[]"), "input X: the product of shape [9223372036854775807,3] is too large"),
        (fp32("[1000,1000]", "[]"), "input X: shape [1000,1000] has 1000000 elements, more than the 1000 allowed"),
        (fp32("[1,1,1,1,1]", "[1]"), "input 0: shape has more than the 4 dimensions allowed"),
        (fp32("\"x\"", "[1]"), "input 0: shape must be an array of integers"),
        (fp32("[\"1\"]", "[1]"), "input 0: shape must be an array of integers"),
        (typed("FLOAT", "[1]"), &unknown),
        (typed("UINT8", "[256]"), "input X: element 0 is out of the range of UINT8"),
        (typed("UINT8", "[-1]"), "input X: element 0 is out of the range of UINT8"),
        (typed("INT8", "[-129]"), "input X: element 0 is out of the range of INT8"),
        (typed("INT32", "[1.5]"), "input X: element 0 is not an integer, as INT32 needs"),
        (typed("INT64", "[9223372036854775808]"), "input X: element 0 is out of the range of INT64"),
        (typed("UINT64", "[18446744073709551616]"), "input X: element 0 is out of the range of UINT64"),
        (typed("INT16", "[1e-400]"), "input X: element 0 is not an integer, as INT16 needs"),
        (typed("FP16", "[65520]"), "input X: element 0 is out of the range of FP16"),
        (typed("BF16", "[1e39]"), "input X: element 0 is out of the range of BF16"),
        (typed("FP64", "[1e400]"), "input X: element 0 is out of the range of FP64"),
        (typed("BOOL", "[2]"), "input X: element 0 must be true or false for BOOL"),
        (typed("BOOL", "[\"true\"]"), "input X: element 0 must be true or false for BOOL"),
        (typed("BYTES", "[1]"), "input X: element 0 must be a string for BYTES"),
        (typed("BYTES", "[null]"), "input X: element 0 is null: every element of BYTES needs a value"),
        (input("\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]"), "input 0 has no \"name\""),
        (input("\"name\":\"\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]"), "input 0 has no \"name\""),
        (input("\"name\":\"X\",\"datatype\":\"FP32\",\"data\":[1]"), "input X has no \"shape\""),
        (input("\"name\":\"X\",\"shape\":[1],\"data\":[1]"), "input X has no \"datatype\""),
        (input("\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\""), "input X has no \"data\" and no binary_data_size"),
        (input("\"name\":\"X\",\"name\":\"Y\""), "input 0 has \"name\" twice"),
        (
            input("\"data\":[1,2],\"datatype\":\"FP32\",\"name\":\"X\",\"shape\":[3]"),
            "input X: shape [3] needs 3 values, got 2",
        ),
        (
            "{\"inputs\":[{\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]},{\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]}]}".to_owned(),
            "input X appears twice",
        ),
        (
            input("\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4}"),
            "input X: binary_data_size without the header Inference-Header-Content-Length, which marks the start of the binary data",
        ),
        (
            input("\"name\":\"X\",\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4},\"data\":[1]"),
            "input X has both \"data\" and binary_data_size",
        ),
        (
            input("\"name\":\"X\",\"shape\":[101],\"datatype\":\"BYTES\",\"data\":[]"),
            "input X: shape [101] has 101 elements, more than the 100 allowed",
        ),
    ];
    assert!(table.len() >= 40);
    for (body, message) in table {
        assert_eq!(refused(body.as_bytes()), message, "{body}");
    }
    let one = "{\"name\":\"N\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]}";
    let many: Vec<String> = (0..4).map(|i| one.replace('N', &i.to_string())).collect();
    assert_eq!(
        refused(format!("{{\"inputs\":[{}]}}", many.join(",")).as_bytes()),
        "\"inputs\" has more than the 3 tensors allowed"
    );
}

#[test]
fn inconsistent_binary_data_is_rejected() {
    let json = |size: &str, datatype: &str, shape: &str| {
        input(&format!(
            "\"name\":\"X\",\"shape\":{shape},\"datatype\":\"{datatype}\",\"parameters\":{{\"binary_data_size\":{size}}}"
        ))
    };
    let refused = |json: String, length: Option<usize>, binary: &[u8]| {
        let length = length.unwrap_or(json.len());
        let mut body = json.into_bytes();
        body.extend_from_slice(binary);
        rest::decode_request(body.into(), Some(length), &limits()).expect_err("it must be refused")
    };
    let table: Vec<(String, Option<usize>, &[u8], &str)> = vec![
        (
            json("4", "FP32", "[1]"),
            Some(9999),
            &[],
            "Inference-Header-Content-Length is 9999, but the body has 91 bytes",
        ),
        (
            json("4", "FP32", "[1]"),
            None,
            &[0; 3],
            "input X: binary_data_size is 4, but 3 bytes of binary data are left",
        ),
        (
            json("4", "FP32", "[1]"),
            None,
            &[0; 5],
            "1 bytes are left of the binary data after the last tensor: its parts must add up to the body",
        ),
        (json("3", "FP32", "[1]"), None, &[0; 3], "input X: shape [1] of FP32 needs 4 bytes, got 3"),
        (json("-1", "FP32", "[1]"), None, &[], "input X: binary_data_size is negative"),
        (json("\"4\"", "FP32", "[1]"), None, &[0; 4], "input X: binary_data_size must be an integer"),
        (
            json("99999999999999999999", "FP32", "[1]"),
            None,
            &[],
            "input X: binary_data_size must be an integer",
        ),
        (
            json("4", "BYTES", "[1]"),
            None,
            &[5, 0, 0, 0],
            "input X: the length prefix of element 0 is 5 bytes, 0 are left",
        ),
        (
            json("4", "BYTES", "[1]"),
            None,
            &[255; 4],
            "input X: the length prefix of element 0 is 4294967295 bytes, 0 are left",
        ),
        (
            json("6", "BYTES", "[1]"),
            None,
            &[0, 0, 0, 0, 1, 1],
            "input X: 2 bytes where element 1 starts are too few for a length prefix of 4",
        ),
        (json("4", "BYTES", "[2]"), None, &[0; 4], "input X: shape [2] needs 2 values, got 1"),
        (json("8", "BYTES", "[1]"), None, &[0; 8], "input X: shape [1] needs 1 values, got 2"),
        (json("1", "BOOL", "[1]"), None, &[2], "input X: element 0 of a BOOL tensor must be a byte 0 or 1"),
        (
            json("4", "FP32", "[1]"),
            Some(9),
            &[0; 4],
            "the body is not valid JSON: it ends where ':' was expected",
        ),
    ];
    for (json, length, binary, message) in table {
        assert_eq!(refused(json.clone(), length, binary).message, message, "{json}");
    }
    let large = rest::decode_request(vec![b' '; 5000].into(), None, &limits()).expect_err("too large");
    assert_eq!(large.code, Code::PayloadTooLarge);
    assert_eq!(large.message, "the body has 5000 bytes, more than the 4096 allowed");
}

#[test]
fn compressed_bodies_are_bounded() {
    use rest::{Encoding, compress, decompress};
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        let bomb = compress(&vec![0; 1 << 20], encoding).unwrap();
        assert!(bomb.len() < 10_000);
        assert_eq!(decompress(bomb.clone(), encoding, 1 << 20).unwrap().len(), 1 << 20);
        let error = decompress(bomb, encoding, (1 << 20) - 1).unwrap_err();
        assert_eq!(error.code, Code::PayloadTooLarge);
        assert!(
            decompress(vec![1, 2, 3].into(), encoding, 100)
                .unwrap_err()
                .message
                .starts_with("the body is not valid")
        );
    }
    assert_eq!(
        Encoding::parse(Some(b"br")).unwrap_err().message,
        "Content-Encoding \"br\" is not one of identity, gzip, deflate"
    );
    assert_eq!(Encoding::parse(Some(b" GZIP ")), Ok(Encoding::Gzip));
}

#[test]
fn shared_memory_is_rejected() {
    let region = r#""parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}"#;
    let unsupported = "shared memory is not supported: send and receive tensors in the body";
    let described = r#""name":"X","shape":[1],"datatype":"FP32""#;
    assert_eq!(
        refused(input(&format!("{described},{region}")).as_bytes()),
        format!("input 0: {unsupported}")
    );
    let output = format!(r#"{{"inputs":[{{{described},"data":[1]}}],"outputs":[{{"name":"Y",{region}}}]}}"#);
    assert_eq!(refused(output.as_bytes()), format!("output Y: {unsupported}"));
}
