//! The public model type, for any format.

use crate::error::{ParseError, PredictError};
use crate::forest::{Execution, check_output};
use crate::format::Format;
use crate::lightgbm::{self, LightgbmModel};
use crate::rows::Rows;
use crate::xgboost::{self, XgboostModel};

/// What to return for each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Output {
    /// What the library's `predict` returns: transformed by the objective, over all trees.
    #[default]
    Predict,
    /// The raw scores (`output_margin=True`, `raw_score=True`).
    Margin,
    /// The index of the predicted class.
    Class,
    /// The library's number of the leaf that each tree ends in (`pred_leaf=True`).
    Leaf,
}

/// Outputs in the type that the library returns.
#[derive(Debug, Clone, PartialEq)]
pub enum PredictionValues {
    /// Predictions and margins of XGBoost.
    F32(Vec<f32>),
    /// Predictions and margins of LightGBM.
    F64(Vec<f64>),
    /// Classes and leaves.
    U32(Vec<u32>),
}

/// The outputs of all rows, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// How many rows there are.
    pub rows: usize,
    /// How many outputs each row has.
    pub outputs: usize,
    /// `rows` times `outputs` values.
    pub values: PredictionValues,
}

/// A tree ensemble or linear booster, proven sound when it was read; it may be shared between threads.
#[derive(Debug, Clone)]
pub struct Model {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Xgboost(Box<XgboostModel>),
    Lightgbm(Box<LightgbmModel>),
}

impl Model {
    /// Reads a model file; everything that evaluation relies on is checked here.
    pub fn from_bytes(bytes: &[u8], format: Format) -> Result<Self, ParseError> {
        let kind = match format {
            Format::XgboostJson => Kind::Xgboost(Box::new(xgboost::from_json(bytes)?)),
            Format::XgboostUbjson => Kind::Xgboost(Box::new(xgboost::from_ubjson(bytes)?)),
            Format::LightgbmText => Kind::Lightgbm(Box::new(lightgbm::from_text(bytes)?)),
        };
        Ok(Self { kind })
    }

    /// How many features each row must have.
    pub fn features(&self) -> usize {
        match &self.kind {
            Kind::Xgboost(model) => model.features,
            Kind::Lightgbm(model) => model.features,
        }
    }

    /// The names of the features in order, or nothing when the file has none.
    pub fn feature_names(&self) -> &[String] {
        match &self.kind {
            Kind::Xgboost(model) => &model.feature_names,
            Kind::Lightgbm(model) => &model.feature_names,
        }
    }

    /// The objective as the file spells it, for example `binary:logistic` or `binary sigmoid:1`.
    pub fn objective(&self) -> &str {
        match &self.kind {
            Kind::Xgboost(model) => &model.objective_name,
            Kind::Lightgbm(model) => &model.objective_name,
        }
    }

    /// The number of classes, if the model is a classifier.
    pub fn classes(&self) -> Option<usize> {
        match &self.kind {
            Kind::Xgboost(model) => model.classes(),
            Kind::Lightgbm(model) => model.classes(),
        }
    }

    /// How many trees there are; none in a linear booster.
    pub fn trees(&self) -> usize {
        match &self.kind {
            Kind::Xgboost(model) => model.trees(),
            Kind::Lightgbm(model) => model.trees(),
        }
    }

    /// The best iteration that early stopping noted in an XGBoost model. The library's `Booster.predict` uses all
    /// trees nevertheless, and so does [`Self::predict`].
    pub fn best_iteration(&self) -> Option<usize> {
        match &self.kind {
            Kind::Xgboost(model) => model.best_iteration,
            Kind::Lightgbm(_) => None,
        }
    }

    /// How many values [`Self::predict`] returns per row.
    pub fn outputs_per_row(&self, output: Output) -> usize {
        match (&self.kind, output) {
            (Kind::Xgboost(model), Output::Predict) => model.predict_outputs(),
            (Kind::Xgboost(model), Output::Margin) => model.margin_outputs(),
            (Kind::Xgboost(model), Output::Class) => model.class_outputs(),
            (Kind::Lightgbm(model), Output::Predict | Output::Margin) => model.outputs(),
            (Kind::Lightgbm(_), Output::Class) => 1,
            (_, Output::Leaf) => self.trees(),
        }
    }

    /// About how much memory the model takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.kind {
                Kind::Xgboost(model) => size_of::<XgboostModel>() + model.memory_bytes(),
                Kind::Lightgbm(model) => size_of::<LightgbmModel>() + model.memory_bytes(),
            }
    }

    /// Evaluates all rows in the calling thread.
    pub fn predict(&self, rows: Rows<'_>, output: Output) -> Result<Prediction, PredictError> {
        self.predict_with_threads(rows, output, 1)
    }

    /// Evaluates all rows with at most this many threads, the calling one among them; small batches use fewer.
    pub fn predict_with_threads(
        &self,
        rows: Rows<'_>,
        output: Output,
        threads: usize,
    ) -> Result<Prediction, PredictError> {
        self.predict_until(rows, output, threads, &|| false)
    }

    /// As [`Self::predict_with_threads`]; polls `stop` about every millisecond, and returns
    /// [`PredictError::Stopped`] when it is true.
    pub fn predict_until(
        &self,
        rows: Rows<'_>,
        output: Output,
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Prediction, PredictError> {
        if rows.features() != self.features() {
            return Err(PredictError::Features { expected: self.features(), actual: rows.features() });
        }
        if output == Output::Class && self.classes().is_none() {
            return Err(PredictError::NotClassifier { objective: self.objective().to_owned() });
        }
        let outputs = self.outputs_per_row(output);
        check_output(rows.rows(), outputs.max(self.outputs_per_row(Output::Margin)))?;
        let execution = &Execution::new(threads, stop);
        let values = match (&self.kind, output) {
            (Kind::Xgboost(model), Output::Predict) => PredictionValues::F32(model.predict(&rows, execution)),
            (Kind::Xgboost(model), Output::Margin) => PredictionValues::F32(model.margins(&rows, execution)),
            (Kind::Xgboost(model), Output::Class) => PredictionValues::U32(model.classify(&rows, execution)),
            (Kind::Xgboost(model), Output::Leaf) => {
                PredictionValues::U32(model.leaves(&rows, execution).ok_or(PredictError::NoTrees)?)
            }
            (Kind::Lightgbm(model), Output::Predict) => {
                PredictionValues::F64(model.predict(&rows, execution))
            }
            (Kind::Lightgbm(model), Output::Margin) => PredictionValues::F64(model.margins(&rows, execution)),
            (Kind::Lightgbm(model), Output::Class) => PredictionValues::U32(model.classify(&rows, execution)),
            (Kind::Lightgbm(model), Output::Leaf) => {
                PredictionValues::U32(model.leaf_indices(&rows, execution))
            }
        };
        execution.check()?;
        Ok(Prediction { rows: rows.rows(), outputs, values })
    }
}
