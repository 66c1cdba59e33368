//! A graph as it is written.

use std::collections::BTreeMap;

/// The node where requests enter.
pub const ROOT: &str = "root";

/// A graph as it is written. Not yet validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    pub nodes: BTreeMap<String, Node>,
}

/// A node of a [`Definition`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub router: Router,
    pub steps: Vec<Step>,
}

/// How the steps of a node are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    Sequence,
    Splitter,
    Ensemble,
    Switch,
}

/// A step of a [`Node`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: Option<String>,
    pub target: Target,
    /// In a sequence: the input is the previous response instead of the request.
    pub takes_response: bool,
    /// The member `predictions` of the input becomes `instances`.
    pub maps_predictions: bool,
    /// Percentage of the requests, in a splitter.
    pub weight: Option<i64>,
    /// A path that has to exist in the request (switch) or in the previous response (sequence).
    pub condition: Option<String>,
    /// A failure ends the node.
    pub is_hard: bool,
}

/// What a step calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Node(String),
    /// An `InferenceService` of the graph's namespace.
    Service(String),
    Url(String),
}

/// Why a definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field in its written form, such as `nodes.root.steps[2].weight`.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}
