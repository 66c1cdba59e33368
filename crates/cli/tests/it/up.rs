//! What `gantry up` prints about its models at start.

use crate::roles::process::Process;
use std::path::Path;

fn up(paths: &[&Path], state: &Path) -> Process {
    let mut args =
        vec!["up".to_owned(), "--no-watch".into(), "--state-dir".into(), state.display().to_string()];
    args.extend(paths.iter().map(|p| p.display().to_string()));
    for port in ["--inference-port", "--admin-port", "--scheduler-port", "--agent-port"] {
        args.extend([port.to_owned(), "0".to_owned()]);
    }
    let up = Process::start(&args);
    up.wait_for_line("Ready in");
    up
}

/// The models reported as ready before the line `Ready`, and that line.
fn summary(up: &Process) -> (Vec<String>, String) {
    let output = up.output();
    let lines: Vec<&str> = output.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("Ready in")).unwrap();
    let ready = lines[..at].iter().filter(|line| line.contains("   ready   "));
    let mut ready: Vec<String> =
        ready.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    ready.sort();
    (ready, lines[at].to_owned())
}

#[test]
fn ready_is_printed_after_every_model_with_a_count() {
    let dir = tempfile::tempdir().unwrap();
    let (models, state) = (dir.path().join("models"), dir.path().join("state"));
    std::fs::create_dir(&models).unwrap();
    let iris = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris/model.onnx");
    for name in ["a", "b", "c"] {
        std::fs::copy(&iris, models.join(format!("{name}.onnx"))).unwrap();
    }
    std::fs::write(models.join("broken.onnx"), "no model").unwrap();

    let first = up(&[&models], &state);
    let (ready, line) = summary(&first);
    assert_eq!(ready, ["a", "b", "c"]);
    assert!(line.contains(" s: 3 of 4 models ready; not ready: broken. "), "{line}");
    let output = first.output();
    for name in ["a", "b", "c", "broken"] {
        let lines = output.lines().filter(|line| line.starts_with(&format!("  {name} ")));
        assert_eq!(lines.count(), 1, "{name} is printed once: {output}");
    }
    first.terminate();

    // The models of the last run, without a path.
    std::fs::remove_file(models.join("broken.onnx")).unwrap();
    let second = up(&[], &state);
    let (ready, line) = summary(&second);
    assert_eq!(ready, ["a", "b", "c"]);
    assert!(line.contains(": 3 of 4 models ready; not ready: broken."), "{line}");
    second.terminate();

    // Files that were removed in between.
    std::fs::remove_file(models.join("b.onnx")).unwrap();
    let third = up(&[&models], &state);
    let (ready, line) = summary(&third);
    assert_eq!(ready, ["a", "c"]);
    assert!(line.contains(": 2 of 2 models ready."), "{line}");
    let output = third.output();
    assert!(output.contains("model/b removed") && output.contains("model/broken removed"), "{output}");
}
