//! Conv + `Relu` fusion: applies `Relu` before the output of the convolution leaves the cache.

use crate::proto::{AttributeValue, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// Operators that can absorb a following `Relu`.
const CAN: [&str; 1] = ["Conv"];

/// Pairs of nodes to fuse.
#[derive(Default)]
pub(super) struct Fused<'g> {
    /// The second node, by the name of the value between the two.
    seconds: HashMap<&'g str, &'g NodeProto<'g>>,
    /// Outputs of the second nodes.
    given: HashSet<&'g str>,
}

impl<'g> Fused<'g> {
    pub(super) fn of(graph: &'g GraphProto<'g>) -> Self {
        // A subgraph may read any value of this graph.
        let nested =
            |n: &NodeProto<'_>| n.attributes.iter().any(|a| matches!(a.value, AttributeValue::Graph(_)));
        if graph.nodes.iter().any(nested) {
            return Self::default();
        }
        let mut readers: HashMap<&str, usize> = HashMap::new();
        let read = graph.nodes.iter().flat_map(|n| n.inputs.iter().copied());
        for name in read.chain(graph.outputs.iter().map(|o| o.name)) {
            *readers.entry(name).or_default() += 1;
        }
        let firsts: HashSet<&str> = graph
            .nodes
            .iter()
            .filter(|n| standard(n) && CAN.contains(&n.op_type) && n.outputs.len() == 1)
            .filter_map(|n| n.outputs.first().copied())
            .filter(|name| readers.get(name) == Some(&1))
            .collect();
        let mut fused = Self::default();
        for node in graph.nodes.iter().filter(|n| standard(n) && n.op_type == "Relu") {
            if let ([from], [to]) = (node.inputs.as_slice(), node.outputs.as_slice())
                && firsts.contains(from)
            {
                fused.seconds.insert(from, node);
                fused.given.insert(to);
            }
        }
        fused
    }

    /// The node fused into this one.
    pub(super) fn second(&self, node: &NodeProto<'_>) -> Option<&'g NodeProto<'g>> {
        node.outputs.first().and_then(|o| self.seconds.get(o)).copied()
    }

    /// Whether this node is fused into its predecessor.
    pub(super) fn is_second(&self, node: &NodeProto<'_>) -> bool {
        node.outputs.first().is_some_and(|o| self.given.contains(o))
    }
}

fn standard(node: &NodeProto<'_>) -> bool {
    matches!(node.domain, "" | "ai.onnx")
}
