//! Cancelled runs and time limits of the built-in evaluator.

use crate::support::{Message, attribute, built_in, graph, initializer, ints, model, node, value_info};
use gantry_onnx::{Engine, Options, RunError, Session};
use gantry_tensor::{CancelToken, Elements, Tensor};
use std::time::{Duration, Instant};

fn x() -> Tensor {
    Tensor::new("x", [1, 4], Elements::Fp32(vec![1.0; 4])).unwrap()
}

fn int64s(name: &str, values: &[i64]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    initializer(name, 7, &[values.len() as i64], &raw)
}

/// A node that takes long; it reads `a`, and `w` where it has two inputs.
struct Long<'a> {
    op: &'a str,
    inputs: &'a [&'a str],
    attributes: &'a [Message],
}

const ONLY_EXPAND: Long<'_> = Long { op: "Identity", inputs: &["a"], attributes: &[] };

/// `x` grows to `dims`, goes through a node, and shrinks to a sum, many times.
fn long_run(dims: &[i64], long: &Long<'_>, constants: &[Message], rounds: usize) -> Vec<u8> {
    let mut nodes = Vec::new();
    let mut from = "x".to_owned();
    for round in 0..rounds {
        let value = |name: &str| if name == "w" { name.to_owned() } else { format!("{name}{round}") };
        let inputs: Vec<String> = long.inputs.iter().map(|i| value(i)).collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        nodes.push(node("ReduceSum", "", "one", &[&from], &[&value("one")]));
        nodes.push(node("Expand", "", "expand", &[&value("one"), "dims"], &[&value("a")]));
        let step = node(long.op, "", "long", &inputs, &[&value("b")]);
        nodes.push(long.attributes.iter().fold(step, |n, a| n.message(5, a)));
        nodes.push(node("ReduceSum", "", "sum", &[&value("b")], &[&value("sum")]));
        from = value("sum");
    }
    nodes.push(node("Add", "", "add", &["x", &from], &["y"]));
    let mut all = vec![int64s("dims", dims)];
    all.extend_from_slice(constants);
    model(&graph(&nodes, &all))
}

/// Runs that take minutes without optimisation, in one node or in many.
fn long_runs() -> Vec<(&'static str, Vec<u8>)> {
    let weights = |dims: &[i64]| {
        let count: i64 = dims.iter().product();
        [initializer("w", 1, dims, &vec![0; count as usize * 4])]
    };
    let many = |dims: &[i64], op: &str, attributes: &[Message]| {
        long_run(dims, &Long { op, inputs: &["a"], attributes }, &[], 2000)
    };
    let window = [ints("kernel_shape", &[512, 512]), ints("pads", &[256; 4])];
    let conv = Long { op: "Conv", inputs: &["a", "w"], attributes: &[] };
    let dense = Long { op: "MatMul", inputs: &["a", "w"], attributes: &[] };
    let square = Long { op: "MatMul", inputs: &["a", "a"], attributes: &[] };
    let axis = [attribute("axis", 2).int(3, 1)];
    let joined = Long { op: "Concat", inputs: &["a", "a"], attributes: &axis };
    vec![
        ("Expand and ReduceSum", long_run(&[4 << 20], &ONLY_EXPAND, &[], 2000)),
        ("Sin", many(&[4 << 20], "Sin", &[])),
        ("Transpose", many(&[2048, 2048], "Transpose", &[])),
        ("Softmax", many(&[2048, 2048], "Softmax", &[])),
        ("Cast", many(&[4 << 20], "Cast", &[attribute("to", 2).int(3, 7)])),
        ("MatMul by weights", long_run(&[60_000, 1024], &dense, &weights(&[1024, 1024]), 20)),
        ("MatMul", long_run(&[5000, 5000], &square, &[], 20)),
        ("Conv", long_run(&[1, 32, 1000, 1000], &conv, &weights(&[64, 32, 7, 7]), 20)),
        ("MaxPool", many(&[1, 1, 1024, 1024], "MaxPool", &window)),
        ("Concat", long_run(&[2048, 2048], &joined, &[], 2000)),
    ]
}

