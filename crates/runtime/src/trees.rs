//! XGBoost and LightGBM models.

use crate::{InferenceError, LoadError, Model, Settings};
use gantry_tensor::{CancelToken, DataType, Elements, Tensor, TensorSpec};
use gantry_trees::{Format, Output, PredictError, Prediction, PredictionValues, Rows};
use std::{
    path::Path,
    sync::OnceLock,
    time::{Duration, Instant},
};

const MAX_FILE_BYTES: u64 = 4 << 30;
/// Trees have no input names; any name is accepted.
const INPUT: &str = "input-0";

pub(crate) struct TreeModel {
    model: gantry_trees::Model,
    platform: &'static str,
    threads: usize,
    max_run_time: Duration,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
}

impl TreeModel {
    pub(crate) fn load(file: &Path, format: Format, settings: &Settings) -> Result<Self, LoadError> {
        let name = || crate::model::file_name(file);
        let io = |source| LoadError::Io { file: name(), source };
        let invalid = |reason: String| LoadError::Invalid { file: name(), reason };
        let size = std::fs::metadata(file).map_err(io)?.len();
        if size > MAX_FILE_BYTES {
            return Err(invalid(format!("{size} bytes exceed the limit of {MAX_FILE_BYTES}")));
        }
        let bytes = std::fs::read(file).map_err(io)?;
        let model = gantry_trees::Model::from_bytes(&bytes, format).map_err(|e| invalid(e.to_string()))?;
        let (platform, datatype) = match format {
            Format::XgboostJson | Format::XgboostUbjson => ("xgboost", DataType::Fp32),
            Format::LightgbmText => ("lightgbm", DataType::Fp64),
        };
        let features = i64::try_from(model.features()).unwrap_or(i64::MAX);
        let width = model.outputs_per_row(Output::Predict);
        let shape = if width == 1 { vec![-1] } else { vec![-1, i64::try_from(width).unwrap_or(i64::MAX)] };
        Ok(Self {
            platform,
            threads: settings.threads,
            max_run_time: settings.max_run_time,
            inputs: vec![TensorSpec { name: INPUT.into(), datatype, shape: vec![-1, features] }],
            outputs: vec![TensorSpec { name: "predict".into(), datatype, shape }],
            model,
        })
    }

    /// Assembles rows from one tensor per feature; `None` if the inputs are not named after features.
    fn columns(&self, inputs: &[Tensor]) -> Option<Result<(usize, Vec<f64>), InferenceError>> {
        let names = self.model.feature_names();
        let by_name = inputs.len() > 1 && inputs.iter().all(|t| names.iter().any(|n| n == t.name()));
        if !by_name {
            return None;
        }
        let rows = inputs.first().map_or(0, |t| t.elements().len());
        let mut values = vec![f64::NAN; rows.checked_mul(names.len())?];
        for (column, name) in names.iter().enumerate() {
            let Some(tensor) = inputs.iter().find(|t| t.name() == name) else {
                return Some(Err(InferenceError::Request(format!(
                    "input {name}: expected one value a row, got nothing"
                ))));
            };
            let Some(elements) = tensor.elements().to_f64().filter(|e| e.len() == rows) else {
                return Some(Err(InferenceError::Request(format!(
                    "input {name}: expected {rows} numbers as in input {}, got {} {}",
                    inputs.first().map_or("", |t| t.name()),
                    tensor.elements().len(),
                    tensor.datatype()
                ))));
            };
            let places = values.iter_mut().skip(column).step_by(names.len());
            places.zip(elements.iter()).for_each(|(to, from)| *to = *from);
        }
        Some(Ok((rows, values)))
    }

