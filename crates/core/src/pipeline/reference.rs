//! References to data: the written forms of inputs, triggers, outputs and tensor maps.

use std::sync::Arc;

/// Inputs or outputs of a step, or of the pipeline itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reference<'a> {
    /// A step or the pipeline.
    pub(super) name: &'a str,
    pub(super) inputs: bool,
    pub(super) tensor: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    Empty,
    Form,
}

impl<'a> Reference<'a> {
    /// Parses `name`, `name.inputs|outputs` or `name.inputs|outputs.tensor`. A name alone stands for the outputs of a step
    /// and for the inputs of the pipeline.
    pub(super) fn parse(pipeline: &str, written: &'a str) -> Result<Self, Malformed> {
        if written.trim().is_empty() || written.starts_with('.') {
            return Err(Malformed::Empty);
        }
        let mut parts = written.split('.');
        let name = parts.next().unwrap_or_default();
        let inputs = match parts.next() {
            None => name == pipeline,
            Some(kind) => is_inputs(kind).ok_or(Malformed::Form)?,
        };
        let tensor = parts.next();
        if tensor == Some("") || parts.next().is_some() {
            return Err(Malformed::Form);
        }
        Ok(Self { name, inputs, tensor })
    }

    /// Parses a key of a tensor map, where dots in the tensor's name are part of it.
    pub(super) fn tensor_key(key: &'a str) -> Option<Self> {
        let mut parts = key.splitn(3, '.');
        let (name, kind, tensor) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { name, inputs: is_inputs(kind)?, tensor: Some(tensor) })
    }
}

/// A reference to data of another pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    pub pipeline: Arc<str>,
    pub kind: ExternalKind,
    /// All tensors when absent.
    pub tensor: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalKind {
    Inputs,
    Outputs,
    StepInputs(Arc<str>),
    StepOutputs(Arc<str>),
}

impl External {
    /// Parses `pipeline[.inputs|outputs[.tensor]]` or `pipeline.step.name[.inputs|outputs[.tensor]]`. The error is the
    /// reason.
    pub(super) fn parse(written: &str) -> Result<Self, &'static str> {
        const PREFIX: &str = "after the pipeline's name follows inputs, outputs or step.<step>";
        const SUFFIX: &str = "after the step's name follows inputs or outputs";
        const LONG: &str = "nothing follows the tensor: write <pipeline>.inputs|outputs[.<tensor>] or \
                            <pipeline>.step.<step>.inputs|outputs[.<tensor>]";
        if written.trim().is_empty() {
            return Err("it is empty: name a pipeline");
        }
        let mut parts = written.split('.');
        let pipeline = parts.next().unwrap_or_default();
        let mut kind = parts.next().unwrap_or("outputs");
        let mut step = None;
        if kind == "step" {
            step = Some(parts.next().ok_or(PREFIX)?);
            kind = parts.next().unwrap_or("outputs");
        }
        let inputs = is_inputs(kind).ok_or(if step.is_some() { SUFFIX } else { PREFIX })?;
        let tensor = parts.next();
        if parts.next().is_some() {
            return Err(LONG);
        }
        if pipeline.is_empty() || step == Some("") || tensor == Some("") {
            return Err("a name between dots is empty: remove the dot or add the name");
        }
        let kind = match (step, inputs) {
            (None, true) => ExternalKind::Inputs,
            (None, false) => ExternalKind::Outputs,
            (Some(step), true) => ExternalKind::StepInputs(step.into()),
            (Some(step), false) => ExternalKind::StepOutputs(step.into()),
        };
        Ok(Self { pipeline: pipeline.into(), kind, tensor: tensor.map(Into::into) })
    }
}

fn is_inputs(kind: &str) -> Option<bool> {
    match kind {
        "inputs" => Some(true),
        "outputs" => Some(false),
        _ => None,
    }
}