#[test]
fn cancelled_run_ends_in_every_long_operator() {
    for (name, bytes) in long_runs() {
        let session = Session::from_bytes(bytes, &built_in()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(*session.engine(), Engine::Native, "{name}");
        let deadline = Instant::now() + Duration::from_millis(100);
        let cancel = CancelToken::with_deadline(Some(deadline));
        assert_eq!(session.run_until(&[x()], &[], &cancel), Err(RunError::Cancelled), "{name}");
        println!("{name}: ended {:?} after its deadline", deadline.elapsed());
        assert!(deadline.elapsed() < Duration::from_secs(10), "{name}: {:?}", deadline.elapsed());
    }
}

#[test]
fn run_beyond_time_limit_fails_in_the_built_in_evaluator() {
    let options = Options { max_run_time: Duration::from_millis(50), ..built_in() };
    let session = Session::from_bytes(long_run(&[4 << 20], &ONLY_EXPAND, &[], 2000), &options).unwrap();
    let error = session.run(&[x()], &[]).unwrap_err().to_string();
    assert!(error.contains("exceeded the time limit of 0.05 s") && error.contains("max_run_time"), "{error}");
    let deadline = CancelToken::with_deadline(Some(Instant::now() + Duration::from_millis(20)));
    let session = Session::from_bytes(long_run(&[4 << 20], &ONLY_EXPAND, &[], 2000), &built_in()).unwrap();
    assert_eq!(session.run_until(&[x()], &[], &deadline).unwrap_err(), RunError::Cancelled);
}

#[test]
fn run_beyond_time_limit_ends_inside_concat() {
    let nodes = [
        node("Concat", "", "join", &["x", "x"], &["a"]).message(5, &attribute("axis", 2).int(3, 1)),
        node("ReduceSum", "", "sum", &["a"], &["sum"]),
        node("Add", "", "add", &["x", "sum"], &["y"]),
    ];
    let options = Options { max_run_time: Duration::from_nanos(1), ..built_in() };
    let session = Session::from_bytes(model(&graph(&nodes, &[])), &options).unwrap();
    assert_eq!(*session.engine(), Engine::Native);
    // Many short blocks: the first node looks at the clock between them, not the next one after all of them.
    let rows = 1 << 20;
    let x = Tensor::new("x", [rows, 4], Elements::Fp32(vec![1.0; rows * 4])).unwrap();
    let error = session.run(&[x], &[]).unwrap_err().to_string();
    assert!(error.contains("node `join` (Concat)") && error.contains("exceeded the time limit"), "{error}");
}

#[test]
fn cancelled_run_ends_in_a_scan() {
    let body = Message::default()
        .message(1, &node("Add", "", "add", &["state", "slice"], &["next"]))
        .text(2, "body")
        .message(11, &value_info("state", 1, &[]))
        .message(11, &value_info("slice", 1, &[]))
        .message(12, &value_info("next", 1, &[]));
    let scan = node("Scan", "", "scan", &["zero", "many"], &["total"])
        .message(5, &attribute("body", 5).message(6, &body))
        .message(5, &attribute("num_scan_inputs", 2).int(3, 1));
    let nodes = [
        node("ReduceSum", "", "one", &["x"], &["one"]).message(5, &attribute("keepdims", 2).int(3, 0)),
        node("Expand", "", "expand", &["one", "dims"], &["many"]),
        scan,
        node("Add", "", "add_all", &["x", "total"], &["y"]),
    ];
    let constants = [int64s("dims", &[20 << 20]), initializer("zero", 1, &[], &0f32.to_le_bytes())];
    let options = Options { max_run_time: Duration::from_millis(50), ..built_in() };
    let session = Session::from_bytes(model(&graph(&nodes, &constants)), &options).unwrap();
    assert_eq!(*session.engine(), Engine::Native);
    let error = session.run(&[x()], &[]).unwrap_err().to_string();
    assert!(error.contains("exceeded the time limit of 0.05 s"), "{error}");
    let cancelled = CancelToken::default();
    cancelled.cancel();
    let session = Session::from_bytes(model(&graph(&nodes, &constants)), &built_in()).unwrap();
    assert_eq!(session.run_until(&[x()], &[], &cancelled).unwrap_err(), RunError::Cancelled);
}

#[test]
fn constant_nodes_that_take_long_are_left_to_runs() {
    let nodes = [
        node("Expand", "", "expand", &["one", "dims"], &["a"]),
        node("MatMul", "", "square", &["a", "a"], &["b"]),
        node("MatMul", "", "again", &["b", "a"], &["c"]),
        node("ReduceSum", "", "sum", &["c"], &["sum"]),
        node("Add", "", "add", &["x", "sum"], &["y"]),
    ];
    let constants = [int64s("dims", &[1200, 1200]), initializer("one", 1, &[1], &1f32.to_le_bytes())];
    let started = Instant::now();
    let bytes = model(&graph(&nodes, &constants));
    let options = Options { max_run_time: Duration::from_millis(1), ..built_in() };
    let session = Session::from_bytes(bytes, &options).unwrap();
    assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    // Either it was folded, or the run does the work within its own limit.
    let result = session.run(&[x()], &[]);
    assert!(result.is_ok() || result.unwrap_err().to_string().contains("exceeded the time limit"));
}
