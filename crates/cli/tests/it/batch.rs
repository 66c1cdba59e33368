//! `infer --input`: predictions for the rows of a file.

use crate::harness::{RunResult, command, finish};
use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing};
use serde_json::{Value, json};
use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
};
use tokio::runtime::Runtime;

/// Rows of each request, and what the gateway does next.
#[derive(Default)]
struct Calls {
    rows: Vec<usize>,
    /// Requests to refuse with 503 first.
    refuse: usize,
    /// The model is gone after this number of requests.
    gone_after: Option<usize>,
}

/// A gateway with `sum`: `total` is a + b of the input X, and `pair` repeats both. A row with 13 is invalid.
struct Gateway {
    _runtime: Runtime,
    address: String,
    calls: Arc<Mutex<Calls>>,
    directory: tempfile::TempDir,
}

impl Gateway {
    fn start(calls: Calls) -> Self {
        let calls = Arc::new(Mutex::new(calls));
        let app = Router::new()
            .route("/v2/models/sum", routing::get(metadata))
            .route("/v2/models/sum/infer", routing::post(infer))
            .with_state(calls.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(any)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { _runtime: runtime, address, calls, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs `gantry infer sum --input INPUT --output OUTPUT …` in the directory.
    fn run(&self, input: &str, output: &str, more: &[&str]) -> RunResult {
        let mut command = command(&["infer", "sum", "--input", input, "--output", output]);
        finish(command.args(more).env("SELDON_INFER_HOST", &self.address).current_dir(self.directory.path()))
    }

    fn rows(&self) -> Vec<usize> {
        self.calls.lock().unwrap().rows.clone()
    }
}

async fn metadata() -> Json<Value> {
    Json(json!({
        "name": "sum", "platform": "test",
        "inputs": [{"name": "X", "datatype": "FP64", "shape": [-1, 2]}],
        "outputs": [
            {"name": "total", "datatype": "FP64", "shape": [-1]},
            {"name": "pair", "datatype": "FP64", "shape": [-1, 2]},
        ],
    }))
}

async fn infer(
    State(calls): State<Arc<Mutex<Calls>>>,
    Json(request): Json<Value>,
) -> axum::response::Response {
    let error = |status: StatusCode, text: &str| (status, Json(json!({ "error": text }))).into_response();
    let input = &request["inputs"][0];
    let rows = usize::try_from(input["shape"][0].as_u64().unwrap()).unwrap();
    let data: Vec<f64> = input["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!(data.len(), rows * 2);
    let mut calls = calls.lock().unwrap();
    if calls.refuse > 0 {
        calls.refuse -= 1;
        return error(StatusCode::SERVICE_UNAVAILABLE, "overloaded");
    }
    if calls.gone_after.is_some_and(|n| calls.rows.len() >= n) {
        return error(StatusCode::NOT_FOUND, "model sum not found");
    }
    calls.rows.push(rows);
    if data.contains(&13.0) {
        return error(StatusCode::BAD_REQUEST, "13 is not\nallowed");
    }
    let totals: Vec<f64> = data.chunks(2).map(|row| row.iter().sum()).collect();
    Json(json!({"model_name": "sum", "outputs": [
        {"name": "total", "datatype": "FP64", "shape": [rows], "data": totals},
        {"name": "pair", "datatype": "FP64", "shape": [rows, 2], "data": data},
    ]}))
    .into_response()
}

#[test]
fn csv_rows_get_predictions_in_order() {
    let gateway = Gateway::start(Calls { refuse: 2, ..Calls::default() });
    let rows: Vec<String> = (1..=100).map(|n| format!("{},0.5\n", n + 100)).collect();
    gateway.write("in.csv", &format!("a,b\n{}", rows.concat()));
    let result = gateway.run("in.csv", "out.csv", &["--batch-size", "7", "--concurrency", "4"]);
    assert_eq!(result.code, 0, "{result:?}");
    let expected: Vec<String> = (1..=100).map(|n| format!("{n},{0}.5,{0}.0,0.5,\n", n + 100)).collect();
    assert_eq!(gateway.read("out.csv"), format!("row,total,pair_0,pair_1,error\n{}", expected.concat()));
    assert!(result.stderr.starts_with("100 rows in "), "{}", result.stderr);
    assert_eq!(gateway.rows().iter().sum::<usize>(), 100);
}

#[test]
fn invalid_rows_fail_alone() {
    let gateway = Gateway::start(Calls::default());
    gateway.write("in.csv", "a,b\n1,1\n13,1\nx,1\n,1\n1\n2,2\n");
    let result = gateway.run("in.csv", "out.csv", &[]);
    assert_eq!(result.code, 1, "{result:?}");
    assert!(
        result.stderr.ends_with("Failed rows: 2, 3, 4, 5; the field error has the reason of each.\n"),
        "{}",
        result.stderr
    );
    assert_eq!(
        gateway.read("out.csv"),
        "row,total,pair_0,pair_1,error\n\
         1,2.0,1.0,1.0,\n\
         2,,,,400: 13 is not allowed\n\
         3,,,,\"column a: \"\"x\"\" is not a finite number\"\n\
         4,,,,\"column a: is empty, expected a finite number\"\n\
         5,,,,\"the row has 1 fields, the header has 2\"\n\
         6,4.0,2.0,2.0,\n"
    );
    // Three valid rows together, then each alone.
    assert_eq!(gateway.rows(), [3, 1, 1, 1]);
}

#[test]
fn resume_continues_after_the_last_complete_line() {
    let complete =
        "row,total,pair_0,pair_1,error\n1,2.0,1.0,1.0,\n2,4.0,2.0,2.0,\n3,6.0,3.0,3.0,\n4,8.0,4.0,4.0,\n";
    for length in 0..=complete.len() {
        let gateway = Gateway::start(Calls::default());
        gateway.write("in.csv", "a,b\n1,1\n2,2\n3,3\n4,4\n");
        gateway.write("out.csv", &complete[..length]);
        let result = gateway.run("in.csv", "out.csv", &["--resume"]);
        assert_eq!(result.code, 0, "{length}: {result:?}");
        assert_eq!(gateway.read("out.csv"), complete, "{length}");
        let before = complete[..length].matches('\n').count().saturating_sub(1);
        assert_eq!(gateway.rows().iter().sum::<usize>(), 4 - before, "{length}");
    }
}

#[test]
fn rows_before_a_lost_model_are_kept_for_resume() {
    let gateway = Gateway::start(Calls { gone_after: Some(2), ..Calls::default() });
    gateway.write("in.ndjson", "[1,1]\n\n[2,2]\n[3,3]\n");
    let result = gateway.run("in.ndjson", "out.ndjson", &["--batch-size", "1"]);
    assert_eq!(result.code, 3, "{result:?}");
    assert!(result.stderr.contains("2 rows are in out.ndjson; continue with --resume."), "{}", result.stderr);
    gateway.calls.lock().unwrap().gone_after = None;
    let result = gateway.run("in.ndjson", "out.ndjson", &["--batch-size", "1", "--resume"]);
    assert_eq!(result.code, 0, "{result:?}");
    let lines: Vec<Value> =
        gateway.read("out.ndjson").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[2], json!({"row": 3, "outputs": {"total": 6.0, "pair": [3.0, 3.0]}}));
    assert_eq!(lines.len(), 3);
}

#[test]
fn ndjson_fields_are_named_by_columns() {
    let gateway = Gateway::start(Calls::default());
    gateway.write("in.ndjson", "{\"b\":2,\"a\":1}\n{\"X\":[3,4]}\n{\"b\":null,\"a\":1}\n");
    let result = gateway.run("in.ndjson", "out.csv", &["--columns", "b,a"]);
    assert_eq!(result.code, 1, "{result:?}");
    let lines: Vec<String> = gateway.read("out.csv").lines().map(str::to_owned).collect();
    assert_eq!(lines[1], "1,3.0,2.0,1.0,");
    assert_eq!(lines[2], "2,,,,field b is missing");
    assert!(lines[3].contains("got null"), "{}", lines[3]);
}

#[test]
fn invalid_batches_are_refused_before_a_request() {
    let gateway = Gateway::start(Calls::default());
    gateway.write("in.csv", "a,b\n1,1\n");
    gateway.write("wide.csv", "id,a,b\n7,1,1\n");
    gateway.write("twice.csv", "a,a\n1,1\n");
    gateway.write("there.csv", "row\n");
    gateway.write("in.parquet", "PAR1");
    for (input, output, more, message) in [
        (
            "in.csv",
            "there.csv",
            &[][..],
            "there.csv exists: remove it, choose another --output, or continue it with --resume",
        ),
        (
            "in.csv",
            "there.csv",
            &["--resume"],
            "there.csv is not an output of this model: choose another --output",
        ),
        ("in.csv", "json", &[], "--input needs a file for the predictions: --output predictions.csv"),
        ("in.csv", "out.txt", &[], "out.txt: unknown file format: use the suffix .csv, .ndjson or .jsonl"),
        ("in.parquet", "out.csv", &[], "in.parquet: Parquet files are not supported: save the data as CSV"),
        ("none.csv", "out.csv", &[], "none.csv: No such file or directory"),
        ("wide.csv", "out.csv", &[], "input X needs 2 columns, the file has 3: choose them with --columns"),
        ("twice.csv", "out.csv", &[], "the column a is there twice: column names are unique"),
        ("in.csv", "out.csv", &["--columns", "a,B"], "--columns: the file has no column B. Did you mean b?"),
    ] {
        let result = gateway.run(input, output, more);
        assert_eq!(result.code, 2, "{input} {output}: {result:?}");
        assert!(result.stderr.contains(message), "{input} {output}: {}", result.stderr);
    }
    assert_eq!(gateway.rows(), [0usize; 0]);
    let result = gateway.run("wide.csv", "out.csv", &["--columns", "a,b"]);
    assert_eq!(result.code, 0, "{result:?}");
}
