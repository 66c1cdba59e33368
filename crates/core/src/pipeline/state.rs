//! The state machine of one request.

#![allow(
    clippy::indexing_slicing,
    reason = "tables have one entry per source or node of the graph they belong to"
)]

use super::{
    Graph, Invocation, Join, RunError, StepId, Tensor,
    graph::{JoinOf, Node, Origin},
    join::{Counts, JoinStatus, NEVER},
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) slots: Vec<Slot<T>>,
    pub(super) nodes: Vec<NodeState>,
    pub(super) ready: VecDeque<Invocation<T>>,
    pub(super) outcome: Option<Result<Vec<T>, RunError>>,
    decided: bool,
    /// Set after an error: no step starts any more.
    stopped: bool,
    /// Nodes with a new arrival or absence.
    pub(super) changed: Vec<u16>,
    pub(super) windows: BinaryHeap<Reverse<(u64, u16)>>,
    in_flight: usize,
}

/// What a source has received.
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) arrival: Arrival,
    /// A selected tensor is present; kept for triggers, whose data is dropped.
    pub(super) selected: bool,
    pub(super) tensors: Vec<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Pending,
    Arrived,
    Absent,
}

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) inputs: Counts,
    pub(super) triggers: Counts,
    pub(super) phase: Phase,
    /// Something arrived since the last run.
    pub(super) fresh: bool,
    /// The input that arrived first.
    pub(super) first: Option<u16>,
    /// The source whose absence prevented the last run.
    pub(super) blocked_by: Option<u16>,
    pub(super) runs: u32,
    pub(super) in_flight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Ran,
    CannotRun,
}

impl<T: Tensor> State<T> {
    pub(super) fn start(graph: &Graph, inputs: Vec<T>, now: u64) -> Self {
        let node = |node: &Node| NodeState {
            inputs: Counts::new(node.inputs.sources.len()),
            triggers: Counts::new(node.triggers.sources.len()),
            phase: Phase::Waiting,
            fresh: false,
            first: None,
            blocked_by: None,
            runs: 0,
            in_flight: 0,
        };
        let slot = |_| Slot { arrival: Arrival::Pending, selected: false, tensors: Vec::new() };
        let mut state = Self {
            slots: (0..graph.sources.len()).map(slot).collect(),
            nodes: graph.nodes.iter().map(node).collect(),
            ready: VecDeque::new(),
            outcome: None,
            decided: false,
            stopped: false,
            changed: Vec::with_capacity(graph.sources.len()),
            windows: BinaryHeap::new(),
            in_flight: 0,
        };
        state.deliver(graph, Origin::PIPELINE_OUTPUTS, Vec::new(), now);
        state.deliver(graph, Origin::PIPELINE_INPUTS, inputs, now);
        state.settle(graph, now);
        state
    }

    pub(super) fn complete(&mut self, graph: &Graph, step: u16, outputs: Vec<T>, now: u64) {
        let Some(node) = self.nodes.get_mut(usize::from(step)).filter(|node| node.in_flight > 0) else {
            return;
        };
        node.in_flight -= 1;
        self.in_flight -= 1;
        self.deliver(graph, Origin::outputs(step), outputs, now);
        self.settle(graph, now);
    }

