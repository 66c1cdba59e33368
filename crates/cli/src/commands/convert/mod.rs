//! `gantry convert`: models of Python libraries to formats of the built-in runtime, and objects of Seldon Core v1.

mod compare;
mod deployments;
mod model;

use crate::error::CommandError;
use std::path::PathBuf;

/// Convert a model file, or SeldonDeployments (machinelearning.seldon.io/v1).
///
/// A model (scikit-learn pickle or joblib file, XGBoost, LightGBM, CatBoost, Keras, SavedModel, TensorFlow Lite, TorchScript) is
/// loaded by its own library, in a Python environment with the versions that it names, made on first use. The converted
/// file is written beside it after its predictions agree with those of the library. Loading a pickle runs the code in it.
///
/// With -f, prints the manifests for SeldonDeployments. What has no counterpart is listed above them, and on stderr.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  gantry convert models/churn.pkl\n  gantry convert churn.joblib --sample rows.csv -o churn.onnx\n  \
    gantry convert -f deployment.yaml > models.yaml\n  kubectl get sdep iris -o yaml | gantry convert -f - | gantry lint -"
)]
pub(crate) struct Args {
    /// A model file or folder
    #[arg(required_unless_present = "files", conflicts_with = "files", value_name = "MODEL")]
    model: Option<PathBuf>,
    /// A manifest, a directory of manifests, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Include subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Where to write the model [default: beside it, with another extension]
    #[arg(short, long, value_name = "FILE", conflicts_with = "files")]
    output: Option<PathBuf>,
    /// Rows to compare predictions on: .csv, .npy, .parquet or .ndjson [default: generated]
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    sample: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long, conflicts_with = "files")]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), CommandError> {
    match &args.model {
        Some(path) => model::run(path, args.output.as_deref(), args.sample.as_deref(), args.force),
        None => deployments::run(&args.files, args.recursive),
    }
}
