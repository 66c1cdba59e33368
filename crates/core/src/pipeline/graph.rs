//! A definition compiled for execution: names of steps and tensors are resolved to indices.

use super::{Batch, Externals, Join};
use std::sync::Arc;

/// A step of a graph, by its position in the definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub(super) u16);

impl StepId {
    /// Position of the step in the definition.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A valid pipeline. Tables are flat: many graphs are in memory at once.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) name: Arc<str>,
    /// The steps in the order of the definition, then the output if there is one.
    pub(super) nodes: Box<[Node]>,
    pub(super) step_count: u16,
    /// Sources of all nodes, those of a node next to each other.
    pub(super) sources: Box<[Source]>,
    /// By [`Origin`].
    pub(super) origins: Box<[Readers]>,
    /// Sources by origin; the first `whole` of an origin take all its tensors.
    pub(super) readers: Box<[u16]>,
    /// Tensors that some reader selects or renames, by origin and sorted by name.
    pub(super) tensors: Box<[Selected]>,
    pub(super) deliveries: Box<[Delivery]>,
    pub(super) renames: Box<[Arc<str>]>,
    /// Steps on cycles and after them, in the order in which they are resolved when nothing is in flight.
    pub(super) repeating: Box<[u16]>,
    pub(super) max_step_revisits: u32,
    pub(super) external: Option<Box<Externals>>,
}

/// A step or the output.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) inputs: JoinOf,
    pub(super) triggers: JoinOf,
    pub(super) window_ms: u32,
    pub(super) batch: Option<Box<Batch>>,
}

impl Node {
    /// Whether the node is on a cycle or after one.
    pub(super) const fn repeats(&self) -> bool {
        self.inputs.repeats || self.triggers.repeats
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct JoinOf {
    pub(super) sources: Span,
    pub(super) join: Join,
    /// Whether a source is on a cycle or after one, so that it can arrive more than once.
    pub(super) repeats: bool,
}

/// Data that a node waits for: one origin, and all or some of its tensors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) node: u16,
    pub(super) origin: Origin,
    pub(super) trigger: bool,
    pub(super) whole: bool,
    pub(super) repeats: bool,
}

/// Where data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin(pub(super) u16);

impl Origin {
    pub(super) const PIPELINE_INPUTS: Self = Self(0);
    /// They are complete when the request ends, too late for its steps.
    pub(super) const PIPELINE_OUTPUTS: Self = Self(1);

    pub(super) const fn outputs(step: u16) -> Self {
        Self(2 + 2 * step)
    }

    pub(super) const fn inputs(step: u16) -> Self {
        Self(3 + 2 * step)
    }

    /// The step, and whether its inputs are meant.
    pub(super) const fn step(self) -> Option<(u16, bool)> {
        match self.0.checked_sub(2) {
            Some(position) => Some((position / 2, position % 2 == 1)),
            None => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readers {
    pub(super) all: Span,
    /// The number of readers that take all tensors as data.
    pub(super) whole: u16,
    pub(super) tensors: Span,
}

#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) name: Arc<str>,
    pub(super) deliveries: Span,
}

/// A tensor goes to a source, under another name if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) source: u16,
    pub(super) rename: Option<u32>,
}

/// A range of a flat table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    pub(super) const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    pub(super) fn of<T>(self, table: &[T]) -> &[T] {
        table.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(super) const fn indices(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Graph {
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Names of the steps in the order of the definition.
    pub fn steps(&self) -> impl Iterator<Item = &Arc<str>> {
        self.step_nodes().map(|node| &node.name)
    }

    /// The name of a step; the pipeline's name for a step of another graph.
    pub fn step_name(&self, step: StepId) -> &Arc<str> {
        self.nodes.get(step.index()).map_or(&self.name, |node| &node.name)
    }

    /// Whether the pipeline has a response.
    pub fn has_output(&self) -> bool {
        self.nodes.len() > usize::from(self.step_count)
    }

    pub fn batch(&self, step: StepId) -> Option<Batch> {
        self.nodes.get(step.index()).and_then(|node| node.batch.as_deref().copied())
    }

    /// The data of other pipelines that this one reads.
    pub fn external(&self) -> Option<&Externals> {
        self.external.as_deref()
    }

    pub(super) fn step_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().take(usize::from(self.step_count))
    }

    /// The readers of an origin, and how many of them take all tensors as data.
    pub(super) fn readers(&self, origin: Origin) -> (&[u16], Readers) {
        let readers = self.origins.get(usize::from(origin.0)).copied().unwrap_or_default();
        (readers.all.of(&self.readers), readers)
    }

    /// Sources that select or rename a tensor of an origin, in ascending order.
    pub(super) fn deliveries(&self, readers: Readers, tensor: &str) -> &[Delivery] {
        let tensors = readers.tensors.of(&self.tensors);
        match tensors.binary_search_by(|selected| (*selected.name).cmp(tensor)) {
            Ok(found) => tensors.get(found).map_or(&[], |selected| selected.deliveries.of(&self.deliveries)),
            Err(_) => &[],
        }
    }

    pub(super) fn rename(&self, delivery: Delivery) -> Option<&Arc<str>> {
        self.renames.get(delivery.rename? as usize)
    }
}
