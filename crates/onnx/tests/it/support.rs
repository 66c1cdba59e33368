//! Reading golden cases, and writing small ONNX files by hand.

use bytes::Bytes;
use gantry_onnx::{Options, RuntimeLibrary};
use gantry_tensor::{Elements, Tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The directory of the golden data.
pub(crate) fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/onnx").join(folder)
}

/// The built-in engines, whatever is in the environment.
pub(crate) fn built_in() -> Options {
    Options { onnx_runtime: RuntimeLibrary::Never, ..Options::default() }
}

/// An expected output.
pub(crate) struct Expected {
    pub(crate) tensor: Tensor,
    /// How far ONNX Runtime is away from it.
    pub(crate) ort: f64,
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) model: PathBuf,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<Expected>,
}

/// Every case of a folder, by name.
pub(crate) fn cases(folder: &str) -> Vec<Case> {
    let mut names: Vec<PathBuf> = std::fs::read_dir(data(folder))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    names.iter().map(|path| case(path)).collect()
}

fn case(path: &Path) -> Case {
    let body: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let list = |key: &str| body[key].as_array().unwrap().clone();
    Case {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        model: path.with_extension("onnx"),
        inputs: list("inputs").iter().map(tensor).collect(),
        outputs: list("outputs")
            .iter()
            .map(|o| Expected { tensor: tensor(o), ort: o["ort"].as_f64().unwrap() })
            .collect(),
    }
}

fn float(v: &Value) -> f64 {
    match v {
        Value::Null => f64::NAN,
        Value::String(s) if s == "inf" => f64::INFINITY,
        Value::String(_) => f64::NEG_INFINITY,
        number => number.as_f64().unwrap(),
    }
}

fn tensor(v: &Value) -> Tensor {
    let shape: Vec<usize> =
        v["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
    let data = v["data"].as_array().unwrap();
    let elements = match v["datatype"].as_str().unwrap() {
        "FP32" => Elements::Fp32(data.iter().map(|v| float(v) as f32).collect()),
        "FP64" => Elements::Fp64(data.iter().map(float).collect()),
        "INT64" => Elements::Int64(data.iter().map(|v| v.as_i64().unwrap()).collect()),
        "INT32" => Elements::Int32(data.iter().map(|v| v.as_i64().unwrap() as i32).collect()),
        "BOOL" => Elements::Bool(data.iter().map(|v| v.as_bool().unwrap()).collect()),
        "BYTES" => {
            Elements::Bytes(data.iter().map(|v| Bytes::from(v.as_str().unwrap().to_owned())).collect())
        }
        other => panic!("datatype {other}"),
    };
    Tensor::new(v["name"].as_str().unwrap(), shape, elements).unwrap()
}

/// Writes protobuf fields.
#[derive(Default, Clone)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn varint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push((v as u8) | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    pub(crate) fn int(mut self, field: u64, v: i64) -> Self {
        self.varint(field << 3);
        self.varint(v as u64);
        self
    }

    pub(crate) fn bytes(mut self, field: u64, v: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(v.len() as u64);
        self.0.extend_from_slice(v);
        self
    }

    pub(crate) fn text(self, field: u64, v: &str) -> Self {
        self.bytes(field, v.as_bytes())
    }

    pub(crate) fn message(self, field: u64, v: &Self) -> Self {
        self.bytes(field, &v.0)
    }
}

/// A tensor value info: the dimensions are open where negative.
pub(crate) fn value_info(name: &str, kind: i64, dims: &[i64]) -> Message {
    let mut shape = Message::default();
    for &d in dims {
        let dim = if d < 0 { Message::default().text(2, "N") } else { Message::default().int(1, d) };
        shape = shape.message(1, &dim);
    }
    let tensor = Message::default().int(1, kind).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

pub(crate) fn node(op: &str, domain: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let mut node = Message::default();
    for i in inputs {
        node = node.text(1, i);
    }
    for o in outputs {
        node = node.text(2, o);
    }
    node.text(3, name).text(4, op).text(7, domain)
}

/// A tensor with raw data.
pub(crate) fn initializer(name: &str, kind: i64, dims: &[i64], raw: &[u8]) -> Message {
    let mut tensor = Message::default();
    for &d in dims {
        tensor = tensor.int(1, d);
    }
    tensor.int(2, kind).text(8, name).bytes(9, raw)
}

/// A model around a graph, with opset 17 and ai.onnx.ml 3.
pub(crate) fn model(graph: &Message) -> Vec<u8> {
    let opset = |domain: &str, version| Message::default().text(1, domain).int(2, version);
    Message::default()
        .int(1, 8)
        .message(7, graph)
        .message(8, &opset("", 17))
        .message(8, &opset("ai.onnx.ml", 3))
        .0
}

/// A graph `x` → `y` of floats `[-1, 4]` with these nodes.
pub(crate) fn graph(nodes: &[Message], initializers: &[Message]) -> Message {
    let mut graph = Message::default().text(2, "g");
    for n in nodes {
        graph = graph.message(1, n);
    }
    for i in initializers {
        graph = graph.message(5, i);
    }
    graph.message(11, &value_info("x", 1, &[-1, 4])).message(12, &value_info("y", 1, &[-1, 4]))
}

pub(crate) fn attribute(name: &str, kind: i64) -> Message {
    Message::default().text(1, name).int(20, kind)
}

pub(crate) fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(attribute(name, 7), |m, &v| m.int(8, v))
}

pub(crate) fn floats(name: &str, values: &[f32]) -> Message {
    let packed: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    attribute(name, 6).bytes(7, &packed)
}

pub(crate) fn texts(name: &str, values: &[&str]) -> Message {
    values.iter().fold(attribute(name, 8), |m, v| m.text(9, v))
}
