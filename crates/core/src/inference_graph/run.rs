//! One request through a graph.

use super::{
    body::{map_predictions, merge},
    compile::{CallTarget, CompiledNode, CompiledStep, CompiledTarget, Graph},
    definition::Router,
    json::is_valid,
};
use std::{collections::VecDeque, sync::Arc};

/// Random numbers and bodies of the executor.
pub trait Context<B> {
    /// A uniform number, for each split.
    fn random(&mut self) -> u64;
    /// A body that the graph has written.
    fn body(&mut self, bytes: Vec<u8>) -> B;
}

/// The response of a step or of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<B> {
    pub status: u16,
    pub body: B,
}

impl<B> Response<B> {
    const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }
}

/// A call that the executor has to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<B> {
    pub id: CallId,
    pub target: CallTarget,
    pub input: B,
    /// Node and step, for messages.
    pub node: Arc<str>,
    pub step: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    frame: usize,
    step: usize,
}

/// Why a request has no response of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub status: u16,
    pub cause: String,
}

/// One request through a graph: [`Self::next_call`] returns calls, [`Self::complete`] takes their responses, until there is
/// an [`Self::outcome`].
pub struct Run<B> {
    graph: Arc<Graph>,
    frames: Vec<Frame<B>>,
    calls: VecDeque<Call<B>>,
    in_flight: Vec<CallId>,
    cancelled: Vec<CallId>,
    outcome: Option<Result<Response<B>, Failure>>,
}

/// A node in execution.
struct Frame<B> {
    node: usize,
    /// The frame and the step that wait for it.
    parent: Option<(usize, usize)>,
    /// `None` when the node has ended.
    input: Option<B>,
    /// Of an ensemble, by step.
    responses: Vec<Option<Response<B>>>,
}

impl<B: AsRef<[u8]> + Clone> Run<B> {
    pub fn start(graph: Arc<Graph>, input: B, context: &mut impl Context<B>) -> Self {
        let root = graph.root;
        let mut run = Self {
            graph,
            frames: Vec::new(),
            calls: VecDeque::new(),
            in_flight: Vec::new(),
            cancelled: Vec::new(),
            outcome: None,
        };
        run.enter(root, None, input, context);
        run
    }

    /// The next call that can start now.
    pub fn next_call(&mut self) -> Option<Call<B>> {
        let call = self.calls.pop_front()?;
        self.in_flight.push(call.id);
        Some(call)
    }

