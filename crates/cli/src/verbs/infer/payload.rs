//! The request's body: what the user wrote, or what the model's metadata says it takes.

use crate::failure::Failure;
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// Most elements that are made up for one input.
const MOST_ZEROS: usize = 16 << 20;
/// How deep lists of values may be nested: as many dimensions as a tensor may have.
const DEEPEST: usize = 32;

/// A request of the Open Inference Protocol, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) json: Bytes,
}

/// An input as the model's metadata describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
}

impl Payload {
    /// A whole request as the user wrote it; `None` when only values were written.
    pub(super) fn given(text: &[u8]) -> Result<Option<Self>, Failure> {
        let value = read(text)?;
        match &value {
            Value::Object(map) if map.contains_key("inputs") => {
                // As it was written: numbers keep their digits.
                Ok(Some(Self { json: Bytes::copy_from_slice(text.trim_ascii()) }))
            }
            Value::Object(_) | Value::Array(_) => Ok(None),
            _ => Err(Failure::usage(
                "DATA is neither a request with \"inputs\", nor a list of values, nor an object with a list for each input",
            )),
        }
    }

    /// A request from values without types: a list for the only input, or an object with a list for each.
    pub(super) fn from_values(text: &[u8], inputs: &[Input]) -> Result<Self, Failure> {
        let names = || inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        let tensors = match read(text)? {
            Value::Object(map) => {
                let mut tensors = Vec::new();
                for (name, values) in &map {
                    let input = inputs.iter().find(|i| i.name == *name).ok_or_else(|| {
                        let meant = gantry_api::nearest(name, inputs.iter().map(|i| i.name.as_str()))
                            .map(|n| format!(" Did you mean {n}?"))
                            .unwrap_or_default();
                        Failure::usage(format!(
                            "\"{}\" is not an input of the model; it has {}.{meant}",
                            name.escape_debug(),
                            names()
                        ))
                    })?;
                    tensors.push(tensor(input, values)?);
                }
                tensors
            }
            values => {
                let [input] = inputs else {
                    return Err(Failure::usage(format!(
                        "the model has {} inputs ({}): write an object with a list for each",
                        inputs.len(),
                        names()
                    )));
                };
                vec![tensor(input, &values)?]
            }
        };
        Ok(Self { json: json!({ "inputs": tensors }).to_string().into() })
    }

    /// Zeros for every input, 1 for each dimension that is free.
    pub(super) fn zeros(inputs: &[Input]) -> Result<Self, Failure> {
        if inputs.is_empty() {
            return Err(Failure::usage("the model does not tell its inputs: give DATA"));
        }
        let mut tensors = Vec::new();
        for input in inputs {
            let shape: Vec<usize> = input.shape.iter().map(|&d| usize::try_from(d).unwrap_or(1)).collect();
            let elements =
                shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|n| *n <= MOST_ZEROS);
            let Some(elements) = elements else {
                return Err(Failure::usage(format!(
                    "input {} has shape {:?}, too large to fill with zeros: give DATA",
                    input.name, input.shape
                )));
            };
            let zero = match input.datatype.as_str() {
                "BOOL" => json!(false),
                "BYTES" => json!(""),
                _ => json!(0),
            };
            tensors.push(json!({
                "name": input.name,
                "shape": shape,
                "datatype": input.datatype,
                "data": vec![zero; elements],
            }));
        }
        Ok(Self { json: json!({ "inputs": tensors }).to_string().into() })
    }

    /// The inputs as they stand in the request.
    pub(super) fn inputs(&self) -> Vec<Map<String, Value>> {
        let value: Value = serde_json::from_slice(&self.json).unwrap_or_default();
        let inputs = value.get("inputs").and_then(Value::as_array).cloned().unwrap_or_default();
        inputs.into_iter().filter_map(|i| if let Value::Object(map) = i { Some(map) } else { None }).collect()
    }
}

fn read(text: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(text).map_err(|e| Failure::usage(format!("DATA is not JSON: {e}")))
}

/// A tensor from nested lists.
fn tensor(input: &Input, values: &Value) -> Result<Value, Failure> {
    let mut shape = Vec::new();
    let mut at = values;
    while let Value::Array(items) = at {
        shape.push(items.len());
        if shape.len() > DEEPEST {
            return Err(Failure::usage(format!(
                "input {}: lists are nested deeper than {DEEPEST}",
                input.name
            )));
        }
        let Some(first) = items.first() else { break };
        at = first;
    }
    let mut data = Vec::new();
    flatten(input, values, &shape, &mut data)?;
    // One row where a batch is expected is a batch of one.
    if shape.len() + 1 == input.shape.len() {
        shape.insert(0, 1);
    }
    Ok(json!({ "name": input.name, "shape": shape, "datatype": input.datatype, "data": data }))
}

