//! Validation and compilation of a [`Definition`].

use super::{
    definition::{Definition, Invalid, Node, ROOT, Router, Step, Target},
    path::Path,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Nodes of a graph.
pub const MAX_NODES: usize = 256;
/// Nodes within nodes, `root` included.
pub const MAX_DEPTH: usize = 32;
/// Calls of services for one request.
pub const MAX_CALLS: u64 = 1024;

/// A valid graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub(super) nodes: Vec<CompiledNode>,
    pub(super) root: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompiledNode {
    pub(super) name: Arc<str>,
    pub(super) router: Router,
    pub(super) steps: Vec<CompiledStep>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompiledStep {
    /// Name or position.
    pub(super) key: Arc<str>,
    pub(super) target: CompiledTarget,
    pub(super) takes_response: bool,
    pub(super) maps_predictions: bool,
    pub(super) weight: u64,
    pub(super) condition: Option<Path>,
    pub(super) is_hard: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum CompiledTarget {
    Node(usize),
    Call(CallTarget),
}

/// A service that a step calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// An `InferenceService` of the graph's namespace.
    Service(Arc<str>),
    Url(Arc<str>),
}

impl Graph {
    /// Compiles a definition, or returns everything that is wrong with it.
    pub fn compile(definition: &Definition) -> Result<Self, Vec<Invalid>> {
        let errors = validate(definition);
        if !errors.is_empty() {
            return Err(errors);
        }
        let ids: BTreeMap<&str, usize> =
            definition.nodes.keys().enumerate().map(|(id, name)| (name.as_str(), id)).collect();
        let nodes = definition.nodes.iter().map(|(name, node)| CompiledNode {
            name: name.as_str().into(),
            router: node.router,
            steps: node.steps.iter().enumerate().map(|(i, step)| compile_step(i, step, &ids)).collect(),
        });
        Ok(Self { nodes: nodes.collect(), root: ids.get(ROOT).copied().unwrap_or_default() })
    }

    /// The services and URLs that the graph can call, each once.
    pub fn targets(&self) -> impl Iterator<Item = &CallTarget> {
        let mut seen = BTreeSet::new();
        let steps = self.nodes.iter().flat_map(|node| &node.steps);
        let targets = steps.filter_map(|step| match &step.target {
            CompiledTarget::Call(target) => Some(target),
            CompiledTarget::Node(_) => None,
        });
        targets.filter(move |target| match target {
            CallTarget::Service(name) => seen.insert((false, Arc::clone(name))),
            CallTarget::Url(url) => seen.insert((true, Arc::clone(url))),
        })
    }
}

fn compile_step(position: usize, step: &Step, ids: &BTreeMap<&str, usize>) -> CompiledStep {
    let key = step.name.as_deref().filter(|name| !name.is_empty());
    CompiledStep {
        key: key.map_or_else(|| position.to_string().into(), Into::into),
        target: match &step.target {
            Target::Node(name) => CompiledTarget::Node(ids.get(name.as_str()).copied().unwrap_or_default()),
            Target::Service(name) => CompiledTarget::Call(CallTarget::Service(name.as_str().into())),
            Target::Url(url) => CompiledTarget::Call(CallTarget::Url(url.as_str().into())),
        },
        takes_response: step.takes_response,
        maps_predictions: step.maps_predictions,
        weight: step.weight.and_then(|weight| u64::try_from(weight).ok()).unwrap_or_default(),
        condition: condition(step).and_then(|path| Path::parse(path).ok()),
        is_hard: step.is_hard,
    }
}

fn condition(step: &Step) -> Option<&str> {
    step.condition.as_deref().filter(|path| !path.is_empty())
}

/// Everything that is wrong with a definition.
pub fn validate(definition: &Definition) -> Vec<Invalid> {
    let mut errors = Vec::new();
    let mut report = |field: String, message: String| errors.push(Invalid { field, message });
    if !definition.nodes.contains_key(ROOT) {
        report("nodes".into(), "has no node root, where requests enter: rename a node to root".into());
    }
    if definition.nodes.len() > MAX_NODES {
        let count = definition.nodes.len();
        report("nodes".into(), format!("has {count} nodes, at most {MAX_NODES} are allowed"));
    }
    for (name, node) in &definition.nodes {
        check_node(name, node, definition, &mut report);
    }
    if errors.is_empty() {
        errors.extend(check_size(definition));
    }
    errors
}

fn check_node(name: &str, node: &Node, definition: &Definition, report: &mut impl FnMut(String, String)) {
    let path = format!("nodes.{name}.steps");
    if node.steps.is_empty() {
        return report(path, "is empty: add a step".into());
    }
    let mut names = BTreeSet::new();
    for (i, step) in node.steps.iter().enumerate() {
        let at = format!("{path}[{i}]");
        if step.name.as_ref().is_some_and(|name| !name.is_empty() && !names.insert(name)) {
            report(format!("{at}.name"), "is used by another step of the node: names must differ".into());
        }
        if let Target::Node(target) = &step.target
            && !definition.nodes.contains_key(target)
        {
            report(format!("{at}.nodeName"), format!("\"{target}\" is not in spec.nodes: add it"));
        }
        if node.router == Router::Splitter && step.weight.is_none_or(|weight| weight < 0) {
            let message = "is missing: each step of a Splitter needs its percentage of the requests";
            report(format!("{at}.weight"), message.into());
        }
        if let Some(condition) = condition(step) {
            if node.router == Router::Sequence && i == 0 {
                let message = "is evaluated on the previous response, and the first step has none: remove it, or use a Switch";
                report(format!("{at}.condition"), message.into());
            } else if matches!(node.router, Router::Sequence | Router::Switch)
                && let Err(reason) = Path::parse(condition)
            {
                report(format!("{at}.condition"), reason);
            }
        }
    }
    let sum = node.steps.iter().filter_map(|step| step.weight).fold(0, i64::saturating_add);
    if node.router == Router::Splitter && sum != 100 {
        report(path, format!("have weights that add up to {sum}: they must add up to 100"));
    }
}

/// Cycles, depth and number of calls, for nodes that are otherwise valid.
fn check_size(definition: &Definition) -> Option<Invalid> {
    // Nodes that are complete: their depth and the most calls of one request.
    let mut sizes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for start in definition.nodes.keys() {
        // The path from `start`, with the position of the next step of each node.
        let mut open: Vec<(&str, usize)> = vec![(start, 0)];
        while let Some((name, next)) = open.last_mut() {
            let name: &str = name;
            let Some(node) = definition.nodes.get(name).filter(|_| !sizes.contains_key(name)) else {
                open.pop();
                continue;
            };
            let Some(step) = node.steps.get(*next) else {
                sizes.insert(name, size(node, &sizes));
                open.pop();
                continue;
            };
            *next += 1;
            if let Target::Node(target) = &step.target {
                if let Some(from) = open.iter().position(|(node, _)| node == target) {
                    let cycle: Vec<&str> = open.iter().skip(from).map(|(node, _)| *node).collect();
                    let (last, step) = open.last().map_or(("", 0), |(node, next)| (*node, next - 1));
                    let field = format!("nodes.{last}.steps[{step}].nodeName");
                    let message =
                        format!("makes a cycle, {} → {target}: remove one of the steps", cycle.join(" → "));
                    return Some(Invalid { field, message });
                }
                open.push((target, 0));
            }
        }
    }
    let (depth, calls) = sizes.get(ROOT).copied().unwrap_or_default();
    let too_large = |message: String| Some(Invalid { field: "nodes".into(), message });
    if depth > MAX_DEPTH {
        return too_large(format!("has {depth} nodes within each other, at most {MAX_DEPTH} are allowed"));
    }
    if calls > MAX_CALLS {
        return too_large(format!("can make {calls} calls for a request, at most {MAX_CALLS} are allowed"));
    }
    None
}

/// Depth, and the most calls of one request.
fn size(node: &Node, sizes: &BTreeMap<&str, (usize, u64)>) -> (usize, u64) {
    let of_step = |step: &Step| match &step.target {
        Target::Node(name) => sizes.get(name.as_str()).copied().unwrap_or_default(),
        Target::Service(_) | Target::Url(_) => (0, 1),
    };
    let depth = node.steps.iter().map(|step| of_step(step).0).max().unwrap_or_default();
    let calls = node.steps.iter().map(|step| of_step(step).1);
    let calls = match node.router {
        Router::Sequence | Router::Ensemble => calls.fold(0, u64::saturating_add),
        Router::Splitter | Router::Switch => calls.max().unwrap_or_default(),
    };
    (depth + 1, calls)
}
