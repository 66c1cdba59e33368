//! Request body: a full request, values completed from the model's metadata, or zeros.

use crate::error::CommandError;
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// Largest generated input, in elements.
const MAX_ZEROS: usize = 16 << 20;
const MAX_DIMENSIONS: usize = 32;

/// An Open Inference Protocol request as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) json: Bytes,
}

/// A tensor in the model's metadata: an input, or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
}

impl Payload {
    /// A complete request, unchanged; `None` if the text only contains values.
    pub(super) fn from_request(text: &[u8]) -> Result<Option<Self>, CommandError> {
        let value = read(text)?;
        match &value {
            Value::Object(map) if map.contains_key("inputs") => {
                Ok(Some(Self { json: Bytes::copy_from_slice(text.trim_ascii()) }))
            }
            Value::Object(_) | Value::Array(_) => Ok(None),
            _ => Err(CommandError::usage(
                "DATA must be a request with \"inputs\", a list of values, or an object with a list per input",
            )),
        }
    }

    /// Values without types: a list for the only input, or an object with a list per input.
    pub(super) fn from_values(text: &[u8], inputs: &[Input]) -> Result<Self, CommandError> {
        let names = || inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        let tensors = match read(text)? {
            Value::Object(map) => {
                let mut tensors = Vec::new();
                for (name, values) in &map {
                    let input = inputs.iter().find(|i| i.name == *name).ok_or_else(|| {
                        let hint = gantry_api::nearest(name, inputs.iter().map(|i| i.name.as_str()))
                            .map(|n| format!(" Did you mean {n}?"))
                            .unwrap_or_default();
                        CommandError::usage(format!(
                            "\"{}\" is not an input of the model; inputs are {}.{hint}",
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
                    return Err(CommandError::usage(format!(
                        "the model has {} inputs ({}): pass an object with a list per input",
                        inputs.len(),
                        names()
                    )));
                };
                vec![tensor(input, &values)?]
            }
        };
        Ok(Self { json: json!({ "inputs": tensors }).to_string().into() })
    }

    /// Zeros for every input; dynamic dimensions become 1.
    pub(super) fn zeros(inputs: &[Input]) -> Result<Self, CommandError> {
        if inputs.is_empty() {
            return Err(CommandError::usage("model metadata has no inputs; pass DATA"));
        }
        let mut tensors = Vec::new();
        for input in inputs {
            let shape: Vec<usize> = input.shape.iter().map(|&d| usize::try_from(d).unwrap_or(1)).collect();
            let elements =
                shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|n| *n <= MAX_ZEROS);
            let Some(elements) = elements else {
                return Err(CommandError::usage(format!(
                    "input {} has shape {:?}, too large to fill with zeros; pass DATA",
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

    pub(super) fn inputs(&self) -> Vec<Map<String, Value>> {
        let value: Value = serde_json::from_slice(&self.json).unwrap_or_default();
        let inputs = value.get("inputs").and_then(Value::as_array).cloned().unwrap_or_default();
        inputs.into_iter().filter_map(|i| if let Value::Object(map) = i { Some(map) } else { None }).collect()
    }
}

fn read(text: &[u8]) -> Result<Value, CommandError> {
    serde_json::from_slice(text).map_err(|e| CommandError::usage(format!("DATA is not JSON: {e}")))
}

/// Builds a tensor from nested lists.
fn tensor(input: &Input, values: &Value) -> Result<Value, CommandError> {
    let mut shape = Vec::new();
    let mut at = values;
    while let Value::Array(items) = at {
        shape.push(items.len());
        if shape.len() > MAX_DIMENSIONS {
            return Err(CommandError::usage(format!(
                "input {}: more than {MAX_DIMENSIONS} nested lists",
                input.name
            )));
        }
        let Some(first) = items.first() else { break };
        at = first;
    }
    let mut data = Vec::new();
    flatten(input, values, &shape, &mut data)?;
    // A single row for a batched input becomes a batch of one.
    if shape.len() + 1 == input.shape.len() {
        shape.insert(0, 1);
    }
    Ok(json!({ "name": input.name, "shape": shape, "datatype": input.datatype, "data": data }))
}

fn flatten(input: &Input, value: &Value, shape: &[usize], data: &mut Vec<Value>) -> Result<(), CommandError> {
    let ragged = || CommandError::usage(format!("input {}: lists have different lengths", input.name));
    match (value, shape.split_first()) {
        (Value::Array(items), Some((length, rest))) if items.len() == *length => {
            items.iter().try_for_each(|item| flatten(input, item, rest, data))
        }
        (Value::Array(_), _) | (_, Some(_)) => Err(ragged()),
        (Value::Object(_) | Value::Null, None) => Err(CommandError::usage(format!(
            "input {}: values must be numbers, strings or booleans, got {value}",
            input.name
        ))),
        (scalar, None) => {
            data.push(scalar.clone());
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

    fn outcome(result: Result<Payload, CommandError>) -> String {
        match result {
            Ok(payload) => String::from_utf8(payload.json.to_vec()).unwrap(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn zeros_use_metadata_shapes() {
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
                "input huge has shape [9223372036854775807, 9223372036854775807], too large to fill with zeros; pass DATA",
            ),
            (vec![], "model metadata has no inputs; pass DATA"),
        ] {
            assert_eq!(outcome(Payload::zeros(&inputs)), expected);
        }
    }

    #[test]
    fn from_values_builds_typed_tensors() {
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
            ("[[1,2],[3]]", &x, "input X: lists have different lengths".into()),
            ("[[1,2],3]", &x, "input X: lists have different lengths".into()),
            ("[1,[2]]", &x, "input X: lists have different lengths".into()),
            ("[[null, 1]]", &x, "input X: values must be numbers, strings or booleans, got null".into()),
            (r#"{"Y": [1]}"#, &x, "\"Y\" is not an input of the model; inputs are X. Did you mean X?".into()),
            ("[1]", &two, "the model has 2 inputs (a, b): pass an object with a list per input".into()),
            (
                r#"{"a":[1],"b":["x"]}"#,
                &two,
                r#"{"inputs":[{"data":[1],"datatype":"INT64","name":"a","shape":[1]},{"data":["x"],"datatype":"BYTES","name":"b","shape":[1]}]}"#.into(),
            ),
            ("[1,", &x, "DATA is not JSON: EOF while parsing a value at line 1 column 3".into()),
        ] {
            assert_eq!(outcome(Payload::from_values(text.as_bytes(), inputs)), expected, "{text}");
        }
        let deep = "[".repeat(40) + &"]".repeat(40);
        assert!(outcome(Payload::from_values(deep.as_bytes(), &x)).contains("more than 32 nested lists"));
    }

    #[test]
    fn from_request_keeps_the_text_unchanged() {
        let text = br#" {"inputs":[{"data":[1.10]}]} "#;
        assert_eq!(Payload::from_request(text).unwrap().unwrap().json, text.trim_ascii());
        assert_eq!(Payload::from_request(b"[1]").unwrap(), None);
        assert!(Payload::from_request(b"7").unwrap_err().message.starts_with("DATA must be"));
        assert!(Payload::from_request(b"{").unwrap_err().message.starts_with("DATA is not JSON"));
    }
}
