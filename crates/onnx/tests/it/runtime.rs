//! ONNX Runtime: absent, broken, and (when `GANTRY_TEST_ORT_DYLIB` names its library) present.
//!
//! A process can load the library only once, so each case runs this test binary in a new process.

use crate::support::{cases, data};
use gantry_onnx::{Engine, EngineChoice, Options, Session};
use gantry_tensor::Elements;
use std::path::Path;
use std::process::Command;

/// Runs one ignored test of this binary with `ORT_DYLIB_PATH` set, and gives back what it printed.
fn inner(test: &str, library: Option<&Path>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", &format!("runtime::{test}")]);
    match library {
        Some(path) => command.env("ORT_DYLIB_PATH", path),
        None => command.env_remove("ORT_DYLIB_PATH"),
    };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    text
}

#[test]
fn missing_library_falls_back_to_built_in_engines() {
    let text = inner("inner_why", None);
    assert!(
        text.contains("why: the built-in evaluator has every operator of the model; ORT_DYLIB_PATH is not set and no ONNX Runtime library is beside the executable"),
        "{text}"
    );
}

#[test]
fn invalid_library_path_falls_back_to_built_in_engines() {
    let text = inner("inner_why", Some(Path::new("/nowhere/libonnxruntime.so")));
    assert!(text.contains("no ONNX Runtime library at /nowhere/libonnxruntime.so"), "{text}");
    let directory = tempfile::tempdir().unwrap();
    let fake = directory.path().join("libonnxruntime.so");
    std::fs::write(&fake, b"no library at all").unwrap();
    let text = inner("inner_why", Some(&fake));
    assert!(text.contains("is not usable"), "{text}");
}

#[test]
fn onnx_runtime_is_used_when_present() {
    let Some(library) = std::env::var_os("GANTRY_TEST_ORT_DYLIB") else {
        println!("SKIPPED: set GANTRY_TEST_ORT_DYLIB to the path of libonnxruntime.so to run this test");
        return;
    };
    let text = inner("inner_golden", Some(Path::new(&library)));
    assert!(text.contains("models through ONNX Runtime"), "{text}");
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn inner_why() {
    let session = Session::load(data("sklearn").join("logistic.onnx"), &Options::default()).unwrap();
    assert_eq!(*session.engine(), Engine::Native);
    println!("why: {}", session.why());
    let asked = Options { engine: EngineChoice::OnnxRuntime, ..Options::default() };
    assert!(Session::load(data("sklearn").join("logistic.onnx"), &asked).is_err());
}

#[test]
#[ignore = "run by the tests above, in a process of its own"]
fn inner_golden() {
    let mut count = 0;
    for folder in ["sklearn", "nets"] {
        for case in cases(folder) {
            let session = Session::load(&case.model, &Options::default())
                .unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let Engine::OnnxRuntime { version } = session.engine() else {
                panic!("{} is served by {}: {}", case.name, session.engine(), session.why());
            };
            assert!(version.starts_with("1."), "{version}");
            assert!(session.why().starts_with("ONNX Runtime 1."), "{}", session.why());
            let names: Vec<&str> = case.outputs.iter().map(|o| o.tensor.name()).collect();
            let results = session.run(&case.inputs, &names).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            for (got, want) in results.iter().zip(&case.outputs) {
                assert_eq!(got.shape(), want.tensor.shape(), "{}", case.name);
                if let (Some(got), Some(floats)) = (got.elements().to_f64(), want.tensor.elements().to_f64())
                    && !matches!(want.tensor.elements(), Elements::Bytes(_))
                {
                    for (g, w) in got.iter().zip(floats.iter()) {
                        let off = (g - w).abs();
                        assert!(
                            g == w || off.is_nan() || off <= want.ort + 2e-6 * w.abs().max(1.0),
                            "{}: {g} {w}",
                            case.name
                        );
                    }
                } else {
                    assert_eq!(got.elements(), want.tensor.elements(), "{}", case.name);
                }
            }
            count += 1;
        }
    }
    println!("{count} models through ONNX Runtime");
}
