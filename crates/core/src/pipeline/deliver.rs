//! How tensors reach the sources that read them.

#![allow(
    clippy::indexing_slicing,
    reason = "tables have one entry per source or node of the graph they belong to"
)]

use super::{
    Graph, Join, Tensor,
    graph::{Origin, Readers},
    join::NEVER,
    state::{Arrival, NodeState, Phase, State, first},
};
use std::cmp::Reverse;

impl<T: Tensor> State<T> {
    /// Passes the tensors of an origin to its readers. No tensor means absence.
    pub(super) fn deliver(&mut self, graph: &Graph, origin: Origin, tensors: Vec<T>, now: u64) {
        let (sources, readers) = graph.readers(origin);
        let any = !tensors.is_empty();
        if readers.tensors.len() == 0 {
            self.fill(graph, &sources[..usize::from(readers.whole)], tensors);
        } else {
            self.select(graph, readers, tensors);
        }
        for &source in sources {
            let known = &graph.sources[usize::from(source)];
            let arrived = if known.whole { any } else { self.slots[usize::from(source)].selected };
            self.resolve(graph, source, arrived, now);
        }
    }

    /// Gives all tensors to each source, without a copy for the last one.
    fn fill(&mut self, graph: &Graph, whole: &[u16], tensors: Vec<T>) {
        let Self { nodes, slots, .. } = self;
        let mut keeping = whole.iter().filter(|source| keeps(graph, nodes, **source)).peekable();
        let mut tensors = Some(tensors);
        while let Some(&source) = keeping.next() {
            let given = if keeping.peek().is_some() { tensors.clone() } else { tensors.take() };
            slots[usize::from(source)].tensors = given.unwrap_or_default();
        }
    }

    /// Gives each tensor to the sources that select it by name and to those that take all.
    fn select(&mut self, graph: &Graph, readers: Readers, tensors: Vec<T>) {
        let Self { nodes, slots, .. } = self;
        let sources = readers.all.of(&graph.readers);
        for &source in sources {
            let slot = &mut slots[usize::from(source)];
            slot.selected = false;
            slot.tensors.clear();
        }
        let whole = &sources[..usize::from(readers.whole)];
        for tensor in tensors {
            let by_name = graph.deliveries(readers, tensor.name());
            for delivery in by_name {
                slots[usize::from(delivery.source)].selected = true;
            }
            // A source that takes all tensors and renames this one is in both lists.
            let plain =
                whole.iter().filter(|source| by_name.binary_search_by_key(*source, |d| d.source).is_err());
            let plain = plain.map(|&source| (source, None));
            let named = by_name.iter().map(|delivery| (delivery.source, graph.rename(*delivery)));
            let mut keeping =
                plain.chain(named).filter(|(source, _)| keeps(graph, nodes, *source)).peekable();
            let mut tensor = Some(tensor);
            while let Some((source, rename)) = keeping.next() {
                let given = if keeping.peek().is_some() { tensor.clone() } else { tensor.take() };
                let given = given.map(|given| match rename {
                    Some(name) => given.renamed(name),
                    None => given,
                });
                slots[usize::from(source)].tensors.extend(given);
            }
        }
    }

    /// Records that a source has arrived or is absent.
    fn resolve(&mut self, graph: &Graph, source: u16, arrived: bool, now: u64) {
        let known = &graph.sources[usize::from(source)];
        let compiled = &graph.nodes[usize::from(known.node)];
        let node = &mut self.nodes[usize::from(known.node)];
        if node.phase != Phase::Waiting {
            return;
        }
        let (counts, join) = if known.trigger {
            (&mut node.triggers, compiled.triggers.join)
        } else {
            (&mut node.inputs, compiled.inputs.join)
        };
        let slot = &mut self.slots[usize::from(source)];
        match slot.arrival {
            Arrival::Pending => counts.pending -= 1,
            Arrival::Arrived => counts.arrived -= 1,
            Arrival::Absent => {}
        }
        slot.arrival = if arrived {
            Arrival::Arrived
        } else if known.repeats && join != Join::Inner {
            // Another round can bring it.
            counts.pending += 1;
            Arrival::Pending
        } else {
            Arrival::Absent
        };
        if arrived {
            counts.arrived += 1;
            if join == Join::Outer && counts.pending > 0 && counts.closes == NEVER {
                counts.closes = now.saturating_add(u64::from(compiled.window_ms));
                self.windows.push(Reverse((counts.closes, known.node)));
            }
            node.fresh = true;
            if !known.trigger && node.first.is_none() {
                node.first = Some(source);
            }
        } else if node.first == Some(source) {
            node.first = first(&self.slots, compiled.inputs, Arrival::Arrived);
        }
        self.changed.push(known.node);
    }
}

/// Whether the node of a source can use its tensors.
fn keeps(graph: &Graph, nodes: &[NodeState], source: u16) -> bool {
    let known = &graph.sources[usize::from(source)];
    let (compiled, node) = (&graph.nodes[usize::from(known.node)], &nodes[usize::from(known.node)]);
    let too_late = compiled.inputs.join == Join::Any && !compiled.repeats() && node.first.is_some();
    !known.trigger && node.phase == Phase::Waiting && !too_late
}