    fn predict(
        &self,
        inputs: &[Tensor],
        output: Output,
        cancel: &CancelToken,
    ) -> Result<Prediction, InferenceError> {
        let features = self.model.features();
        if let Some(columns) = self.columns(inputs) {
            let (rows, values) = columns?;
            return self.evaluate(Rows::f64(&values, rows, features), output, cancel);
        }
        let [input] = inputs else {
            let names = inputs.iter().map(Tensor::name).collect::<Vec<_>>().join(", ");
            return Err(InferenceError::Request(format!(
                "the model takes one input of shape [rows,{features}], or one for each feature by its name; got {names}"
            )));
        };
        let name = input.name();
        let rows = match input.shape() {
            [rows, n] if *n == features => *rows,
            [n] if *n == features => 1,
            shape => {
                return Err(InferenceError::Request(format!(
                    "input {name}: expected shape [-1,{features}], got {shape:?}"
                )));
            }
        };
        let not_numbers = || InferenceError::Request(format!("input {name}: expected numbers, got BYTES"));
        match input.elements() {
            // LightGBM compares in double precision.
            Elements::Fp32(values) => self.evaluate(Rows::f32(values, rows, features), output, cancel),
            _ if self.platform == "xgboost" => {
                let values = input.elements().to_f32().ok_or_else(not_numbers)?;
                self.evaluate(Rows::f32(&values, rows, features), output, cancel)
            }
            _ => {
                let values = input.elements().to_f64().ok_or_else(not_numbers)?;
                self.evaluate(Rows::f64(&values, rows, features), output, cancel)
            }
        }
    }

    fn evaluate(
        &self,
        rows: Result<Rows<'_>, PredictError>,
        output: Output,
        cancel: &CancelToken,
    ) -> Result<Prediction, InferenceError> {
        // The first poll comes after about a millisecond: short runs do not look at the clock.
        let started = OnceLock::new();
        let stop =
            || cancel.is_cancelled() || started.get_or_init(Instant::now).elapsed() >= self.max_run_time;
        rows.and_then(|rows| self.model.predict_until(rows, output, self.threads, &stop)).map_err(|e| match e
        {
            PredictError::Stopped if cancel.is_cancelled() => InferenceError::Cancelled,
            PredictError::Stopped => InferenceError::Model(format!(
                "the run exceeded the time limit of {} s and was stopped; raise the parameter max_run_time",
                self.max_run_time.as_secs_f64()
            )),
            other => InferenceError::Request(other.to_string()),
        })
    }
}

/// Outputs on demand.
fn output_of(name: &str) -> Option<Output> {
    match name {
        "predict" => Some(Output::Predict),
        "margin" => Some(Output::Margin),
        "class" => Some(Output::Class),
        "leaf" => Some(Output::Leaf),
        _ => None,
    }
}

impl Model for TreeModel {
    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn platform(&self) -> &'static str {
        self.platform
    }

    fn engine(&self) -> String {
        format!("built-in trees: {} trees, objective {}", self.model.trees(), self.model.objective())
    }

    fn memory_bytes(&self) -> usize {
        self.model.memory_bytes()
    }

    fn batchable(&self) -> bool {
        true
    }

    fn infer(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, InferenceError> {
        let wanted = if wanted.is_empty() { &["predict"] } else { wanted };
        wanted
            .iter()
            .map(|name| {
                let output = output_of(name).ok_or_else(|| {
                    InferenceError::Request(format!(
                        "output {name}: the model has no such output; it has predict, and on demand margin, class and leaf"
                    ))
                })?;
                let prediction = self.predict(inputs, output, cancel)?;
                let shape = match prediction.outputs {
                    1 if output != Output::Leaf => vec![prediction.rows],
                    n => vec![prediction.rows, n],
                };
                let elements = match prediction.values {
                    PredictionValues::F32(v) => Elements::Fp32(v),
                    PredictionValues::F64(v) => Elements::Fp64(v),
                    PredictionValues::U32(v) => Elements::Uint32(v),
                };
                Tensor::new(*name, shape, elements).map_err(|e| InferenceError::Model(e.to_string()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_batch_is_stopped_by_its_caller_and_by_its_time_limit() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/demand/model.txt");
        let model = |limit: Duration| {
            let settings = Settings { max_run_time: limit, ..Settings::default() };
            TreeModel::load(&file, Format::LightgbmText, &settings).unwrap()
        };
        let rows = 400_000;
        let input = [Tensor::new("x", [rows, 4], Elements::Fp32(vec![1.0; rows * 4])).unwrap()];
        let cancel = CancelToken::default();
        assert!(model(Duration::MAX).infer(&input, &[], &cancel).is_ok());
        let error = model(Duration::ZERO).infer(&input, &[], &cancel).unwrap_err().to_string();
        assert!(error.contains("exceeded the time limit of 0 s"), "{error}");
        cancel.cancel();
        assert_eq!(model(Duration::MAX).infer(&input, &[], &cancel), Err(InferenceError::Cancelled));
    }
}
