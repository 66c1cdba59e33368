//! Nodes that are done in one step with the one before them: what a convolution gives is cut at zero while it is at
//! hand, instead of being read and written once more.

use crate::proto::{AttributeValue, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// The operators whose step can do the next one too.
const CAN: [&str; 1] = ["Conv"];

/// Which nodes go together.
#[derive(Default)]
pub(super) struct Fused<'g> {
    /// By the name of the value between them: the second node.
    seconds: HashMap<&'g str, &'g NodeProto<'g>>,
    /// What the second nodes give.
    given: HashSet<&'g str>,
}

impl<'g> Fused<'g> {
    pub(super) fn of(graph: &'g GraphProto<'g>) -> Self {
        // A graph inside a node may read any value of this one.
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

    /// The node that is done with this one.
    pub(super) fn second(&self, node: &NodeProto<'_>) -> Option<&'g NodeProto<'g>> {
        node.outputs.first().and_then(|o| self.seconds.get(o)).copied()
    }

    /// Whether this node is done with the one before it.
    pub(super) fn is_second(&self, node: &NodeProto<'_>) -> bool {
        node.outputs.first().is_some_and(|o| self.given.contains(o))
    }
}

fn standard(node: &NodeProto<'_>) -> bool {
    matches!(node.domain, "" | "ai.onnx")
}
