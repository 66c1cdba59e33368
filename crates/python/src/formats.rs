//! Model files by their first bytes.

use crate::{
    Converter, Loader, Native, Recognised, Requirements, Route,
    packages::{self, Unloadable},
    pickle, zip_model,
};
use std::{
    fs::File,
    io::{BufReader, Read as _},
    path::Path,
};

const HEAD: u64 = 4096;
/// Limit of the JSON at the start of a safetensors file.
const MAX_SAFETENSORS_HEADER: u64 = 100 << 20;

/// tensorflow without the packages for GPUs, where a wheel of it exists.
pub(crate) const TENSORFLOW: &str =
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) { "tensorflow-cpu" } else { "tensorflow" };

const ARCHITECTURE_MISSING: &str = "holds weights without the code of the network. Export it where the code is: \
     torch.onnx.export(model, (example,), \"model.onnx\")";

/// A file; `None` when it is none of a model.
pub(crate) fn file(path: &Path) -> Option<Recognised> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let refused = |description: &str, reason: &str| Some(Recognised::refused(path, description, reason));
    match head.as_slice() {
        // The magic number of PyTorch before 1.6.
        [0x80, 2, 0x8a, 0x0a, 0x6c, 0xfc, ..] => {
            return refused(
                "PyTorch file of a version before 1.6",
                "load it in PyTorch and export it: torch.onnx.export(model, (example,), \"model.onnx\")",
            );
        }
        [0x80, 2..=5, ..] => return Some(pickled(path, ending, None)),
        [b'P', b'K', 3, 4, ..] => return zip_model::recognise(path),
        [b'G', b'G', b'U', b'F', ..] => {
            return refused(
                "GGUF language model",
                "Gantry does not run language models; serve it with llama.cpp: llama-server -m FILE",
            );
        }
        [b'C', b'B', b'M', b'1', ..] => {
            return Some(Recognised {
                file: path.to_owned(),
                description: "CatBoost model".into(),
                runs_code: false,
                route: Route::Python {
                    loader: Loader::Catboost,
                    requirements: Requirements::new(&["catboost", "pandas"]),
                },
                converter: Some(Converter::Catboost),
            });
        }
        [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n', ..]
            if matches!(ending, "h5" | "hdf5" | "keras") =>
        {
            return Some(keras(path, keras_version_of_hdf5(path).as_deref()));
        }
        [_, _, _, _, b'T', b'F', b'L', b'3', ..] => {
            return Some(Recognised {
                converter: Some(Converter::Tflite),
                ..Recognised::refused(
                    path,
                    "TensorFlow Lite model",
                    "the built-in runtime serves it as ONNX.",
                )
            });
        }
        [_, _, _, _, b'O', b'R', b'T', b'M', ..] => {
            return refused("ONNX Runtime's own format", "serve the .onnx file that it was made from");
        }
        [b'b', b'i', b'n', b'f', ..] | [b'b', b's', b'6', b'4', ..] => return Some(old_xgboost(path)),
        _ => {}
    }
    if let Some(native) = native(&head, ending) {
        let description = match native {
            Native::Onnx => "ONNX",
            Native::Xgboost => "XGBoost",
            Native::Lightgbm => "LightGBM",
        };
        return Some(Recognised::builtin(path, native, description));
    }
    if let Some(tensors) = safetensors(path, &head, ending) {
        return refused(&format!("safetensors, {tensors}"), ARCHITECTURE_MISSING);
    }
    let text = String::from_utf8_lossy(&head);
    match ending {
        "pkl" | "pickle" | "joblib" | "sav" | "gz" | "z" | "bz2" | "xz" | "lzma" => {
            compressed(path, &head, ending)
        }
        "bst" | "deprecated" => Some(old_xgboost(path)),
        "pmml" => refused(
            "PMML",
            "Gantry does not read it: save the model of its library, and convert that to ONNX",
        ),
        "xml" if text.contains("<PMML") => refused(
            "PMML",
            "Gantry does not read it: save the model of its library, and convert that to ONNX",
        ),
        "xml" if text.contains("<net ") => refused("OpenVINO", "serve the ONNX model that it was made from"),
        "pt" | "pth" | "ckpt" | "t7" => refused("PyTorch file of an unknown form", ARCHITECTURE_MISSING),
        "pdmodel" => {
            refused("PaddlePaddle", "convert it: paddle2onnx --model_filename FILE --save_file model.onnx")
        }
        "mlmodel" | "mlpackage" => refused("Core ML", "export the model of its library to ONNX instead"),
        "engine" | "plan" => {
            refused("TensorRT engine", "serve the ONNX model that it was built from, or run Triton")
        }
        "mojo" => refused("H2O", "Gantry does not read it: train with a library that exports ONNX"),
        "rds" | "rdata" => {
            refused("R", "Gantry does not read it: export to ONNX, PMML has no runtime here either")
        }
        "cbm" => refused("file called .cbm", "it is no CatBoost model, or it is damaged"),
        "tflite" => refused("file called .tflite", "it is no TensorFlow Lite model, or it is damaged"),
        "gguf" => refused("file called .gguf", "it is no GGUF model, or it is damaged"),
        "safetensors" => refused("file called .safetensors", "its header cannot be read: it is damaged"),
        "keras" | "h5" | "hdf5" => {
            refused("file called .keras or .h5", "it is no Keras model, or it is damaged")
        }
        "skops" | "pt2" => refused("file without a zip archive in it", "it is damaged"),
        _ => None,
    }
}

