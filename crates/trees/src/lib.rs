//! Decision-tree ensembles: reads the model files of XGBoost and LightGBM, and evaluates them as the libraries do.
//!
//! * [`Model`] is a model of any [`Format`]; [`Rows`] is the input, [`Prediction`] the output.
//! * [`onnx_ensemble`] builds ensembles from the flat attribute lists of the `ai.onnx.ml` tree operators.
//!
//! Inside, from the outside in:
//!
//! * `format` detects the format by the first bytes and rejects unsupported ones;
//! * `xgboost` parses JSON and UBJSON into one document model, then trees, weights and the objective;
//! * `lightgbm` parses the text format, with linear leaves;
//! * `forest` is the core that all of them share: it validates the trees, lays them out, and evaluates
//!   blocks of rows. Everything in a file is validated there, and nothing again during evaluation.
//!
//! ```no_run
//! use gantry_trees::{Format, Model, Output, Rows};
//!
//! let bytes = std::fs::read("model.json")?;
//! let model = Model::from_bytes(&bytes, Format::sniff(&bytes)?)?;
//! let row = vec![0.0_f32; model.features()];
//! let prediction = model.predict(Rows::f32(&row, 1, row.len())?, Output::Predict)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod forest;
mod format;
mod lightgbm;
mod model;
pub mod onnx_ensemble;
mod rows;
mod xgboost;

pub use error::{ParseError, PredictError};
pub use format::Format;
pub use model::{Model, Output, Prediction, PredictionValues};
pub use rows::Rows;
