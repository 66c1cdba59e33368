//! `gantry runtime` with one model, as in a pod of an `InferenceService`.

use crate::harness::{command, gantry};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
};

const IRIS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/quickstart/iris");

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("{request}\r\nhost: {address}\r\nconnection: close\r\n").as_bytes()).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn directory_is_served_under_the_name_of_the_model() {
    let mut runtime = command(&["runtime", IRIS, "--model-name", "flowers", "--port", "0"]);
    let mut runtime = Killed(runtime.stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(runtime.0.stderr.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let rest = line.strip_prefix("serving on http://")?;
        rest.split(',').next().map(str::to_owned)
    });
    let address = address.expect("the runtime prints its address");
    let v1 = get(&address, "GET /v1/models/flowers HTTP/1.1");
    assert!(v1.starts_with("HTTP/1.1 200") && v1.contains(r#""ready":true"#), "{v1}");
    let v2 = get(&address, "GET /v2/models/flowers/ready HTTP/1.1");
    assert!(v2.starts_with("HTTP/1.1 200"), "{v2}");
    let unknown = get(&address, "GET /v2/models/iris/ready HTTP/1.1");
    assert!(!unknown.starts_with("HTTP/1.1 200"), "{unknown}");
}

#[test]
fn model_that_cannot_be_loaded_ends_the_runtime() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.onnx"), "not a model").unwrap();
    let path = directory.path().to_str().unwrap();
    let ended = gantry(&["runtime", path, "--model-name", "flowers", "--port", "0"]);
    assert_eq!(ended.code, 1, "{}", ended.transcript());
    assert!(ended.stderr.contains("flowers not loaded from"), "{}", ended.stderr);
}
