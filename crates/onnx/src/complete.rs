//! Attributes that ONNX makes optional and rten requires, and operators that rten loads but cannot run.

use crate::native::{Opsets, UnsupportedOp};
use crate::proto::{AttributeValue, GraphProto, ModelProto, NodeProto, Reader, parse, parse_node};
use std::collections::HashMap;

/// The model with the default attributes of its convolutions and pools written out.
pub(crate) fn complete(bytes: Vec<u8>) -> Vec<u8> {
    const GRAPH: u64 = 7;
    const NODE: u64 = 1;
    let Ok(model) = parse(&bytes) else { return bytes };
    let shapes = Shapes::of(&model.graph);
    if model.graph.nodes.iter().all(|n| shapes.missing(n).is_none()) {
        return bytes;
    }
    rewrite(&bytes, |number, graph| {
        (number == GRAPH).then(|| {
            rewrite(graph, |number, node| {
                let parsed = (number == NODE).then(|| parse_node(node).ok()).flatten()?;
                let (name, values) = shapes.missing(&parsed)?;
                let mut extended = node.to_vec();
                put_ints(&mut extended, name, &values);
                Some(extended)
            })
        })
    })
}

/// Nodes of the graph that rten accepts at load, and rejects in every run.
pub(crate) fn not_run_by_rten(model: &ModelProto<'_>) -> Vec<UnsupportedOp> {
    let shapes = Shapes::of(&model.graph);
    let opset = Opsets::new(&model.opsets).version("");
    let standard = model.graph.nodes.iter().filter(|n| matches!(n.domain, "" | "ai.onnx"));
    standard
        .filter_map(|node| {
            let what = match node.op_type {
                "GRU" if int(node, "linear_before_reset") != Some(1) => {
                    "with linear_before_reset=0".to_owned()
                }
                _ => {
                    let dimensions = shapes.kernel(node).filter(|&n| n > 2)?;
                    format!("in {dimensions} dimensions")
                }
            };
            Some(UnsupportedOp {
                op: format!("{} {what}", node.op_type),
                domain: String::new(),
                opset,
                node: node.name.to_owned(),
            })
        })
        .collect()
}

/// Shapes of constant tensors, by name.
struct Shapes<'a>(HashMap<&'a str, Vec<i64>>);

impl<'a> Shapes<'a> {
    fn of(graph: &GraphProto<'a>) -> Self {
        let mut shapes: HashMap<&str, Vec<i64>> =
            graph.initializers.iter().map(|t| (t.name, t.dims.clone())).collect();
        // Nodes are in topological order in a valid model.
        for node in &graph.nodes {
            let Some(&output) = node.outputs.first() else { continue };
            let dims = match node.op_type {
                "Constant" => node.attributes.iter().find_map(|a| match &a.value {
                    AttributeValue::Tensor(t) if a.name == "value" => Some(t.dims.clone()),
                    _ => None,
                }),
                "Cast" | "DequantizeLinear" | "Identity" | "QuantizeLinear" => {
                    node.inputs.first().and_then(|i| shapes.get(*i)).cloned()
                }
                _ => None,
            };
            if let Some(dims) = dims {
                shapes.insert(output, dims);
            }
        }
        Self(shapes)
    }

    /// The attribute that rten needs and the node does not have.
    fn missing(&self, node: &NodeProto<'_>) -> Option<(&'static str, Vec<i64>)> {
        let has = |name: &str| node.attributes.iter().any(|a| a.name == name);
        match node.op_type {
            // The other attributes follow from the number of dimensions.
            "Conv" | "ConvInteger" | "ConvTranspose" if !has("kernel_shape") => {
                let kernel = self.weights(node)?.get(2..)?;
                Some(("kernel_shape", kernel.to_vec()))
            }
            "AveragePool" | "MaxPool" if !has("strides") => {
                Some(("strides", vec![1; ints(node, "kernel_shape")?.len()]))
            }
            _ => None,
        }
    }

    fn weights(&self, node: &NodeProto<'_>) -> Option<&[i64]> {
        node.inputs.get(1).and_then(|w| self.0.get(*w)).map(Vec::as_slice)
    }

