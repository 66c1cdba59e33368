//! Execution plan of a graph: ordered steps, numbered values, folded constants.

use super::fuse::Fused;
use super::node::{Kernel, Node};
use super::value::{Args, OpError, Value, View, spans};
use super::watch::Watch;
use super::{buffer_pool, ml, ops, scan};
use crate::proto::{GraphProto, NodeProto};
use gantry_tensor::{CancelToken, Elements, shape_product};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Bytes that constants folded at load may take together.
const FOLD_LIMIT: usize = 64 << 20;
/// Time that folding may take; the rest is left to the runs.
const FOLD_TIME: Duration = Duration::from_secs(10);
/// Work of a step beside that of its elements: the call, and the allocation of its results.
const STEP_WORK: usize = 64;

/// The versions of the operator sets that a model uses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opsets(Vec<(String, i64)>);

impl Opsets {
    pub(crate) fn new(opsets: &[(&str, i64)]) -> Self {
        Self(opsets.iter().map(|&(d, v)| (standard(d).to_owned(), v)).collect())
    }

    /// The version for a domain; 1 if the model has none.
    pub(crate) fn version(&self, domain: &str) -> i64 {
        let domain = standard(domain);
        self.0.iter().find(|(d, _)| d == domain).map_or(1, |&(_, v)| v)
    }
}

/// The standard domain has two spellings.
fn standard(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// An operator that the evaluator does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedOp {
    /// The operator.
    pub op: String,
    /// Its domain; empty for the standard one.
    pub domain: String,
    /// The version of the operator set.
    pub opset: i64,
    /// The name of the first node that uses it.
    pub node: String,
}

impl std::fmt::Display for UnsupportedOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let domain = if self.domain.is_empty() { "ai.onnx" } else { &self.domain };
        write!(f, "{} ({domain} {}, node `{}`)", self.op, self.opset, self.node)
    }
}

/// A graph could not be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum PlanError {
    #[error("operators without an implementation: {}", listed(.0))]
    Unsupported(Vec<UnsupportedOp>),
    #[error("the name `{0}` is given to two values")]
    Duplicate(String),
    #[error("node `{node}` reads `{value}`, which is no input, no initializer and no result of a node")]
    Unknown { node: String, value: String },
    #[error("the graph has a cycle through node `{node}`")]
    Cycle { node: String },
    #[error("the output `{0}` is made by no node")]
    Output(String),
    #[error("node `{node}` ({op}): {error}")]
    Node { node: String, op: String, error: OpError },
}

pub(crate) fn listed(ops: &[UnsupportedOp]) -> String {
    let ops: Vec<String> = ops.iter().map(ToString::to_string).collect();
    ops.join(", ")
}

/// Constants by name, as they come from the file.
pub(crate) type Constants = HashMap<String, Value>;

/// Source of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Constant(usize),
    Slot(usize),
}

struct Step {
    kernel: Kernel,
    inputs: Box<[Option<Source>]>,
    outputs: Box<[Option<usize>]>,
    /// Slots that are free after this step.
    release: Box<[usize]>,
    op: Box<str>,
    name: Box<str>,
}

/// A graph that is ready to run.
pub(crate) struct Plan {
    steps: Vec<Step>,
    constants: Vec<Value>,
    slots: usize,
    inputs: usize,
    outputs: Vec<Source>,
}

/// A failed step.
#[derive(Debug)]
pub(crate) struct StepError {
    pub op: String,
    pub node: String,
    pub error: OpError,
}

/// A value during a run.
enum Slot<'a> {
    Empty,
    Given(View<'a>),
    Made(Value),
}

/// Inputs that fit on the stack; nodes with more are rare.
const FEW: usize = 6;

impl Plan {
    /// Plans a graph. `inputs` are the names that a run brings, in order.
    pub(crate) fn new(
        graph: &GraphProto<'_>,
        opsets: &Opsets,
        constants: Constants,
        inputs: &[&str],
    ) -> Result<Self, PlanError> {
        let cancel = CancelToken::default();
        Self::within(graph, opsets, constants, inputs, &Watch::new(&cancel, FOLD_TIME))
    }