/// Formats of the built-in runtime.
fn native(head: &[u8], ending: &str) -> Option<Native> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let start = text.get(..text.len().min(256)).unwrap_or_default();
    let has_learner = start.windows(7).any(|word| word == b"learner");
    if ending == "onnx" {
        return Some(Native::Onnx);
    }
    if text.starts_with(b"{") && has_learner {
        return Some(Native::Xgboost);
    }
    if text.starts_with(b"tree\n") || text.starts_with(b"tree\r\n") {
        return Some(Native::Lightgbm);
    }
    None
}

/// A pickle, of which `inner` is a stream when it is not the file itself.
pub(crate) fn pickled(path: &Path, ending: &str, inner: Option<pickle::PickleScan>) -> Recognised {
    let scanned = match inner {
        Some(scan) => Ok(scan),
        None => File::open(path).and_then(|file| pickle::scan(BufReader::new(file))),
    };
    let kind = if ending == "joblib" { "joblib file" } else { "pickle" };
    let scan = match scanned {
        Ok(scan) => scan,
        Err(error) => return Recognised::refused(path, kind, format!("cannot be read: {error}")),
    };
    let packages = scan.packages();
    let library = |module: &str| packages.contains(&module);
    let root = scan.root().map(|class| format!(" ({class})")).unwrap_or_default();
    let description = match &scan.sklearn {
        Some(version) => format!("scikit-learn {version} {kind}{root}"),
        None if library("sklearn") => format!("scikit-learn {kind}{root}"),
        None if library("xgboost") => format!("XGBoost {kind}{root}"),
        None if library("lightgbm") => format!("LightGBM {kind}{root}"),
        None if library("catboost") => format!("CatBoost {kind}{root}"),
        None => format!("Python {kind}{root}"),
    };
    let folder = own_folder(path);
    let local = |module: &str| {
        folder.is_some_and(|folder| {
            folder.join(format!("{module}.py")).is_file() || folder.join(module).join("__init__.py").is_file()
        })
    };
    let known = ["sklearn", "xgboost", "lightgbm", "catboost", "imblearn", "statsmodels", "torch", "keras"];
    if !known.iter().any(|module| library(module)) && !packages.iter().any(|module| local(module)) {
        let only = if packages.is_empty() { "no classes".to_owned() } else { packages.join(", ") };
        return Recognised::refused(
            path,
            description,
            format!("it holds no model of a known library ({only}): save the trained model itself"),
        );
    }
    let requirements = match packages::of_pickle(&scan, local) {
        Ok(requirements) => requirements,
        Err(Unloadable::Suspicious(name)) => {
            return Recognised::refused(
                path,
                description,
                format!("loading it calls {name}, which a model has no use for: it is not loaded"),
            );
        }
        Err(Unloadable::UnknownModule(class)) => {
            let top = class.split('.').next().unwrap_or_default();
            return Recognised::refused(
                path,
                description,
                format!(
                    "it needs {class}, which no known package contains: put {top}.py beside it in a folder of its own, as \
                     NAME/model.pkl, or use classes of libraries only"
                ),
            );
        }
    };
    let with_file = beside(path, requirements);
    let converter = if library("sklearn") || library("imblearn") {
        let is_search = packages.contains(&"xgboost") || packages.contains(&"lightgbm");
        // Pure models of these libraries inherit from classes of scikit-learn.
        match scan.root() {
            Some(root) if is_search && root.starts_with("XGB") => Some(Converter::Xgboost),
            Some(root) if is_search && root.starts_with("LGBM") => Some(Converter::Lightgbm),
            _ => Some(Converter::Sklearn),
        }
    } else if library("xgboost") {
        Some(Converter::Xgboost)
    } else if library("lightgbm") {
        Some(Converter::Lightgbm)
    } else if library("catboost") {
        Some(Converter::Catboost)
    } else {
        None
    };
    Recognised {
        file: path.to_owned(),
        description,
        runs_code: true,
        route: Route::Python { loader: Loader::Pickle, requirements: with_file },
        converter,
    }
}

