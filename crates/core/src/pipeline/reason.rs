//! Why steps did not run, for messages.

#![allow(
    clippy::indexing_slicing,
    reason = "tables have one entry per source or node of the graph they belong to"
)]

use super::{
    Graph, Join, Skipped, Tensor,
    graph::Origin,
    state::{Arrival, State},
};

/// Sources of an output that a message names.
const SHOWN: usize = 3;

impl<T: Tensor> State<T> {
    pub(super) fn skipped(&self, graph: &Graph) -> Vec<Skipped> {
        let idle = (0..graph.step_count).filter(|&step| self.nodes[usize::from(step)].runs == 0);
        idle.map(|step| Skipped {
            step: graph.nodes[usize::from(step)].name.clone(),
            reason: match self.blocking(graph, step) {
                Some(source) => self.describe(graph, step, source),
                None => "the request ended before".into(),
            },
        })
        .collect()
    }

    /// Why the output can never be complete.
    pub(super) fn no_output(&self, graph: &Graph) -> String {
        let Some(output) = graph.nodes.get(usize::from(graph.step_count)) else {
            return "the pipeline has no output: add output.steps".into();
        };
        let sources = || output.inputs.sources.indices();
        let is = |arrival| move |source: &usize| self.slots[*source].arrival == arrival;
        // A pending source is a reason only on a cycle, where nothing is absent for good.
        let absent = sources().filter(is(Arrival::Absent)).chain(sources().filter(is(Arrival::Pending)));
        let shown = if output.inputs.join == Join::Inner { 1 } else { SHOWN };
        let reasons: Vec<_> =
            absent.take(shown).map(|source| self.root_cause(graph, source as u16)).collect();
        reasons.join("; ")
    }

    /// Follows steps that did not run to the first cause.
    fn root_cause(&self, graph: &Graph, source: u16) -> String {
        let (mut node, mut source) = (graph.step_count, source);
        let mut steps: Vec<u16> = Vec::new();
        let cause = loop {
            match graph.sources[usize::from(source)].origin.step() {
                Some((step, _)) if self.nodes[usize::from(step)].runs == 0 => node = step,
                _ => break self.describe(graph, node, source),
            }
            if steps.contains(&node) {
                break "it waits for a step of its own cycle".into();
            }
            steps.push(node);
            match self.blocking(graph, node) {
                Some(next) => source = next,
                None => break "the request ended before".into(),
            }
        };
        let name = |step: &u16| &*graph.nodes[usize::from(*step)].name;
        match &*steps {
            [] => cause,
            [only] => format!("step {} did not run: {cause}", name(only)),
            [first, .., last] => {
                format!("step {} did not run, as step {} did not run: {cause}", name(first), name(last))
            }
        }
    }

    /// The source that keeps a node from running.
    fn blocking(&self, graph: &Graph, node: u16) -> Option<u16> {
        let compiled = &graph.nodes[usize::from(node)];
        let mut sources = compiled.inputs.sources.indices().chain(compiled.triggers.sources.indices());
        let missing = |&source: &usize| self.slots[source].arrival != Arrival::Arrived;
        self.nodes[usize::from(node)].blocked_by.or_else(|| sources.find(missing).map(|source| source as u16))
    }

    /// Why a source of a node is missing.
    fn describe(&self, graph: &Graph, node: u16, source: u16) -> String {
        let known = graph.sources[usize::from(source)];
        let (name, inputs) = match known.origin.step() {
            Some((step, inputs)) => {
                let name = &graph.nodes[usize::from(step)].name;
                if self.nodes[usize::from(step)].runs == 0 {
                    return format!("step {name} did not run");
                }
                if self.nodes[usize::from(step)].in_flight > 0
                    && self.nodes[usize::from(node)].blocked_by.is_none()
                {
                    return format!("the request ended before step {name} did");
                }
                (name, inputs)
            }
            None if known.origin == Origin::PIPELINE_OUTPUTS => {
                return "the outputs of the pipeline are complete after its steps".into();
            }
            None => (&graph.name, true),
        };
        if known.whole {
            return format!("{name}.{} has no tensors", if inputs { "inputs" } else { "outputs" });
        }
        let prefix = if inputs { format!("{name}.inputs") } else { name.to_string() };
        let (_, readers) = graph.readers(known.origin);
        let selected = readers.tensors.of(&graph.tensors).iter().filter(|tensor| {
            tensor.deliveries.of(&graph.deliveries).iter().any(|delivery| delivery.source == source)
        });
        let tensors: Vec<_> = selected.map(|tensor| format!("{prefix}.{}", tensor.name)).collect();
        match &*tensors {
            [tensor] => format!("tensor {tensor} is absent"),
            tensors => format!("tensors {} are absent", tensors.join(", ")),
        }
    }
}