    /// Plans a graph inside another one, which share the time for folding.
    pub(super) fn within(
        graph: &GraphProto<'_>,
        opsets: &Opsets,
        constants: Constants,
        inputs: &[&str],
        watch: &Watch<'_>,
    ) -> Result<Self, PlanError> {
        let mut planner = Planner::new(constants, inputs, watch)?;
        let order = order(graph, &planner.names)?;
        let fused = Fused::of(graph);
        let mut unsupported: Vec<UnsupportedOp> = Vec::new();
        for node in order.into_iter().filter(|n| !fused.is_second(n)) {
            if let Some(missing) = planner.add(node, fused.second(node), opsets)?
                && unsupported.iter().all(|u| (&u.op, &u.domain) != (&missing.op, &missing.domain))
            {
                unsupported.push(missing);
            }
        }
        if !unsupported.is_empty() {
            return Err(PlanError::Unsupported(unsupported));
        }
        let outputs: Vec<Source> = graph
            .outputs
            .iter()
            .map(|o| planner.names.get(o.name).copied().ok_or_else(|| PlanError::Output(o.name.to_owned())))
            .collect::<Result<_, _>>()?;
        Ok(planner.finish(inputs.len(), outputs))
    }

    /// Bytes that constants take.
    pub(crate) fn bytes(&self) -> usize {
        self.constants.iter().map(Value::bytes).sum()
    }

    /// Runs the steps. `limit` bounds the bytes of all values that are alive at one time.
    pub(crate) fn run<'a>(
        &'a self,
        inputs: &[View<'a>],
        limit: usize,
        watch: &Watch<'_>,
    ) -> Result<Vec<Value>, StepError> {
        let mut slots: Vec<Slot<'a>> = Vec::with_capacity(self.slots);
        slots.extend(inputs.iter().take(self.inputs).map(|&v| Slot::Given(v)));
        slots.resize_with(self.slots, || Slot::Empty);
        // Operators make lists as long as their inputs are wide, also when those are empty.
        if let Some(view) = inputs.iter().find(|v| !spans(v.shape, limit)) {
            let error = OpError::TooLarge { shape: view.shape.to_vec(), limit };
            return Err(StepError { op: "input".to_owned(), node: String::new(), error });
        }
        let mut alive = 0usize;
        for step in &self.steps {
            let fault = |error| StepError { op: step.op.to_string(), node: step.name.to_string(), error };
            let results = self.step(step, &slots, limit.saturating_sub(alive), watch).map_err(fault)?;
            for (value, slot) in results.into_iter().zip(&step.outputs) {
                debug_assert_eq!(shape_product(&value.shape), Some(value.data.len()), "{}", step.op);
                let Some(slot) = slot.and_then(|s| slots.get_mut(s)) else { continue };
                alive = alive.saturating_add(value.bytes());
                if alive > limit || !spans(&value.shape, limit) {
                    return Err(fault(OpError::TooLarge { shape: value.shape, limit }));
                }
                *slot = Slot::Made(value);
            }
            for &slot in &step.release {
                if let Some(slot) = slots.get_mut(slot)
                    && let Slot::Made(value) = std::mem::replace(slot, Slot::Empty)
                {
                    alive = alive.saturating_sub(value.bytes());
                    if let Elements::Fp32(buffer) = value.data {
                        buffer_pool::put(buffer);
                    }
                }
            }
        }
        Ok(self.collect(&mut slots))
    }