/// The folder of a file called `model`: its other files belong to the model.
pub(crate) fn own_folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|_| path.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case("model")))
}

/// Adds the `requirements.txt` beside a model in a folder of its own.
fn beside(path: &Path, mut requirements: Requirements) -> Requirements {
    let text = own_folder(path).map(|folder| folder.join("requirements.txt")).filter(|file| file.is_file());
    let Some(text) = text.and_then(|file| read_small(&file)) else { return requirements };
    // The versions of the file come first.
    let mut merged = Requirements { packages: packages::lines(&text), python: requirements.python.clone() };
    for package in std::mem::take(&mut requirements.packages) {
        merged.add(&package);
    }
    merged
}

/// Text of up to a megabyte.
pub(crate) fn read_small(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(1 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}

/// joblib compresses with zlib, gzip, bz2, xz or lzma.
fn compressed(path: &Path, head: &[u8], ending: &str) -> Option<Recognised> {
    match head {
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] | [0x1f, 0x8b, ..] => {
            let found = pickled(path, "joblib", None);
            // Any archive is compressed; only one with classes in it is a model.
            (!matches!(ending, "gz" | "z") || matches!(found.route, Route::Python { .. })).then_some(found)
        }
        [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', ..] | [0x5d, 0, 0, ..] | [4, 0x22, 0x4d, 0x18, ..]
            if matches!(ending, "pkl" | "pickle" | "joblib" | "sav") =>
        {
            Some(Recognised::refused(
                path,
                "joblib file, compressed by bz2, xz or lz4",
                "its library version cannot be read: save it with joblib.dump(model, path) or compress=(\"zlib\", 3)",
            ))
        }
        // Protocols 0 and 1 are text.
        [b'c' | b'(' | b'}' | b']', ..] if matches!(ending, "pkl" | "pickle" | "sav" | "joblib") => {
            Some(pickled(path, ending, None))
        }
        _ if matches!(ending, "pkl" | "pickle" | "joblib") => Some(Recognised::refused(
            path,
            format!("file called .{ending}"),
            "it is no pickle, or it is damaged: save it again with joblib.dump(model, path)",
        )),
        _ => None,
    }
}

fn old_xgboost(path: &Path) -> Recognised {
    Recognised {
        file: path.to_owned(),
        description: "XGBoost model in the deprecated binary format".into(),
        runs_code: false,
        // Later versions do not read it.
        route: Route::Python {
            loader: Loader::Xgboost,
            requirements: Requirements { packages: vec!["xgboost<3".into()], python: 8..=13 },
        },
        converter: Some(Converter::Xgboost),
    }
}

pub(crate) fn keras(path: &Path, version: Option<&str>) -> Recognised {
    let version = version.filter(|version| pickle::is_version(version));
    let packages = match version {
        Some(version) if version.starts_with("2.") => vec![format!("{TENSORFLOW}=={version}")],
        Some(version) => vec![format!("keras=={version}"), TENSORFLOW.to_owned()],
        None => vec!["keras".into(), TENSORFLOW.to_owned()],
    };
    let python = if version.is_some_and(|v| v.starts_with("2.")) { 9..=11 } else { 10..=13 };
    Recognised {
        file: path.to_owned(),
        description: version.map_or_else(|| "Keras model".into(), |v| format!("Keras {v} model")),
        // Lambda layers contain bytecode.
        runs_code: false,
        route: Route::Python { loader: Loader::Keras, requirements: Requirements { packages, python } },
        converter: Some(Converter::Keras),
    }
}

/// The attribute of the file, looked for by its name.
fn keras_version_of_hdf5(path: &Path) -> Option<String> {
    const LIMIT: u64 = 4 << 20;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LIMIT).read_to_end(&mut bytes).ok()?;
    let name = b"keras_version";
    let at = bytes.windows(name.len()).position(|window| window == name)?;
    let after = bytes.get(at + name.len()..)?;
    let after = after.get(..after.len().min(256))?;
    let text = after.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { ' ' }).collect::<String>();
    text.split_whitespace()
        .find(|word| word.matches('.').count() >= 2 && word.chars().all(|c| c.is_ascii_digit() || c == '.'))
        .map(str::to_owned)
}

/// The number of tensors, if the header is one of safetensors.
fn safetensors(path: &Path, head: &[u8], ending: &str) -> Option<String> {
    let (length, rest) = head.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(*length);
    if ending != "safetensors" || rest.first() != Some(&b'{') || length > MAX_SAFETENSORS_HEADER {
        return None;
    }
    let mut header = Vec::new();
    let mut file = File::open(path).ok()?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(8)).ok()?;
    file.take(length).read_to_end(&mut header).ok()?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&header).ok()?;
    let tensors = header.keys().filter(|name| *name != "__metadata__").count();
    Some(format!("{tensors} tensors"))
}

