//! Models of Python libraries without Python: what is printed about them, and how `convert` refuses.

use crate::harness::gantry;

/// A pickle with the classes and the version of an estimator, as far as its bytes show them.
const PICKLE: &[u8] = b"\x80\x02csklearn.svm._classes\nSVC\nq\x00)\x81q\x01}q\x02(X\x10\0\0\0_sklearn_versionq\x03X\x05\0\0\x001.7.2q\x04ub.";

fn models(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

#[test]
fn directory_of_pickles_names_the_commands_that_make_them_servable() {
    let dir = models(&[("churn.pkl", PICKLE), ("weights.gguf", b"GGUF\x03\0\0\0")]);
    let shown = dir.path().display().to_string();
    let refused = gantry(&["up", &shown, "--state-dir", &format!("{shown}/state")]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for part in [
        "churn.pkl: scikit-learn 1.7.2 pickle (SVC): needs Python. A pickle runs code when it is loaded.",
        &format!("gantry convert {shown}/churn.pkl"),
        &format!("gantry up {shown} --allow-python"),
        "weights.gguf: GGUF language model: Gantry does not run language models",
        "Nothing was started.",
    ] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    assert!(!dir.path().join("state").exists());
}

#[test]
fn convert_refuses_what_it_cannot_convert_with_the_reason() {
    let dir = models(&[
        ("iris.ubj", b"{L\0\0\0\0\0\0\0\x07learner"),
        ("notes.md", b"#"),
        ("weights.gguf", b"GGUF\x03\0\0\0"),
        ("churn.pkl", PICKLE),
        ("churn.onnx", b""),
    ]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    for (name, code, expected) in [
        ("iris.ubj", 2, "is served as it is (XGBoost): gantry up "),
        ("notes.md", 2, "is no model that is known"),
        ("absent.pkl", 2, "absent.pkl does not exist"),
        ("weights.gguf", 2, "llama-server"),
        ("churn.pkl", 6, "churn.onnx exists: replace it with --force"),
    ] {
        let refused = gantry(&["convert", &path(name)]);
        assert_eq!(refused.code, code, "{name}: {refused:?}");
        assert!(refused.stderr.contains(expected), "{name}: {}", refused.stderr);
    }
    assert_eq!(gantry(&["convert"]).code, 2);
}

#[test]
fn missing_interpreter_fails_the_conversion_and_leaves_nothing() {
    let dir = models(&[("churn.pkl", PICKLE)]);
    let mut command =
        crate::harness::command(&["convert", &dir.path().join("churn.pkl").display().to_string()]);
    command.env("GANTRY_PYTHON", "/no/such/python").env("GANTRY_CACHE_DIR", dir.path().join("cache"));
    let failed = crate::harness::finish(&mut command);
    assert_eq!(failed.code, 4, "{failed:?}");
    assert!(failed.stderr.contains("needs Python 3.10 to 3.13 with venv"), "{}", failed.stderr);
    assert!(!dir.path().join("churn.onnx").exists());
}
