//! From a definition to a graph.

#![allow(clippy::indexing_slicing, reason = "tables have one entry per node or origin")]

use super::{
    DEFAULT_WINDOW_MS, Definition, Externals, Graph, Invalid, Join,
    graph::{Delivery, JoinOf, Node, Origin, Readers, Selected, Source, Span},
    reference::Reference,
    topology, validate,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

static NO_RENAMES: BTreeMap<String, String> = BTreeMap::new();

impl Graph {
    /// Validates a definition and resolves its references.
    pub fn compile(definition: &Definition) -> Result<Self, Invalid> {
        validate(definition)?;
        Ok(Self::build(definition))
    }

    /// Resolves the references of a valid definition in linear time, apart from the sort of tensor names.
    pub(super) fn build(definition: &Definition) -> Self {
        let steps = definition.steps.len();
        let own_inputs = [definition.name.to_string()];
        let mut compiler = Compiler {
            pipeline: &definition.name,
            steps: definition.steps.iter().zip(0..).map(|(step, i)| (&*step.name, i)).collect(),
            sources: Vec::new(),
            latest: vec![None; 2 + 2 * steps],
            selections: Vec::new(),
        };
        let mut nodes = Vec::with_capacity(steps + 1);
        for (step, index) in definition.steps.iter().zip(0..) {
            let inputs = if step.inputs.is_empty() { &own_inputs[..] } else { &step.inputs };
            nodes.push(Node {
                name: step.name.clone(),
                inputs: compiler.join(index, inputs, step.inputs_join, false, &step.tensor_map),
                triggers: compiler.join(index, &step.triggers, step.triggers_join, true, &NO_RENAMES),
                window_ms: window(step.join_window_ms),
                batch: step.batch.map(Box::new),
            });
        }
        if let Some(output) = &definition.output {
            let inputs = if output.steps.is_empty() { &own_inputs[..] } else { &output.steps };
            nodes.push(Node {
                name: "output".into(),
                inputs: compiler.join(steps as u16, inputs, output.join, false, &output.tensor_map),
                triggers: compiler.join(steps as u16, &[], Join::Inner, true, &NO_RENAMES),
                window_ms: window(Some(output.join_window_ms)),
                batch: None,
            });
        }
        let mut repeating = Vec::new();
        if definition.allow_cycles {
            repeating = compiler.mark_repeating(&mut nodes);
            repeating.retain(|&node| usize::from(node) < steps);
        }
        let (origins, readers) = compiler.readers();
        let mut graph = Self {
            name: definition.name.clone(),
            nodes: nodes.into(),
            step_count: steps as u16,
            sources: compiler.sources.into(),
            origins,
            readers,
            tensors: Box::default(),
            deliveries: Box::default(),
            renames: Box::default(),
            repeating: repeating.into(),
            max_step_revisits: definition.max_step_revisits,
            external: definition.input.as_ref().map(|input| Box::new(Externals::new(input))),
        };
        graph.select(compiler.selections);
        graph
    }

    /// Fills the tables of selected and renamed tensors.
    fn select(&mut self, mut selections: Vec<Selection<'_>>) {
        selections.sort_unstable();
        selections.dedup_by_key(|selection| (selection.origin, selection.tensor, selection.source));
        let (mut tensors, mut deliveries, mut renames) = (Vec::new(), Vec::new(), Vec::new());
        for group in selections.chunk_by(|a, b| (a.origin, a.tensor) == (b.origin, b.tensor)) {
            let Some(first) = group.first() else { continue };
            let start = deliveries.len() as u32;
            for selection in group {
                let rename = selection.rename.map(|name| {
                    renames.push(Arc::from(name));
                    renames.len() as u32 - 1
                });
                deliveries.push(Delivery { source: selection.source, rename });
            }
            let deliveries = Span { start, end: deliveries.len() as u32 };
            let position = tensors.len() as u32;
            tensors.push(Selected { name: first.tensor.into(), deliveries });
            if let Some(origin) = self.origins.get_mut(usize::from(first.origin)) {
                let start = if origin.tensors.len() == 0 { position } else { origin.tensors.start };
                origin.tensors = Span { start, end: position + 1 };
            }
        }
        self.tensors = tensors.into();
        self.deliveries = deliveries.into();
        self.renames = renames.into();
    }
}

fn window(written: Option<u32>) -> u32 {
    written.filter(|&window| window > 0).unwrap_or(DEFAULT_WINDOW_MS)
}

struct Compiler<'a> {
    pipeline: &'a str,
    steps: HashMap<&'a str, u16>,
    sources: Vec<Source>,
    /// The source that was added last for each origin.
    latest: Vec<Option<u16>>,
    selections: Vec<Selection<'a>>,
}

/// A source selects or renames a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Selection<'a> {
    origin: u16,
    tensor: &'a str,
    source: u16,
    rename: Option<&'a str>,
}