    /// The number of dimensions that the kernel of a convolution or a pool has.
    fn kernel(&self, node: &NodeProto<'_>) -> Option<usize> {
        let attribute = || ints(node, "kernel_shape").map(<[i64]>::len);
        match node.op_type {
            "Conv" | "ConvInteger" | "ConvTranspose" => {
                attribute().or_else(|| self.weights(node)?.len().checked_sub(2))
            }
            "AveragePool" | "MaxPool" => attribute(),
            _ => None,
        }
    }
}

fn ints<'a>(node: &'a NodeProto<'_>, name: &str) -> Option<&'a [i64]> {
    node.attributes.iter().find_map(|a| match &a.value {
        AttributeValue::Ints(v) if a.name == name => Some(v.as_slice()),
        _ => None,
    })
}

fn int(node: &NodeProto<'_>, name: &str) -> Option<i64> {
    node.attributes.iter().find_map(|a| match a.value {
        AttributeValue::Int(v) if a.name == name => Some(v),
        _ => None,
    })
}

/// A message with some of its length-delimited fields replaced.
fn rewrite(message: &[u8], replace: impl Fn(u64, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut result = Vec::with_capacity(message.len() + 256);
    let mut reader = Reader::new(message);
    loop {
        let before = reader.rest();
        // The message was parsed before.
        let Ok(Some((number, field))) = reader.field() else { return result };
        if let Some(bytes) = field.bytes().ok().and_then(|bytes| replace(number, bytes)) {
            put_bytes(&mut result, number, &bytes);
        } else {
            let length = before.len() - reader.rest().len();
            result.extend_from_slice(before.get(..length).unwrap_or_default());
        }
    }
}

/// Appends an attribute to a node.
fn put_ints(node: &mut Vec<u8>, name: &str, values: &[i64]) {
    const ATTRIBUTE: u64 = 5;
    const INTS: u64 = 7;
    let mut attribute = Vec::new();
    put_bytes(&mut attribute, 1, name.as_bytes());
    for &value in values {
        put_varint(&mut attribute, 8 << 3);
        put_varint(&mut attribute, value as u64);
    }
    put_varint(&mut attribute, 20 << 3);
    put_varint(&mut attribute, INTS);
    put_bytes(node, ATTRIBUTE, &attribute);
}

fn put_bytes(to: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(to, number << 3 | 2);
    put_varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A convolution and a pool without optional attributes.
    fn network() -> Vec<u8> {
        let node = |op: &str, inputs: &[&str], output: &str| {
            let mut node = Vec::new();
            for input in inputs {
                put_bytes(&mut node, 1, input.as_bytes());
            }
            put_bytes(&mut node, 2, output.as_bytes());
            put_bytes(&mut node, 4, op.as_bytes());
            node
        };
        let mut weights = Vec::new();
        for size in [1, 1, 3, 2] {
            put_varint(&mut weights, 1 << 3);
            put_varint(&mut weights, size);
        }
        put_bytes(&mut weights, 8, b"w");
        let mut pool = node("MaxPool", &["c"], "y");
        put_ints(&mut pool, "kernel_shape", &[2, 2]);
        let mut graph = Vec::new();
        put_bytes(&mut graph, 1, &node("Conv", &["x", "w"], "c"));
        put_bytes(&mut graph, 1, &pool);
        put_bytes(&mut graph, 5, &weights);
        let mut model = Vec::new();
        put_bytes(&mut model, 7, &graph);
        model
    }

    #[test]
    fn missing_attributes_are_added_once() {
        let completed = complete(network());
        let model = parse(&completed).unwrap();
        let [conv, pool] = model.graph.nodes.as_slice() else { panic!("two nodes") };
        assert_eq!(ints(conv, "kernel_shape"), Some(&[3, 2][..]));
        assert_eq!(ints(pool, "strides"), Some(&[1, 1][..]));
        assert_eq!(complete(completed.clone()), completed);
    }

    proptest! {
        #[test]
        fn mutated_networks_stay_readable(
            edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = network();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let readable = parse(&bytes).is_ok();
            prop_assert_eq!(parse(&complete(bytes)).is_ok(), readable);
        }
    }
}