/// A folder with `saved_model.pb`.
pub(crate) fn saved_model(path: &Path) -> Recognised {
    Recognised {
        file: path.to_owned(),
        description: "TensorFlow SavedModel".into(),
        runs_code: false,
        route: Route::Python {
            loader: Loader::SavedModel,
            requirements: Requirements { packages: vec![TENSORFLOW.into()], python: 10..=13 },
        },
        converter: Some(Converter::SavedModel),
    }
}

/// A folder with the weights and the configuration of a transformer.
pub(crate) fn huggingface(path: &Path) -> Option<Recognised> {
    let config = read_small(&path.join("config.json"))?;
    let config: serde_json::Value = serde_json::from_str(&config).ok()?;
    let kind = config.get("model_type")?.as_str()?;
    let weights = ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "tf_model.h5"];
    if !weights.iter().any(|file| path.join(file).is_file()) || path.join("model.onnx").is_file() {
        return None;
    }
    let kind: String =
        kind.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).take(40).collect();
    Some(Recognised::refused(
        path,
        format!("Hugging Face model ({kind})"),
        format!(
            "export it to ONNX: pip install 'optimum[onnxruntime]' && optimum-cli export onnx --model {} onnx/",
            path.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recognised(name: &str, content: &[u8]) -> Option<Recognised> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        file(&path)
    }

    #[test]
    fn files_are_recognised_by_their_content() {
        for (name, content, expected) in [
            ("a.model", &b"{\"learner\":{}}"[..], "XGBoost"),
            ("noending", b"{L\0\0\0\0\0\0\0\x07learner", "XGBoost"),
            ("b.dat", b"tree\nversion=v4\n", "LightGBM"),
            ("c.onnx", b"x", "ONNX"),
            ("d.gguf", b"GGUF\x03\0\0\0", "GGUF language model: Gantry does not run"),
            ("e.cbm", b"CBM1\0\0\0\0", "CatBoost model: needs Python."),
            (
                "f.tflite",
                b"\x1c\0\0\0TFL3\0\0",
                "TensorFlow Lite model: the built-in runtime serves it as ONNX.",
            ),
            (
                "g.safetensors",
                b"\x0e\0\0\0\0\0\0\0{\"w\": {\"a\":1}}",
                "safetensors, 1 tensors: holds weights without",
            ),
            ("h.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{", "file called .safetensors: its header"),
            ("i.bst", b"binf\0\0", "deprecated binary format: needs Python."),
            ("j.pkl", b"no pickle", "file called .pkl: it is no pickle"),
            ("k.joblib", b"BZh91AY", "compressed by bz2, xz or lz4: its library version"),
            ("l.pkl", b"\x80\x04}.", "Python pickle: it holds no model of a known library (no classes)"),
            (
                "m.pkl",
                b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.",
                "it holds no model of a known library (posix)",
            ),
            ("n.pkl", b"\x80\x02csklearn.svm\nSVC\ncposix\nsystem\n.", "loading it calls posix.system"),
            (
                "o.pkl",
                b"\x80\x02csklearn.svm\nSVC\ncpricing\nRatio\n.",
                "it needs pricing.Ratio, which no known package",
            ),
            ("p.h5", b"\x89HDF\r\n\x1a\n keras_version\0\x13 3.9.2 ", "Keras 3.9.2 model: needs Python."),
        ] {
            let found = recognised(name, content).unwrap_or_else(|| panic!("{name}"));
            assert!(found.reason().contains(expected), "{name}: {}", found.reason());
        }
        for (name, content) in [
            ("train.py", &b"import x"[..]),
            ("data.csv", b"a,b"),
            ("readme.md", b"#"),
            ("a.json", b"{}"),
            ("x.gz", b"\x1f\x8b\x08"),
        ] {
            assert_eq!(recognised(name, content), None, "{name}");
        }
    }

    #[test]
    fn requirements_beside_a_model_take_precedence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.pkl");
        std::fs::write(&path, b"\x80\x02csklearn.svm\nSVC\ncpricing\nRatio\n.").unwrap();
        std::fs::write(dir.path().join("requirements.txt"), "scikit-learn==1.5.0\n").unwrap();
        std::fs::write(dir.path().join("pricing.py"), "").unwrap();
        let Some(Recognised { route: Route::Python { requirements, .. }, .. }) = file(&path) else {
            panic!()
        };
        assert_eq!(requirements.packages, ["scikit-learn==1.5.0", "joblib"]);
    }
}
