//! Conversion of a model by its own library, with predictions of that library for a comparison.

use crate::{Environment, Requirements, Route, host::message, process, recognise::Recognised};
use gantry_tensor::Tensor;
use serde::Deserialize;
use serde_json::json;
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    process::Command,
    time::Duration,
};

const PROGRAM: &str = include_str!("convert.py");
/// Of sample and predictions.
const MAX_DATA: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Converter {
    Sklearn,
    Xgboost,
    Lightgbm,
    Catboost,
    Keras,
    SavedModel,
    Tflite,
    Torchscript,
    TorchExport,
}

impl Converter {
    /// The name in the program.
    const fn name(self) -> &'static str {
        match self {
            Self::Sklearn => "sklearn",
            Self::Xgboost => "xgboost",
            Self::Lightgbm => "lightgbm",
            Self::Catboost => "catboost",
            Self::Keras => "keras",
            Self::SavedModel => "saved-model",
            Self::Tflite => "tflite",
            Self::Torchscript => "torchscript",
            Self::TorchExport => "torch-export",
        }
    }

    /// The ending of the converted file.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Xgboost => "ubj",
            Self::Lightgbm => "lgb",
            _ => "onnx",
        }
    }

    /// The tool, for help texts.
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Sklearn => "skl2onnx",
            Self::Xgboost => "xgboost's save_model",
            Self::Lightgbm => "lightgbm's save_model",
            Self::Catboost => "catboost's save_model",
            Self::Keras | Self::SavedModel | Self::Tflite => "tf2onnx",
            Self::Torchscript | Self::TorchExport => "torch.onnx",
        }
    }

    /// Further arguments of the command that the user has to fill in.
    pub(crate) const fn placeholder(self) -> &'static str {
        if matches!(self, Self::Torchscript) { " --sample data.npy" } else { "" }
    }

    /// Packages beyond those that load the model.
    pub fn requirements(self, model: &Recognised) -> Requirements {
        let loading = match &model.route {
            Route::Python { requirements, .. } => requirements.clone(),
            _ => Requirements { packages: Vec::new(), python: 10..=13 },
        };
        match self {
            Self::Sklearn => {
                let with_boosters =
                    loading.packages.iter().any(|p| p.starts_with("xgboost") || p.starts_with("lightgbm"));
                // skl2onnx 1.20 writes booleans where protobuf 7 takes integers only.
                let tools = ["skl2onnx", "onnx", "protobuf<7", "onnxmltools"];
                loading.with(tools.get(..if with_boosters { 4 } else { 3 }).unwrap_or_default())
            }
            Self::Xgboost => {
                // Either name may be there.
                let known = loading.packages.iter().any(|p| p.starts_with("xgboost"));
                let loading = if known { loading } else { loading.with(&[crate::packages::XGBOOST]) };
                loading.with(&["numpy"])
            }
            Self::Lightgbm => loading.with(&["lightgbm", "numpy"]),
            Self::Catboost => loading.with(&["catboost", "numpy"]),
            Self::Keras | Self::SavedModel | Self::Tflite => {
                loading.with(&[crate::formats::TENSORFLOW, "tf2onnx", "onnx"])
            }
            Self::Torchscript => loading.with(&["torch", "onnx"]),
            Self::TorchExport => loading.with(&["torch", "onnx", "onnxscript"]),
        }
    }
}

/// Inputs, and what the model's own library answers to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub inputs: Vec<Tensor>,
    pub expected: Vec<Tensor>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    pub tool: String,
    pub note: Option<String>,
    pub sample: Sample,
}

#[derive(Deserialize)]
struct Line {
    gantry: Outcome,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    tool: String,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    inputs: Vec<message::TensorHeader>,
    expected: Vec<message::TensorHeader>,
}

/// Writes the converted model to `out`. Executes the code of the model. Blocking.
pub fn convert(
    environment: &Environment,
    model: &Recognised,
    converter: Converter,
    sample: Option<&Path>,
    out: &Path,
    limit: Duration,
) -> Result<Converted, String> {
    let directory = tempfile::Builder::new()
        .prefix("gantry-convert-")
        .tempdir()
        .map_err(|e| format!("no temporary directory: {e}"))?;
    let data = directory.path().join("data");
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let task = json!({
        "converter": converter.name(),
        "file": absolute(&model.file),
        "import_path": model.import_path().as_deref().map(absolute),
        "out": absolute(out),
        "data": data,
        "sample": sample.map(absolute),
    });
    let mut command = Command::new(environment.python());
    command
        .args(["-I", "-B", "-c", PROGRAM, &task.to_string()])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .env("HOME", directory.path())
        .env("TMPDIR", directory.path())
        .env("TF_CPP_MIN_LOG_LEVEL", "2")
        .current_dir(directory.path());
    let mut outcome = None;
    let ran = process::run(command, &process::Limits::within(limit), &mut |line| {
        if let Ok(Line { gantry }) = serde_json::from_str(line) {
            outcome = Some(gantry);
        }
    });
    match (ran, outcome) {
        (Ok(()), Some(Outcome { error: None, tool, note })) => {
            let sample = read(&data).map_err(|e| format!("its predictions cannot be read: {e}"))?;
            Ok(Converted { tool, note, sample })
        }
        (_, Some(Outcome { error: Some(error), .. })) => Err(error),
        (Ok(()), None) => Err("the converter ended without a result".into()),
        (Err(failed), _) => {
            let last = failed.last_lines.iter().rev().find(|line| !line.is_empty());
            Err(format!("{}{}", failed.reason, last.map(|line| format!(": {line}")).unwrap_or_default()))
        }
    }
}

fn read(path: &Path) -> io::Result<Sample> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_DATA).read_to_end(&mut bytes)?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> io::Result<Sample> {
    let short = || message::malformed("it is cut short");
    let (prefix, rest) = bytes.split_first_chunk::<{ message::PREFIX }>().ok_or_else(short)?;
    let (header, _) = message::lengths(*prefix);
    let (header, body) = rest.split_at_checked(header as usize).ok_or_else(short)?;
    let Header { mut inputs, expected } = serde_json::from_slice(header)?;
    let count = inputs.len();
    inputs.extend(expected);
    let mut tensors = message::decode(inputs, body)?;
    let expected = tensors.split_off(count.min(tensors.len()));
    Ok(Sample { inputs: tensors, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_samples_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn boosters_in_pipelines_need_further_converters() {
        let model = |packages: &[&str]| Recognised {
            file: "m.pkl".into(),
            description: String::new(),
            runs_code: true,
            route: Route::Python { loader: crate::Loader::Pickle, requirements: Requirements::new(packages) },
            converter: None,
        };
        let packages = |of: &[&str]| Converter::Sklearn.requirements(&model(of)).packages;
        assert_eq!(
            packages(&["scikit-learn==1.7.2"]),
            ["scikit-learn==1.7.2", "skl2onnx", "onnx", "protobuf<7"]
        );
        assert_eq!(
            packages(&["scikit-learn", "xgboost"]),
            ["scikit-learn", "xgboost", "skl2onnx", "onnx", "protobuf<7", "onnxmltools"]
        );
    }
}
