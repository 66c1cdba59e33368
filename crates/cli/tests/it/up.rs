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

/// Status and body of a POST.
fn post(address: &str, path: &str, body: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.get(9..12).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn graph_of_inference_services_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kserve");
    let up = up(&[&examples], &dir.path().join("state"));
    let output = up.output();
    let line = output.lines().find(|line| line.ends_with("   InferenceGraph")).expect("its URL is printed");
    let url = line.split_whitespace().nth(1).unwrap().strip_prefix("http://").unwrap();
    let (address, path) = url.split_at(url.find('/').unwrap());
    assert_eq!(path, "/serving/default/flowers");
    let (status, body) = post(address, path, "{\"instances\":[[5.1,3.5,1.4,0.2]]}");
    assert_eq!(status, 200, "{body}");
    let parts: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(parts["species"], parts["again"]);
    assert_eq!(parts["species"]["predictions"].as_array().map(Vec::len), Some(1), "{body}");
    assert_eq!(post(address, path, "{\"instances\":[[1]]}").0, 404);
}