    pub(super) fn wake_at(&self) -> Option<u64> {
        self.windows.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn tick(&mut self, graph: &Graph, now: u64) {
        while let Some(&Reverse((at, node))) = self.windows.peek() {
            if at > now {
                break;
            }
            self.windows.pop();
            self.changed.push(node);
        }
        self.settle(graph, now);
    }

    /// Decides all changed nodes, and what remains on cycles when nothing is in flight.
    fn settle(&mut self, graph: &Graph, now: u64) {
        loop {
            let mut next = 0;
            while let Some(&node) = self.changed.get(next) {
                next += 1;
                self.decide(graph, node, now);
            }
            self.changed.clear();
            if self.in_flight > 0 || self.decided || !self.resolve_cycles(graph, now) {
                break;
            }
        }
        while let Some(&Reverse((at, node))) = self.windows.peek() {
            let node = &self.nodes[usize::from(node)];
            if node.phase == Phase::Waiting && (node.inputs.closes == at || node.triggers.closes == at) {
                break;
            }
            self.windows.pop();
        }
    }

    fn decide(&mut self, graph: &Graph, node: u16, now: u64) {
        let compiled = &graph.nodes[usize::from(node)];
        loop {
            let state = &self.nodes[usize::from(node)];
            if state.phase != Phase::Waiting || self.stopped {
                return;
            }
            let inputs = state.inputs.status(compiled.inputs.join, now);
            let triggers = state.triggers.status(compiled.triggers.join, now);
            if inputs == JoinStatus::Impossible || triggers == JoinStatus::Impossible {
                let join = if inputs == JoinStatus::Impossible { compiled.inputs } else { compiled.triggers };
                let open = state.inputs.is_open(compiled.inputs.join)
                    || state.triggers.is_open(compiled.triggers.join);
                self.nodes[usize::from(node)].blocked_by = first(&self.slots, join, Arrival::Absent);
                if !compiled.repeats() {
                    self.give_up(graph, node, now);
                } else if !open {
                    self.forget(graph, node, None);
                }
                return;
            }
            if inputs == JoinStatus::Waiting || triggers == JoinStatus::Waiting {
                return;
            }
            self.run(graph, node, now);
        }
    }

    /// Starts a step, or completes the request if the node is the output.
    fn run(&mut self, graph: &Graph, node: u16, now: u64) {
        let compiled = &graph.nodes[usize::from(node)];
        let state = &mut self.nodes[usize::from(node)];
        let is_step = node < graph.step_count;
        if is_step && state.runs > graph.max_step_revisits {
            let limit = graph.max_step_revisits;
            self.ready.clear();
            self.changed.clear();
            self.stopped = true;
            return self.finish(Err(RunError::TooManyRevisits { step: compiled.name.clone(), limit }));
        }
        let chosen = state.first.filter(|_| compiled.inputs.join == Join::Any);
        let mut inputs = Vec::new();
        for source in compiled.inputs.sources.indices() {
            let slot = &mut self.slots[source];
            if slot.arrival != Arrival::Arrived || chosen.is_some_and(|chosen| usize::from(chosen) != source)
            {
                continue;
            }
            let consumed = !compiled.repeats() || is_consumed(graph, compiled.inputs, source);
            let tensors = if consumed { std::mem::take(&mut slot.tensors) } else { slot.tensors.clone() };
            if inputs.is_empty() {
                inputs = tensors;
            } else {
                inputs.extend(tensors);
            }
        }
        if compiled.repeats() && is_step {
            self.forget(graph, node, chosen);
        } else {
            self.nodes[usize::from(node)].phase = Phase::Ran;
        }
        if !is_step {
            return self.finish(Ok(inputs));
        }
        let state = &mut self.nodes[usize::from(node)];
        state.runs = state.runs.saturating_add(1);
        state.in_flight += 1;
        self.in_flight += 1;
        if !graph.readers(Origin::inputs(node)).0.is_empty() {
            self.deliver(graph, Origin::inputs(node), inputs.clone(), now);
        }
        self.ready.push_back(Invocation { step: StepId(node), inputs });
    }

    /// Ends a round of a node on a cycle or after one: sources that can arrive again are pending again, the others stay,
    /// but an `any` join uses each arrival once. With `chosen`, the other inputs are left for the next round.
    fn forget(&mut self, graph: &Graph, node: u16, chosen: Option<u16>) {
        let compiled = &graph.nodes[usize::from(node)];
        let state = &mut self.nodes[usize::from(node)];
        for (join, counts, chosen) in
            [(compiled.inputs, &mut state.inputs, chosen), (compiled.triggers, &mut state.triggers, None)]
        {
            counts.closes = NEVER;
            for source in join.sources.indices() {
                let is_left = chosen.is_some_and(|chosen| usize::from(chosen) != source);
                if is_left || !is_consumed(graph, join, source) {
                    continue;
                }
                let slot = &mut self.slots[source];
                slot.tensors.clear();
                counts.arrived -= u16::from(slot.arrival == Arrival::Arrived);
                counts.pending -= u16::from(slot.arrival == Arrival::Pending);
                let repeats = graph.sources[source].repeats;
                slot.arrival = if repeats { Arrival::Pending } else { Arrival::Absent };
                counts.pending += u16::from(repeats);
            }
        }
        state.first = first(&self.slots, compiled.inputs, Arrival::Arrived);
        state.fresh = compiled.inputs.join == Join::Any && state.first.is_some();
    }

    /// A node outside cycles can never run: its readers will not receive anything from it.
    fn give_up(&mut self, graph: &Graph, node: u16, now: u64) {
        self.nodes[usize::from(node)].phase = Phase::CannotRun;
        let compiled = &graph.nodes[usize::from(node)];
        for source in compiled.inputs.sources.indices() {
            self.slots[source].tensors = Vec::new();
        }
        if node == graph.step_count {
            let reason = self.no_output(graph);
            return self.finish(Err(RunError::NoOutput { reason }));
        }
        self.deliver(graph, Origin::inputs(node), Vec::new(), now);
        self.deliver(graph, Origin::outputs(node), Vec::new(), now);
    }

    /// With nothing in flight, nothing arrives any more: runs the first node whose outer joins have received something
    /// and returns whether a step started; without one, the request has no output.
    fn resolve_cycles(&mut self, graph: &Graph, now: u64) -> bool {
        let output = (graph.step_count..graph.nodes.len() as u16).next();
        for node in graph.repeating.iter().copied().chain(output) {
            let (state, compiled) = (&self.nodes[usize::from(node)], &graph.nodes[usize::from(node)]);
            if state.phase == Phase::Waiting
                && state.fresh
                && state.inputs.suffices(compiled.inputs.join, now)
                && state.triggers.suffices(compiled.triggers.join, now)
            {
                self.run(graph, node, now);
                return !self.decided;
            }
        }
        let reason = self.no_output(graph);
        self.finish(Err(RunError::NoOutput { reason }));
        false
    }

    fn finish(&mut self, outcome: Result<Vec<T>, RunError>) {
        if !std::mem::replace(&mut self.decided, true) {
            self.outcome = Some(outcome);
        }
    }
}

/// The first source of a join in this state.
pub(super) fn first<T>(slots: &[Slot<T>], join: JoinOf, arrival: Arrival) -> Option<u16> {
    join.sources.indices().find(|&source| slots[source].arrival == arrival).map(|source| source as u16)
}

/// Whether a run of a node on a cycle or after one uses an arrival up.
fn is_consumed(graph: &Graph, join: JoinOf, source: usize) -> bool {
    graph.sources[source].repeats || (join.join == Join::Any && join.repeats)
}