    /// Calls in flight whose response is no longer needed; each is returned once.
    pub fn cancelled(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.cancelled)
    }

    /// The end of the request.
    pub fn outcome(&mut self) -> Option<Result<Response<B>, Failure>> {
        self.outcome.take()
    }

    /// Ends a call. An error is a call without a response, which ends the request.
    pub fn complete(
        &mut self,
        id: CallId,
        response: Result<Response<B>, String>,
        context: &mut impl Context<B>,
    ) {
        let Some(at) = self.in_flight.iter().position(|call| *call == id) else { return };
        self.in_flight.swap_remove(at);
        match response {
            Ok(response) => self.deliver(id.frame, id.step, response, context),
            Err(cause) => {
                let (node, step) = self.names(id.frame, id.step);
                self.fail(500, format!("step {step} of node {node}: {cause}"));
            }
        }
    }

    fn node(&self, frame: usize) -> Option<&CompiledNode> {
        self.graph.nodes.get(self.frames.get(frame)?.node)
    }

    fn step(&self, frame: usize, step: usize) -> Option<&CompiledStep> {
        self.node(frame)?.steps.get(step)
    }

    fn names(&self, frame: usize, step: usize) -> (Arc<str>, Arc<str>) {
        let node = self.node(frame).map(|node| Arc::clone(&node.name)).unwrap_or_default();
        (node, self.step(frame, step).map(|step| Arc::clone(&step.key)).unwrap_or_default())
    }

    fn enter(&mut self, id: usize, parent: Option<(usize, usize)>, input: B, context: &mut impl Context<B>) {
        let graph = Arc::clone(&self.graph);
        // A step before it may have failed at once.
        let Some(node) = graph.nodes.get(id).filter(|_| self.outcome.is_none()) else { return };
        let frame = self.frames.len();
        let responses = match node.router {
            Router::Ensemble => node.steps.iter().map(|_| None).collect(),
            _ => Vec::new(),
        };
        self.frames.push(Frame { node: id, parent, input: Some(input.clone()), responses });
        match node.router {
            Router::Sequence => self.start_step(frame, 0, input, context),
            Router::Ensemble => {
                for step in 0..node.steps.len() {
                    self.start_step(frame, step, input.clone(), context);
                }
            }
            Router::Splitter => match node.draw(context.random()) {
                Some(step) => self.start_step(frame, step, input, context),
                None => self.fail(500, format!("all weights of node {} are 0", node.name)),
            },
            Router::Switch => match node.select(input.as_ref()) {
                Some(step) => self.start_step(frame, step, input, context),
                None => self.fail(404, format!("no condition of switch {} matches the request", node.name)),
            },
        }
    }

    fn start_step(&mut self, frame: usize, position: usize, input: B, context: &mut impl Context<B>) {
        let graph = Arc::clone(&self.graph);
        let Some(node) = self.frames.get(frame).and_then(|frame| graph.nodes.get(frame.node)) else { return };
        let Some(step) = node.steps.get(position) else { return };
        let mapped = step.maps_predictions.then(|| map_predictions(input.as_ref())).flatten();
        let input = mapped.map_or(input, |bytes| context.body(bytes));
        match &step.target {
            CompiledTarget::Node(id) => self.enter(*id, Some((frame, position)), input, context),
            CompiledTarget::Call(_) if self.outcome.is_some() => {}
            CompiledTarget::Call(target) => self.calls.push_back(Call {
                id: CallId { frame, step: position },
                target: target.clone(),
                input,
                node: Arc::clone(&node.name),
                step: Arc::clone(&step.key),
            }),
        }
    }

    /// The response of a step.
    fn deliver(
        &mut self,
        frame: usize,
        position: usize,
        response: Response<B>,
        context: &mut impl Context<B>,
    ) {
        let Some(router) = self.node(frame).map(|node| node.router) else { return };
        match router {
            Router::Splitter | Router::Switch => self.finish(frame, response, context),
            Router::Sequence => self.continue_sequence(frame, position, response, context),
            Router::Ensemble => self.collect(frame, position, response, context),
        }
    }

    fn continue_sequence(
        &mut self,
        frame: usize,
        position: usize,
        response: Response<B>,
        context: &mut impl Context<B>,
    ) {
        let is_hard = self.step(frame, position).is_some_and(|step| step.is_hard);
        let next = position + 1;
        let Some(step) = self.step(frame, next).filter(|_| !is_hard || response.is_success()) else {
            return self.finish(frame, response, context);
        };
        let takes_response = step.takes_response;
        if let Some(condition) = &step.condition {
            if !is_valid(response.body.as_ref()) {
                let (node, step) = self.names(frame, position);
                let cause = format!(
                    "step {step} of node {node} did not respond with JSON, which the next condition needs"
                );
                return self.fail(500, cause);
            }
            if !condition.exists(response.body.as_ref()) {
                return self.finish(frame, Response { status: 200, ..response }, context);
            }
        }
        let request = self.frames.get(frame).and_then(|frame| frame.input.clone());
        let input = request.filter(|_| !takes_response).unwrap_or(response.body);
        self.start_step(frame, next, input, context);
    }

    fn collect(
        &mut self,
        frame: usize,
        position: usize,
        response: Response<B>,
        context: &mut impl Context<B>,
    ) {
        if response.is_success() && !is_valid(response.body.as_ref()) {
            let (node, step) = self.names(frame, position);
            return self.fail(500, format!("step {step} of ensemble {node} did not respond with JSON"));
        }
        let graph = Arc::clone(&self.graph);
        let Some(state) = self.frames.get_mut(frame) else { return };
        let Some(node) = graph.nodes.get(state.node) else { return };
        if let Some(slot) = state.responses.get_mut(position) {
            *slot = Some(response);
        }
        // The first failure in the order of the steps counts, not the earliest one.
        for (step, response) in node.steps.iter().zip(&state.responses) {
            let Some(response) = response else { return };
            if step.is_hard && !response.is_success() {
                let response = response.clone();
                return self.finish(frame, response, context);
            }
        }
        let responses = std::mem::take(&mut state.responses);
        let named = node.steps.iter().zip(&responses).filter_map(|(step, response)| {
            response.as_ref().map(|response| (&*step.key, response.body.as_ref()))
        });
        let body = context.body(merge(named));
        self.finish(frame, Response { status: 200, body }, context);
    }

    /// The end of a node.
    fn finish(&mut self, frame: usize, response: Response<B>, context: &mut impl Context<B>) {
        let Some(state) = self.frames.get_mut(frame) else { return };
        state.input = None;
        state.responses = Vec::new();
        let parent = state.parent;
        self.cancel_unneeded();
        match parent {
            Some((parent, step)) => self.deliver(parent, step, response, context),
            None => self.outcome = Some(Ok(response)),
        }
    }

    fn fail(&mut self, status: u16, cause: String) {
        self.outcome.get_or_insert(Err(Failure { status, cause }));
        for frame in &mut self.frames {
            frame.input = None;
        }
        self.cancel_unneeded();
    }

    /// Cancels the calls of nodes that have ended, or that are within such a node.
    fn cancel_unneeded(&mut self) {
        let is_needed = |call: &CallId| {
            let mut frame = self.frames.get(call.frame);
            while let Some(state) = frame {
                if state.input.is_none() {
                    return false;
                }
                frame = state.parent.and_then(|(parent, _)| self.frames.get(parent));
            }
            true
        };
        self.calls.retain(|call| is_needed(&call.id));
        let (needed, unneeded) = self.in_flight.iter().copied().partition(is_needed);
        self.in_flight = needed;
        let unneeded: Vec<CallId> = unneeded;
        self.cancelled.extend(unneeded);
    }
}

impl CompiledNode {
    /// The step of a splitter for a uniform number; `None` if all weights are 0.
    pub(super) fn draw(&self, random: u64) -> Option<usize> {
        let total: u64 = self.steps.iter().map(|step| step.weight).sum();
        let mut point = ((u128::from(random) * u128::from(total)) >> 64) as u64;
        self.steps.iter().position(|step| match point.checked_sub(step.weight) {
            Some(rest) => {
                point = rest;
                false
            }
            None => true,
        })
    }

    /// The first step of a switch whose condition exists in the request. Steps without one are not selected.
    pub(super) fn select(&self, request: &[u8]) -> Option<usize> {
        let matches = |step: &CompiledStep| step.condition.as_ref().is_some_and(|path| path.exists(request));
        self.steps.iter().position(matches)
    }
}
