//! Inputs and outputs of a model, and input validation.

use crate::error::{LoadError, RunError};
use crate::proto::{AttributeValue, GraphProto, ModelProto, ValueKind, data_type};
use gantry_tensor::{DataType, Tensor, TensorSpec};
use std::collections::HashSet;

/// Inputs and outputs of a model.
#[derive(Debug)]
pub(crate) struct Interface {
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    /// By input: whether the file has no shape, so that any is accepted.
    any_shape: Vec<bool>,
    pub batchable: bool,
    /// By output: the labels of its columns, when the model makes maps of them.
    pub map_labels: Vec<Option<MapLabels>>,
}

/// The keys of the maps that `ZipMap` makes, in the order of the columns.
#[derive(Debug, Clone)]
pub(crate) enum MapLabels {
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl MapLabels {
    const fn len(&self) -> usize {
        match self {
            Self::Ints(v) => v.len(),
            Self::Texts(v) => v.len(),
        }
    }
}

impl Interface {
    pub(crate) fn new(model: &ModelProto<'_>) -> Result<Self, LoadError> {
        let graph = &model.graph;
        let constants: HashSet<&str> = graph.initializers.iter().map(|t| t.name).collect();
        let mut inputs = Vec::new();
        let mut any_shape = Vec::new();
        // Old files list initializers among the inputs, as defaults.
        for info in graph.inputs.iter().filter(|i| !constants.contains(i.name)) {
            let (spec, any) = tensor_spec("input", info.name, &info.kind)?;
            inputs.push(spec);
            any_shape.push(any);
        }
        let mut outputs = Vec::new();
        let mut map_labels = Vec::new();
        let mut known_outputs = true;
        for info in &graph.outputs {
            if let ValueKind::MapSequence(_) = info.kind {
                let labels = zip_map_labels(graph, info.name);
                outputs.push(TensorSpec {
                    name: info.name.to_owned(),
                    datatype: DataType::Fp32,
                    shape: vec![-1, labels.as_ref().map_or(-1, |l| l.len() as i64)],
                });
                map_labels.push(labels);
                continue;
            }
            let (spec, any) = tensor_spec("output", info.name, &info.kind)?;
            known_outputs &= !any;
            outputs.push(spec);
            map_labels.push(None);
        }
        let open = |specs: &[TensorSpec]| specs.iter().all(|s| s.shape.first() == Some(&-1));
        let batchable = !inputs.is_empty()
            && !any_shape.contains(&true)
            && known_outputs
            && open(&inputs)
            && open(&outputs);
        Ok(Self { inputs, outputs, any_shape, batchable, map_labels })
    }

    /// The tensors in the order of the model's inputs, if they are what the model takes.
    pub(crate) fn check<'t>(&self, tensors: &'t [Tensor]) -> Result<Vec<&'t Tensor>, RunError> {
        for (i, tensor) in tensors.iter().enumerate() {
            if self.inputs.iter().all(|s| s.name != tensor.name()) {
                return Err(RunError::UnknownInput {
                    name: tensor.name().to_owned(),
                    known: names(&self.inputs),
                });
            }
            if tensors.iter().take(i).any(|t| t.name() == tensor.name()) {
                return Err(RunError::DuplicateInput { name: tensor.name().to_owned() });
            }
        }
        self.inputs
            .iter()
            .zip(&self.any_shape)
            .map(|(spec, &any)| {
                let tensor =
                    tensors.iter().find(|t| t.name() == spec.name).ok_or_else(|| RunError::MissingInput {
                        name: spec.name.clone(),
                        expected: kind(spec.datatype, spec.shape.iter()),
                    })?;
                let span = tensor.shape().iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
                let sane = span.is_some_and(|n| n <= MAX_SPAN);
                if tensor.datatype() == spec.datatype && sane && (any || fits(tensor.shape(), &spec.shape)) {
                    return Ok(tensor);
                }
                Err(RunError::Input {
                    name: spec.name.clone(),
                    expected: kind(spec.datatype, spec.shape.iter()),
                    got: kind(tensor.datatype(), tensor.shape().iter()),
                })
            })
            .collect()
    }

    /// The positions of the outputs that are wanted; all when none is named.
    pub(crate) fn wanted(&self, names_wanted: &[&str]) -> Result<Vec<usize>, RunError> {
        if names_wanted.is_empty() {
            return Ok((0..self.outputs.len()).collect());
        }
        names_wanted
            .iter()
            .map(|name| {
                self.outputs.iter().position(|o| o.name == *name).ok_or_else(|| RunError::UnknownOutput {
                    name: (*name).to_owned(),
                    known: names(&self.outputs),
                })
            })
            .collect()
    }
}

/// Rejects huge dimensions beside an empty one: engines would multiply them.
const MAX_SPAN: usize = 1 << 28;

fn fits(shape: &[usize], spec: &[i64]) -> bool {
    shape.len() == spec.len() && shape.iter().zip(spec).all(|(&d, &s)| s < 0 || d as u64 == s as u64)
}

/// A datatype and a shape, as in `FP32 [-1,4]`.
fn kind<D: std::fmt::Display>(datatype: DataType, shape: impl Iterator<Item = D>) -> String {
    let dims: Vec<String> = shape.map(|d| d.to_string()).collect();
    format!("{datatype} [{}]", dims.join(","))
}

fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    names.join(", ")
}

fn tensor_spec(role: &'static str, name: &str, kind: &ValueKind) -> Result<(TensorSpec, bool), LoadError> {
    let fault = || LoadError::Value { role, name: name.to_owned() };
    let ValueKind::Tensor(number, shape) = kind else {
        return Err(fault());
    };
    let datatype = data_type(*number).ok_or_else(fault)?;
    let spec =
        TensorSpec { name: name.to_owned(), datatype, shape: shape.clone().unwrap_or_else(|| vec![-1]) };
    Ok((spec, shape.is_none()))
}

fn zip_map_labels(graph: &GraphProto<'_>, output: &str) -> Option<MapLabels> {
    let node = graph.nodes.iter().find(|n| n.op_type == "ZipMap" && n.outputs.first() == Some(&output))?;
    node.attributes.iter().find_map(|a| match &a.value {
        AttributeValue::Ints(v) if a.name == "classlabels_int64s" && !v.is_empty() => {
            Some(MapLabels::Ints(v.clone()))
        }
        AttributeValue::Texts(v) if a.name == "classlabels_strings" && !v.is_empty() => {
            Some(MapLabels::Texts(v.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect()))
        }
        _ => None,
    })
}