    fn view<'s>(&'s self, slots: &'s [Slot<'_>], source: Source) -> Option<View<'s>> {
        match source {
            Source::Constant(i) => self.constants.get(i).map(Value::view),
            Source::Slot(i) => match slots.get(i)? {
                Slot::Empty => None,
                Slot::Given(view) => Some(*view),
                Slot::Made(value) => Some(value.view()),
            },
        }
    }

    fn step(
        &self,
        step: &Step,
        slots: &[Slot<'_>],
        limit: usize,
        watch: &Watch<'_>,
    ) -> Result<Vec<Value>, OpError> {
        let mut few = [None; FEW];
        let many: Vec<Option<View<'_>>>;
        let look = |source: &Option<Source>| source.and_then(|s| self.view(slots, s));
        let inputs = if let Some(few) = few.get_mut(..step.inputs.len()) {
            for (to, source) in few.iter_mut().zip(&step.inputs) {
                *to = look(source);
            }
            &*few
        } else {
            many = step.inputs.iter().map(look).collect();
            &many
        };
        let results = (step.kernel)(&Args { inputs, limit, watch })?;
        let elements: usize = results.iter().map(|v| v.data.len()).sum();
        watch.spend(STEP_WORK + elements)?;
        watch.check()?;
        Ok(results)
    }

    fn collect(&self, slots: &mut [Slot<'_>]) -> Vec<Value> {
        let empty = || Value::f32([0], Vec::new());
        let mut results = Vec::with_capacity(self.outputs.len());
        for (i, &source) in self.outputs.iter().enumerate() {
            let again = self.outputs.get(i + 1..).is_some_and(|rest| rest.contains(&source));
            let value = match source {
                Source::Slot(s) if !again => match slots.get_mut(s) {
                    Some(slot @ Slot::Made(_)) => match std::mem::replace(slot, Slot::Empty) {
                        Slot::Made(value) => Some(value),
                        _ => None,
                    },
                    Some(Slot::Given(view)) => Some(view.to_value()),
                    _ => None,
                },
                _ => self.view(slots, source).map(View::to_value),
            };
            results.push(value.unwrap_or_else(empty));
        }
        results
    }
}

/// Nodes that the outputs need, each after those it reads from.
fn order<'g>(
    graph: &'g GraphProto<'g>,
    known: &HashMap<String, Source>,
) -> Result<Vec<&'g NodeProto<'g>>, PlanError> {
    let mut producers: HashMap<&str, usize> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        for &output in node.outputs.iter().filter(|o| !o.is_empty()) {
            if known.contains_key(output) || producers.insert(output, i).is_some() {
                return Err(PlanError::Duplicate(output.to_owned()));
            }
        }
    }
    // A depth-first walk with its own stack: foreign graphs may be deep.
    let mut state = vec![Mark::New; graph.nodes.len()];
    let mut sorted = Vec::new();
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for output in &graph.outputs {
        match producers.get(output.name) {
            Some(&i) => stack.push((i, 0)),
            None if known.contains_key(output.name) => continue,
            None => return Err(PlanError::Output(output.name.to_owned())),
        }
        while let Some((i, next)) = stack.pop() {
            let (Some(node), Some(mark)) = (graph.nodes.get(i), state.get_mut(i)) else { continue };
            if *mark == Mark::Done {
                continue;
            }
            *mark = Mark::Open;
            let Some(input) = node.inputs.get(next) else {
                *mark = Mark::Done;
                sorted.push(node);
                continue;
            };
            stack.push((i, next + 1));
            match producers.get(input) {
                Some(&p) => match state.get(p) {
                    Some(Mark::New) => stack.push((p, 0)),
                    Some(Mark::Open) => {
                        return Err(PlanError::Cycle { node: node.name.to_owned() });
                    }
                    _ => {}
                },
                None if input.is_empty() || known.contains_key(*input) => {}
                None => {
                    return Err(PlanError::Unknown {
                        node: node.name.to_owned(),
                        value: (*input).to_owned(),
                    });
                }
            }
        }
    }
    Ok(sorted)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

/// Builds a plan node by node.
struct Planner<'w> {
    watch: &'w Watch<'w>,
    names: HashMap<String, Source>,
    constants: Vec<Value>,
    steps: Vec<Step>,
    slots: usize,
    folded: usize,
}

impl<'w> Planner<'w> {
    fn new(constants: Constants, inputs: &[&str], watch: &'w Watch<'w>) -> Result<Self, PlanError> {
        let mut planner = Self {
            watch,
            names: HashMap::new(),
            constants: Vec::with_capacity(constants.len()),
            steps: Vec::new(),
            slots: inputs.len(),
            folded: 0,
        };
        for (i, &name) in inputs.iter().enumerate() {
            if planner.names.insert(name.to_owned(), Source::Slot(i)).is_some() {
                return Err(PlanError::Duplicate(name.to_owned()));
            }
        }
        for (name, value) in constants {
            let source = Source::Constant(planner.constants.len());
            planner.constants.push(value);
            if planner.names.insert(name.clone(), source).is_some() {
                return Err(PlanError::Duplicate(name));
            }
        }
        Ok(planner)
    }

