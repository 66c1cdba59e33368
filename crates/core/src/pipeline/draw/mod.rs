//! Drawings of a graph: for a terminal, as Mermaid and as SVG.

mod layout;
mod svg;
mod text;

use super::{Graph, Join, graph::Node};

pub use svg::svg;
pub use text::text;

/// The parts of a drawing: the inputs of the pipeline, its steps and its output are ends.
struct Picture<'a> {
    names: Vec<&'a str>,
    edges: Vec<Edge<'a>>,
    notes: Vec<String>,
}

/// Data from one end to another.
struct Edge<'a> {
    from: usize,
    to: usize,
    trigger: bool,
    /// The inputs of the step are read, not its outputs.
    inputs: bool,
    /// The selected tensors; empty for all.
    tensors: Vec<&'a str>,
}

const INPUTS: usize = 0;

impl<'a> Picture<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut tensors: Vec<Vec<&str>> = vec![Vec::new(); graph.sources.len()];
        for selected in &graph.tensors {
            for delivery in selected.deliveries.of(&graph.deliveries) {
                let source = usize::from(delivery.source);
                let selects = graph.sources.get(source).is_some_and(|known| !known.whole);
                if let Some(tensors) = tensors.get_mut(source).filter(|_| selects) {
                    tensors.push(&selected.name);
                }
            }
        }
        // The outputs of the pipeline never arrive at its steps: no edge.
        let drawn = graph.sources.iter().zip(tensors).filter(|(source, _)| source.origin.0 != 1);
        let edges: Vec<_> = drawn
            .map(|(source, tensors)| {
                let (from, inputs) = match source.origin.step() {
                    Some((step, inputs)) => (usize::from(step) + 1, inputs),
                    None => (INPUTS, false),
                };
                Edge { from, to: usize::from(source.node) + 1, trigger: source.trigger, inputs, tensors }
            })
            .collect();
        let names = std::iter::once("inputs").chain(graph.nodes.iter().map(|node| &*node.name)).collect();
        let mut picture = Self { names, edges, notes: Vec::new() };
        picture.notes = graph
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| picture.note(node, index + 1))
            .collect();
        picture
    }

    fn name(&self, end: usize) -> &'a str {
        self.names.get(end).copied().unwrap_or_default()
    }

    /// What a line between two ends cannot show.
    fn note(&self, node: &Node, end: usize) -> Option<String> {
        let mut parts = Vec::new();
        for (trigger, join) in [(false, node.inputs.join), (true, node.triggers.join)] {
            let edges = || self.edges.iter().filter(move |edge| edge.to == end && edge.trigger == trigger);
            let plain = |edge: &Edge<'_>| edge.tensors.is_empty() && !edge.inputs;
            if edges().count() == 0 || (!trigger && join == Join::Inner && edges().all(plain)) {
                continue;
            }
            let verb = if trigger { "triggered by" } else { "reads" };
            let which = match join {
                _ if edges().count() == 1 => "",
                Join::Inner => "all of ",
                Join::Outer => "what arrives of ",
                Join::Any => "the first of ",
            };
            let sources: Vec<_> = edges().flat_map(|edge| self.sources(edge)).collect();
            parts.push(format!("{verb} {which}{}", sources.join(", ")));
        }
        (!parts.is_empty()).then(|| format!("{}: {}", node.name, parts.join("; ")))
    }

    /// `step` or `step.inputs`.
    fn origin(&self, edge: &Edge<'_>) -> String {
        format!("{}{}", self.name(edge.from), if edge.inputs { ".inputs" } else { "" })
    }

    /// `step`, `step.tensor` or `step.inputs.tensor`.
    fn sources(&self, edge: &Edge<'_>) -> Vec<String> {
        let name = self.origin(edge);
        match &*edge.tensors {
            [] => vec![name],
            tensors => tensors.iter().map(|tensor| format!("{name}.{tensor}")).collect(),
        }
    }

    /// The label of a line.
    fn label(edge: &Edge<'_>) -> String {
        let inputs = edge.inputs.then_some("inputs").into_iter().filter(|_| edge.tensors.is_empty());
        inputs.chain(edge.tensors.iter().copied()).collect::<Vec<_>>().join(", ")
    }
}

/// A Mermaid flowchart; triggers are dotted lines.
pub fn mermaid(graph: &Graph) -> String {
    let picture = Picture::new(graph);
    let quoted = |text: &str| {
        let escape = |c: char| match c {
            '"' => "#quot;".to_owned(),
            '#' => "#35;".to_owned(),
            c if c.is_control() => " ".to_owned(),
            c => c.to_string(),
        };
        format!("\"{}\"", text.chars().map(escape).collect::<String>())
    };
    let mut text = "flowchart LR\n".to_owned();
    for (end, name) in picture.names.iter().enumerate() {
        let is_step = (1..=usize::from(graph.step_count)).contains(&end);
        let (open, close) = if is_step { ("[", "]") } else { ("([", "])") };
        text.push_str(&format!("    n{end}{open}{}{close}\n", quoted(name)));
    }
    for edge in &picture.edges {
        let line = if edge.trigger { "-.->" } else { "-->" };
        let label = match Picture::label(edge) {
            label if label.is_empty() => String::new(),
            label => format!("|{}|", quoted(&label)),
        };
        text.push_str(&format!("    n{} {line}{label} n{}\n", edge.from, edge.to));
    }
    text
}
