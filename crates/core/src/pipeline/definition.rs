//! A pipeline as its author writes it.

use std::{collections::BTreeMap, fmt, sync::Arc};

/// A version of a pipeline: plain data, not validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definition {
    pub name: Arc<str>,
    pub steps: Vec<Step>,
    pub input: Option<Input>,
    pub output: Option<Output>,
    pub clean_topics_on_delete: bool,
    pub allow_cycles: bool,
    pub max_step_revisits: u32,
}

/// A step; it calls the model of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub name: Arc<str>,
    /// `step`, `step.inputs|outputs` or `step.inputs|outputs.tensor`; the pipeline's own inputs when empty.
    pub inputs: Vec<String>,
    pub join_window_ms: Option<u32>,
    /// `step.inputs|outputs.tensor` to the name that this step receives.
    pub tensor_map: BTreeMap<String, String>,
    pub inputs_join: Join,
    pub triggers: Vec<String>,
    pub triggers_join: Join,
    pub batch: Option<Batch>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub size: Option<u32>,
    pub window_ms: Option<u32>,
    pub rolling: bool,
}

/// Input from other pipelines, in addition to requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    pub external_inputs: Vec<String>,
    pub external_triggers: Vec<String>,
    pub join_window_ms: Option<u32>,
    pub join: Join,
    pub triggers_join: Join,
    pub tensor_map: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// As [`Step::inputs`], but of steps only.
    pub steps: Vec<String>,
    /// 0 selects the default.
    pub join_window_ms: u32,
    pub join: Join,
    pub tensor_map: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// All sources.
    #[default]
    Inner,
    /// The sources that arrive within the window.
    Outer,
    /// The source that arrives first.
    Any,
}

/// Why a definition is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field in its written form, such as `steps[2].inputs[0]` or `input.externalInputs[1]`.
    pub field: String,
    /// What is wrong and what to do; names the pipeline.
    pub message: String,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Invalid {}