    /// Adds a node and its fused successor; returns it if its operator is unsupported.
    fn add(
        &mut self,
        proto: &NodeProto<'_>,
        second: Option<&NodeProto<'_>>,
        opsets: &Opsets,
    ) -> Result<Option<UnsupportedOp>, PlanError> {
        let domain = standard(proto.domain);
        let given = &second.unwrap_or(proto).outputs;
        let fault =
            |error| PlanError::Node { node: proto.name.to_owned(), op: proto.op_type.to_owned(), error };
        let mut inputs: Vec<Option<Source>> = proto
            .inputs
            .iter()
            .map(|name| if name.is_empty() { None } else { self.names.get(*name).copied() })
            .collect();
        let node = Node {
            proto,
            opset: opsets.version(domain),
            constants: inputs
                .iter()
                .map(|source| match source {
                    Some(Source::Constant(i)) => self.constants.get(*i),
                    _ => None,
                })
                .collect(),
            absorbed: RefCell::new(Vec::new()),
            then_relu: second.is_some(),
            opsets,
            watch: self.watch,
        };
        let built = match domain {
            "" if proto.op_type == "Scan" => scan::build(&node).map(Some),
            "" => ops::build(&node),
            "ai.onnx.ml" => ml::build(&node),
            _ => Ok(None),
        };
        let Some(kernel) = built.map_err(fault)? else {
            for &output in given.iter().filter(|o| !o.is_empty()) {
                self.names.insert(output.to_owned(), Source::Slot(0));
            }
            return Ok(Some(UnsupportedOp {
                op: proto.op_type.to_owned(),
                domain: domain.to_owned(),
                opset: node.opset,
                node: proto.name.to_owned(),
            }));
        };
        let folded = if inputs.iter().flatten().all(|s| matches!(s, Source::Constant(_))) {
            self.fold(&node, &kernel)?
        } else {
            None
        };
        let absorbed = node.absorbed.into_inner();
        if let Some(values) = folded {
            for (value, name) in values.into_iter().zip(given).filter(|(_, n)| !n.is_empty()) {
                self.folded += value.bytes();
                self.names.insert((*name).to_owned(), Source::Constant(self.constants.len()));
                self.constants.push(value);
            }
            return Ok(None);
        }
        for i in absorbed {
            if let Some(input) = inputs.get_mut(i) {
                *input = None;
            }
        }
        let outputs = given
            .iter()
            .map(|name| {
                if name.is_empty() {
                    return None;
                }
                let slot = self.slots;
                self.slots += 1;
                self.names.insert((*name).to_owned(), Source::Slot(slot));
                Some(slot)
            })
            .collect();
        self.steps.push(Step {
            kernel,
            inputs: inputs.into_boxed_slice(),
            outputs,
            release: Box::default(),
            op: proto.op_type.into(),
            name: proto.name.into(),
        });
        Ok(None)
    }

    /// Computes a node whose inputs are all constant. A result that is too large or takes too long is left to the
    /// runs.
    fn fold(&self, node: &Node<'_>, kernel: &Kernel) -> Result<Option<Vec<Value>>, PlanError> {
        let views: Vec<Option<View<'_>>> = node.constants.iter().map(|c| c.map(Value::view)).collect();
        let watch = self.watch;
        let args = Args { inputs: &views, limit: FOLD_LIMIT.saturating_sub(self.folded), watch };
        let folded = watch.check().and_then(|()| kernel(&args)).and_then(|r| watch.check().map(|()| r));
        match folded {
            Ok(results) => Ok(Some(results).filter(|r| r.iter().all(|v| spans(&v.shape, FOLD_LIMIT)))),
            Err(OpError::TooLarge { .. } | OpError::TimeLimit(_)) => Ok(None),
            Err(error) => Err(PlanError::Node {
                node: node.proto.name.to_owned(),
                op: node.proto.op_type.to_owned(),
                error,
            }),
        }
    }

    /// Computes the last use of each value, and drops unused constants.
    fn finish(mut self, inputs: usize, outputs: Vec<Source>) -> Plan {
        let mut needed: BTreeSet<usize> = slots_of(&outputs).collect();
        for step in self.steps.iter_mut().rev() {
            let mut release = Vec::new();
            let read = slots_of(step.inputs.iter().flatten());
            // Unused outputs are freed at once.
            for slot in read.chain(step.outputs.iter().flatten().copied()) {
                if needed.insert(slot) {
                    release.push(slot);
                }
            }
            step.release = release.into();
        }
        let mut used = vec![false; self.constants.len()];
        let sources = self.steps.iter().flat_map(|s| s.inputs.iter().flatten()).chain(&outputs);
        for source in sources {
            if let Source::Constant(i) = source
                && let Some(flag) = used.get_mut(*i)
            {
                *flag = true;
            }
        }
        for (value, _) in self.constants.iter_mut().zip(used).filter(|(_, used)| !used) {
            *value = Value::f32([0], Vec::new());
        }
        Plan { steps: self.steps, constants: self.constants, slots: self.slots, inputs, outputs }
    }
}

fn slots_of<'a>(sources: impl IntoIterator<Item = &'a Source>) -> impl Iterator<Item = usize> {
    sources.into_iter().filter_map(|s| match s {
        Source::Slot(i) => Some(*i),
        Source::Constant(_) => None,
    })
}