fn flatten(input: &Input, value: &Value, shape: &[usize], into: &mut Vec<Value>) -> Result<(), Failure> {
    let ragged = || {
        Failure::usage(format!(
            "input {}: the lists are of different lengths, so they have no shape",
            input.name
        ))
    };
    match (value, shape.split_first()) {
        (Value::Array(items), Some((length, rest))) if items.len() == *length => {
            items.iter().try_for_each(|item| flatten(input, item, rest, into))
        }
        (Value::Array(_), _) | (_, Some(_)) => Err(ragged()),
        (Value::Object(_) | Value::Null, None) => Err(Failure::usage(format!(
            "input {}: values are numbers, texts, true or false; got {value}",
            input.name
        ))),
        (scalar, None) => {
            into.push(scalar.clone());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, datatype: &str, shape: &[i64]) -> Input {
        Input { name: name.into(), datatype: datatype.into(), shape: shape.to_vec() }
    }

    fn said(result: Result<Payload, Failure>) -> String {
        match result {
            Ok(payload) => String::from_utf8(payload.json.to_vec()).unwrap(),
            Err(failure) => failure.message,
        }
    }

    #[test]
    fn zeros_have_the_shape_of_the_metadata() {
        for (inputs, expected) in [
            (
                vec![input("X", "FP32", &[-1, 2])],
                r#"{"inputs":[{"data":[0,0],"datatype":"FP32","name":"X","shape":[1,2]}]}"#,
            ),
            (
                vec![input("a", "BYTES", &[-1]), input("b", "BOOL", &[2])],
                r#"{"inputs":[{"data":[""],"datatype":"BYTES","name":"a","shape":[1]},{"data":[false,false],"datatype":"BOOL","name":"b","shape":[2]}]}"#,
            ),
            (
                vec![input("s", "INT64", &[])],
                r#"{"inputs":[{"data":[0],"datatype":"INT64","name":"s","shape":[]}]}"#,
            ),
            (
                vec![input("huge", "FP32", &[i64::MAX, i64::MAX])],
                "input huge has shape [9223372036854775807, 9223372036854775807], too large to fill with zeros: give DATA",
            ),
            (vec![], "the model does not tell its inputs: give DATA"),
        ] {
            assert_eq!(said(Payload::zeros(&inputs)), expected);
        }
    }

    #[test]
    fn values_become_tensors() {
        let x = [input("X", "FP32", &[-1, 2])];
        let two = [input("a", "INT64", &[-1]), input("b", "BYTES", &[-1])];
        let tensor = |shape: &str, data: &str| {
            format!(r#"{{"inputs":[{{"data":{data},"datatype":"FP32","name":"X","shape":{shape}}}]}}"#)
        };
        for (text, inputs, expected) in [
            ("[[1, 2.5]]", &x[..], tensor("[1,2]", "[1,2.5]")),
            ("[1, 2]", &x, tensor("[1,2]", "[1,2]")),
            ("[[1,2],[3,4]]", &x, tensor("[2,2]", "[1,2,3,4]")),
            (r#"{"X": [[1,2]]}"#, &x, tensor("[1,2]", "[1,2]")),
            ("[[1,2],[3]]", &x, "input X: the lists are of different lengths, so they have no shape".into()),
            ("[[1,2],3]", &x, "input X: the lists are of different lengths, so they have no shape".into()),
            ("[1,[2]]", &x, "input X: the lists are of different lengths, so they have no shape".into()),
            ("[[null, 1]]", &x, "input X: values are numbers, texts, true or false; got null".into()),
            (r#"{"Y": [1]}"#, &x, "\"Y\" is not an input of the model; it has X. Did you mean X?".into()),
            ("[1]", &two, "the model has 2 inputs (a, b): write an object with a list for each".into()),
            (
                r#"{"a":[1],"b":["x"]}"#,
                &two,
                r#"{"inputs":[{"data":[1],"datatype":"INT64","name":"a","shape":[1]},{"data":["x"],"datatype":"BYTES","name":"b","shape":[1]}]}"#.into(),
            ),
            ("[1,", &x, "DATA is not JSON: EOF while parsing a value at line 1 column 3".into()),
        ] {
            assert_eq!(said(Payload::from_values(text.as_bytes(), inputs)), expected, "{text}");
        }
        let deep = "[".repeat(40) + &"]".repeat(40);
        assert!(said(Payload::from_values(deep.as_bytes(), &x)).contains("nested deeper than 32"));
    }

    #[test]
    fn a_whole_request_is_sent_as_it_was_written() {
        let text = br#" {"inputs":[{"data":[1.10]}]} "#;
        assert_eq!(Payload::given(text).unwrap().unwrap().json, text.trim_ascii());
        assert_eq!(Payload::given(b"[1]").unwrap(), None);
        assert!(Payload::given(b"7").unwrap_err().message.starts_with("DATA is neither"));
        assert!(Payload::given(b"{").unwrap_err().message.starts_with("DATA is not JSON"));
    }
}