impl<'a> Compiler<'a> {
    /// Adds the sources of a join: one per origin, in the order of their first reference.
    fn join(
        &mut self,
        node: u16,
        written: &'a [String],
        join: Join,
        trigger: bool,
        tensor_map: &'a BTreeMap<String, String>,
    ) -> JoinOf {
        let start = self.sources.len();
        let mut selected = Vec::new();
        for reference in written.iter().filter_map(|item| Reference::parse(self.pipeline, item).ok()) {
            let Some((origin, latest)) = self.origin(&reference) else { continue };
            let source = latest.filter(|&source| usize::from(source) >= start).unwrap_or_else(|| {
                self.sources.push(Source { node, origin, trigger, whole: true, repeats: false });
                self.sources.len() as u16 - 1
            });
            if let Some(latest) = self.latest.get_mut(usize::from(origin.0)) {
                *latest = Some(source);
            }
            if let (Some(tensor), Some(known)) = (reference.tensor, self.sources.get_mut(usize::from(source)))
            {
                known.whole = false;
                selected.push((origin, tensor, source));
            }
        }
        let mut renames = HashMap::new();
        for (key, to) in tensor_map {
            let Some(key) = Reference::tensor_key(key) else { continue };
            let (Some((origin, Some(source))), Some(tensor)) = (self.origin(&key), key.tensor) else {
                continue;
            };
            let known = self.sources.get(usize::from(source)).filter(|_| usize::from(source) >= start);
            match known {
                Some(known) if known.whole => {
                    let rename = Some(to.as_str());
                    self.selections.push(Selection { origin: origin.0, tensor, source, rename });
                }
                Some(_) => drop(renames.insert((source, tensor), to.as_str())),
                None => {}
            }
        }
        self.selections.extend(selected.into_iter().map(|(origin, tensor, source)| {
            let rename = renames.get(&(source, tensor)).copied();
            Selection { origin: origin.0, tensor, source, rename }
        }));
        JoinOf { sources: Span { start: start as u32, end: self.sources.len() as u32 }, join, repeats: false }
    }

    /// The origin of a reference and the source that was added last for it.
    fn origin(&self, reference: &Reference<'_>) -> Option<(Origin, Option<u16>)> {
        let origin = match (self.steps.get(reference.name), reference.inputs) {
            (Some(&step), true) => Origin::inputs(step),
            (Some(&step), false) => Origin::outputs(step),
            (None, true) if reference.name == self.pipeline => Origin::PIPELINE_INPUTS,
            (None, false) if reference.name == self.pipeline => Origin::PIPELINE_OUTPUTS,
            (None, _) => return None,
        };
        Some((origin, self.latest.get(usize::from(origin.0)).copied().flatten()))
    }

    /// Marks nodes and sources on cycles and after them. Returns the steps: first those on cycles and between them, then
    /// those after the last cycle in topological order.
    fn mark_repeating(&mut self, nodes: &mut [Node]) -> Vec<u16> {
        let edge = |source: &Source| Some((usize::from(source.origin.step()?.0), usize::from(source.node)));
        let edges: Vec<_> = self.sources.iter().filter_map(edge).collect();
        let mut repeats = vec![true; nodes.len()];
        for node in topology::order(nodes.len(), &edges) {
            repeats[node] = false;
        }
        for source in &mut self.sources {
            source.repeats = source.origin.step().is_some_and(|(step, _)| repeats[usize::from(step)]);
        }
        for node in nodes.iter_mut() {
            for join in [&mut node.inputs, &mut node.triggers] {
                join.repeats = join.sources.of(&self.sources).iter().any(|source| source.repeats);
            }
        }
        let inner = edges.iter().filter(|&&(from, to)| repeats[from] && repeats[to]);
        let backwards: Vec<_> = inner.map(|&(from, to)| (to, from)).collect();
        let mut tail = topology::order(nodes.len(), &backwards);
        tail.retain(|&node| repeats[node]);
        tail.reverse();
        let mut in_tail = vec![false; nodes.len()];
        for &node in &tail {
            in_tail[node] = true;
        }
        let cyclic = (0..nodes.len()).filter(|&node| repeats[node] && !in_tail[node]);
        cyclic.chain(tail.iter().copied()).map(|node| node as u16).collect()
    }

    /// The readers of each origin, those that take all tensors as data first.
    fn readers(&self) -> (Box<[Readers]>, Box<[u16]>) {
        let mut readers: Vec<(Origin, bool, u16)> = Vec::with_capacity(self.sources.len());
        for (source, index) in self.sources.iter().zip(0..) {
            readers.push((source.origin, source.trigger || !source.whole, index));
        }
        readers.sort_unstable_by_key(|&(origin, selects, source)| (origin.0, selects, source));
        let mut origins = vec![Readers::default(); self.latest.len()];
        for (&(origin, selects, _), position) in readers.iter().zip(0..) {
            let known = &mut origins[usize::from(origin.0)];
            let start = if known.all.len() == 0 { position } else { known.all.start };
            known.all = Span { start, end: position + 1 };
            known.whole += u16::from(!selects);
        }
        (origins.into(), readers.into_iter().map(|(_, _, source)| source).collect())
    }
}
