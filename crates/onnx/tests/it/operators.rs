//! Operators and datatypes that engines do not take as they are: either they run, or the model is rejected at load.

use crate::support::{Message, attribute, built_in, initializer, ints, model, node, texts, value_info};
use gantry_onnx::{Engine, EngineChoice, Options, Session};
use gantry_tensor::{DataType, Elements, Tensor, f16_to_f32, f32_to_bf16, f32_to_f16};

const FLOAT: i64 = 1;
const HALF: i64 = 10;
const BRAIN: i64 = 16;

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A graph `x` → `y`.
fn graph(nodes: &[Message], constants: &[Message], x: &Message, y: &Message) -> Vec<u8> {
    let graph = nodes.iter().fold(Message::default().text(2, "g"), |g, n| g.message(1, n));
    let graph = constants.iter().fold(graph, |g, c| g.message(5, c));
    model(&graph.message(11, x).message(12, y))
}

fn run(bytes: &[u8], engine: EngineChoice, x: Elements, shape: &[usize]) -> (Engine, Tensor) {
    let session = Session::from_bytes(bytes, &Options { engine, ..built_in() }).unwrap();
    let x = Tensor::new("x", shape, x).unwrap();
    let y = session.run(&[x], &[]).unwrap().remove(0);
    (session.engine().clone(), y)
}

fn load_error(bytes: Vec<u8>) -> String {
    Session::from_bytes(bytes, &built_in()).expect_err("the model was loaded").to_string()
}

#[test]
fn half_precision_models_run_in_single_precision() {
    let values = [0.5f32, -1.0, 2.0, 0.25];
    let weights = [1.0f32, 0.0, 0.0, 2.0, 1.0, 1.0, 4.0, 0.0];
    // [0.5 -1 2 0.25] × [[1 0] [0 2] [1 1] [4 0]], plus 1.
    let expected = [4.5f32, 1.0];
    for kind in [HALF, BRAIN] {
        let narrow = |v: &f32| if kind == HALF { f32_to_f16(*v) } else { f32_to_bf16(*v) };
        let bits = |v: &[f32]| v.iter().map(narrow).collect::<Vec<u16>>();
        let constant = |name: &str, dims: &[i64], v: &[f32]| {
            let raw: Vec<u8> = bits(v).iter().flat_map(|b| b.to_le_bytes()).collect();
            initializer(name, kind, dims, &raw)
        };
        let elements = |v: &[f32]| {
            if kind == HALF { Elements::Fp16(bits(v)) } else { Elements::Bf16(bits(v)) }
        };
        let nodes =
            [node("MatMul", "", "dense", &["x", "w"], &["p"]), node("Add", "", "bias", &["p", "b"], &["y"])];
        let bytes = graph(
            &nodes,
            &[constant("w", &[4, 2], &weights), constant("b", &[1], &[1.0])],
            &value_info("x", kind, &[-1, 4]),
            &value_info("y", kind, &[-1, 2]),
        );
        let (engine, y) = run(&bytes, EngineChoice::Auto, elements(&values), &[1, 4]);
        assert_eq!(engine, Engine::Native);
        assert_eq!(*y.elements(), elements(&expected));
    }
}

#[test]
fn cast_to_half_rounds() {
    let nodes = [
        node("Cast", "", "down", &["x"], &["h"]).message(5, &attribute("to", 2).int(3, HALF)),
        node("Cast", "", "up", &["h"], &["y"]).message(5, &attribute("to", 2).int(3, FLOAT)),
    ];
    let (x, y) = (value_info("x", FLOAT, &[-1]), value_info("y", FLOAT, &[-1]));
    let (_, y) = run(&graph(&nodes, &[], &x, &y), EngineChoice::Native, Elements::Fp32(vec![0.1]), &[1]);
    let rounded = f16_to_f32(f32_to_f16(0.1));
    assert!(rounded != 0.1);
    assert_eq!(*y.elements(), Elements::Fp32(vec![rounded]));
}

#[test]
fn range_has_the_datatype_of_its_inputs() {
    let range = node("Range", "", "range", &["zero", "limit", "step"], &["y"]);
    let table: [(i64, [Vec<u8>; 2], Elements, Elements); 4] = [
        (FLOAT, [raw(&[0.5]), raw(&[0.25])], Elements::Fp32(vec![1.2]), Elements::Fp32(vec![0.5, 0.75, 1.0])),
        (
            11,
            [1f64.to_le_bytes().to_vec(), (-0.5f64).to_le_bytes().to_vec()],
            Elements::Fp64(vec![0.0]),
            Elements::Fp64(vec![1.0, 0.5]),
        ),
        (
            6,
            [1i32.to_le_bytes().to_vec(), 2i32.to_le_bytes().to_vec()],
            Elements::Int32(vec![6]),
            Elements::Int32(vec![1, 3, 5]),
        ),
        (
            7,
            [3i64.to_le_bytes().to_vec(), (-1i64).to_le_bytes().to_vec()],
            Elements::Int64(vec![1]),
            Elements::Int64(vec![3, 2]),
        ),
    ];
    for (kind, [start, step], limit, expected) in table {
        let constants = [initializer("zero", kind, &[], &start), initializer("step", kind, &[], &step)];
        let nodes = [node("Identity", "", "id", &["x"], &["limit"]), range.clone()];
        let bytes = graph(&nodes, &constants, &value_info("x", kind, &[]), &value_info("y", kind, &[-1]));
        let (_, y) = run(&bytes, EngineChoice::Native, limit, &[]);
        assert_eq!(*y.elements(), expected);
    }
    // Steps that never arrive, or too many of them.
    for (limit, step, expected) in
        [(1.0, 0.0, "step 0"), (f32::NAN, 1.0, "step 0"), (1e30, 1.0, "larger than the limit")]
    {
        let constants =
            [initializer("zero", FLOAT, &[], &raw(&[0.0])), initializer("step", FLOAT, &[], &raw(&[step]))];
        let nodes = [node("Identity", "", "id", &["x"], &["limit"]), range.clone()];
        let bytes = graph(&nodes, &constants, &value_info("x", FLOAT, &[]), &value_info("y", FLOAT, &[-1]));
        let session = Session::from_bytes(&bytes, &built_in()).unwrap();
        let x = Tensor::new("x", [], Elements::Fp32(vec![limit])).unwrap();
        let error = session.run(&[x], &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A convolution over one channel with the kernel 1, 2 in the last dimension.
fn conv(op: &str, dimensions: usize, attributes: &[Message]) -> Vec<u8> {
    let mut kernel = vec![1i64; dimensions + 2];
    kernel[dimensions + 1] = 2;
    let open = vec![-1; dimensions + 2];
    let conv = node(op, "", "conv", &["x", "w"], &["y"]);
    graph(
        &[attributes.iter().fold(conv, |n, a| n.message(5, a))],
        &[initializer("w", FLOAT, &kernel, &raw(&[1.0, 2.0]))],
        &value_info("x", FLOAT, &open),
        &value_info("y", FLOAT, &open),
    )
}

#[test]
fn rten_gets_the_default_attributes_of_convolutions_and_pools() {
    let line = || Elements::Fp32(vec![1.0, 10.0, 100.0]);
    for (shape, dimensions) in [(&[1, 1, 3][..], 1), (&[1, 1, 1, 3], 2)] {
        let strides = [ints("strides", &vec![1; dimensions])];
        let table: [(&str, &[Message], &[f32]); 3] = [
            ("Conv", &[], &[21.0, 210.0]),
            ("Conv", &strides, &[21.0, 210.0]),
            ("ConvTranspose", &[], &[1.0, 12.0, 120.0, 200.0]),
        ];
        for (op, attributes, expected) in table {
            let (engine, y) = run(&conv(op, dimensions, attributes), EngineChoice::Rten, line(), shape);
            assert_eq!(engine, Engine::Rten);
            assert_eq!(*y.elements(), Elements::Fp32(expected.to_vec()), "{op} {dimensions}");
        }
        let mut window = vec![1i64; dimensions];
        window[dimensions - 1] = 2;
        let open = vec![-1; dimensions + 2];
        for (op, expected) in [("MaxPool", [10.0, 100.0]), ("AveragePool", [5.5, 55.0])] {
            let pool = node(op, "", "pool", &["x"], &["y"]).message(5, &ints("kernel_shape", &window));
            let (x, y) = (value_info("x", FLOAT, &open), value_info("y", FLOAT, &open));
            let bytes = graph(&[pool], &[], &x, &y);
            let (_, y) = run(&bytes, EngineChoice::Rten, line(), shape);
            assert_eq!(*y.elements(), Elements::Fp32(expected.to_vec()), "{op} {dimensions}");
            let (engine, y) = run(&bytes, EngineChoice::Auto, line(), shape);
            assert_eq!(engine == Engine::Native, dimensions == 2, "{op}");
            assert_eq!(*y.elements(), Elements::Fp32(expected.to_vec()), "{op} {dimensions}");
        }
    }
}

#[test]
fn kernel_shape_is_found_behind_a_dequantized_weight() {
    let nodes = [
        node("DequantizeLinear", "", "dq", &["q", "scale"], &["w"]),
        node("Conv", "", "conv", &["x", "w"], &["y"]),
    ];
    let constants =
        [initializer("q", 3, &[1, 1, 1, 2], &[2, 4]), initializer("scale", FLOAT, &[], &raw(&[0.5]))];
    let open = [-1; 4];
    let bytes = graph(&nodes, &constants, &value_info("x", FLOAT, &open), &value_info("y", FLOAT, &open));
    let x = Elements::Fp32(vec![1.0, 10.0, 100.0]);
    let (engine, y) = run(&bytes, EngineChoice::Auto, x, &[1, 1, 1, 3]);
    assert_eq!((engine, y.elements()), (Engine::Rten, &Elements::Fp32(vec![21.0, 210.0])));
}

#[test]
fn operators_without_an_implementation_are_named_at_load() {
    let error = load_error(conv("Conv", 3, &[]));
    assert!(
        error.starts_with("no built-in engine has Conv in 3 dimensions (ai.onnx 17, node `conv`)"),
        "{error}"
    );
    let error = load_error(conv("Conv", 3, &[ints("kernel_shape", &[1, 1, 2])]));
    assert!(error.contains("Conv in 3 dimensions"), "{error}");
    let pool = node("MaxPool", "", "pool", &["x"], &["y"]).message(5, &ints("kernel_shape", &[2, 2, 2]));
    let open = [-1; 5];
    let (x, y) = (value_info("x", FLOAT, &open), value_info("y", FLOAT, &open));
    let error = load_error(graph(&[pool], &[], &x, &y));
    assert!(error.contains("MaxPool in 3 dimensions (ai.onnx 17, node `pool`)"), "{error}");
    let relu = gru(&[texts("activations", &["Sigmoid", "Relu"])], &["x", "w", "r"]);
    let error = load_error(relu);
    assert!(error.contains("GRU with linear_before_reset=0 (ai.onnx 17, node `gru`)"), "{error}");
}

const W: [f32; 3] = [0.5, -0.25, 1.5];
const R: [f32; 3] = [0.75, 0.5, -1.0];
const B: [f32; 6] = [0.1, 0.2, 0.3, -0.4, 0.5, -0.6];

/// A `GRU` of one input and one hidden value.
fn gru(attributes: &[Message], inputs: &[&str]) -> Vec<u8> {
    let gru = node("GRU", "", "gru", inputs, &["y"]).message(5, &attribute("hidden_size", 2).int(3, 1));
    let constants = [
        initializer("w", FLOAT, &[1, 3, 1], &raw(&W)),
        initializer("r", FLOAT, &[1, 3, 1], &raw(&R)),
        initializer("b", FLOAT, &[1, 6], &raw(&B)),
        initializer("h", FLOAT, &[1, 1, 1], &raw(&[0.5])),
    ];
    graph(
        &[attributes.iter().fold(gru, |n, a| n.message(5, a))],
        &constants,
        &value_info("x", FLOAT, &[-1, 1, 1]),
        &value_info("y", FLOAT, &[-1, 1, 1, 1]),
    )
}

#[test]
fn gru_applies_the_reset_gate_before_the_product() {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let expected = |xs: &[f32], bias: [f32; 6], mut h: f32| -> Vec<f32> {
        xs.iter()
            .map(|x| {
                let z = sigmoid(W[0] * x + R[0] * h + bias[0] + bias[3]);
                let r = sigmoid(W[1] * x + R[1] * h + bias[1] + bias[4]);
                let candidate = (W[2] * x + R[2] * (r * h) + bias[2] + bias[5]).tanh();
                h = (1.0 - z) * candidate + z * h;
                h
            })
            .collect()
    };
    let (forward, backward) = ([1.0, -2.0, 0.5], [0.5, -2.0, 1.0]);
    let reverse = Message::default().text(1, "direction").int(20, 3).bytes(4, b"reverse");
    let mut reversed = expected(&backward, [0.0; 6], 0.0);
    reversed.reverse();
    let table: [(Vec<u8>, Vec<f32>); 3] = [
        (gru(&[], &["x", "w", "r"]), expected(&forward, [0.0; 6], 0.0)),
        (gru(&[], &["x", "w", "r", "b", "", "h"]), expected(&forward, B, 0.5)),
        (gru(&[reverse], &["x", "w", "r"]), reversed),
    ];
    for (bytes, expected) in table {
        let x = Elements::Fp32(forward.to_vec());
        let (engine, y) = run(&bytes, EngineChoice::Auto, x, &[3, 1, 1]);
        assert_eq!((engine, y.datatype()), (Engine::Native, DataType::Fp32));
        let got = y.elements().to_f32().unwrap();
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got - expected).abs() < 1e-6, "{got} {expected}");
        }
        assert_eq!(got.len(), expected.len());
    }
}

#[test]
fn versions_that_are_not_known_are_rejected() {
    let relu = Message::default()
        .message(1, &node("Relu", "", "relu", &["x"], &["y"]))
        .message(11, &value_info("x", FLOAT, &[-1]))
        .message(12, &value_info("y", FLOAT, &[-1]));
    let with = |ir: i64, opset: i64, ml: i64| {
        let version = |domain: &str, v| Message::default().text(1, domain).int(2, v);
        let model = Message::default().int(1, ir).message(7, &relu);
        model.message(8, &version("", opset)).message(8, &version("ai.onnx.ml", ml)).0
    };
    assert!(Session::from_bytes(with(13, 25, 5), &built_in()).is_ok());
    for (bytes, expected) in [
        (with(999, 17, 3), "the model has IR version 999; the built-in engines have 1 to 13"),
        (with(-1, 17, 3), "the model has IR version -1"),
        (with(8, 999, 3), "the model has opset of ai.onnx 999; the built-in engines have 1 to 25"),
        (with(8, 0, 3), "the model has opset of ai.onnx 0"),
        (with(8, 17, 99), "the model has opset of ai.onnx.ml 99; the built-in engines have 1 to 5"),
    ] {
        let error = load_error(bytes);
        assert!(error.contains(expected) && error.contains("ORT_DYLIB_PATH"), "{error}");
    }
}

#[test]
fn memory_of_texts_is_bounded_before_it_is_allocated() {
    // Each doubles the number of texts, of which each takes 32 bytes beside its content.
    let concat = |i: usize| {
        let (from, to) = (format!("v{i}"), format!("v{}", i + 1));
        node("Concat", "", &format!("n{i}"), &[&from, &from], &[&to])
            .message(5, &attribute("axis", 2).int(3, 0))
    };
    let mut nodes = vec![node("Identity", "", "id", &["x"], &["v0"])];
    nodes.extend((0..16).map(concat));
    nodes.push(node("Size", "", "size", &["v16"], &["y"]));
    let bytes = graph(&nodes, &[], &value_info("x", 8, &[-1]), &value_info("y", 7, &[]));
    let x = [Tensor::new("x", [1], Elements::Bytes(vec!["a".into()])).unwrap()];
    // 2¹⁶ texts are 2 MiB, and the step before is alive too.
    let enough = Options { max_run_bytes: 4 << 20, ..built_in() };
    let y = Session::from_bytes(&bytes, &enough).unwrap().run(&x, &[]).unwrap();
    assert_eq!(*y[0].elements(), Elements::Int64(vec![1 << 16]));
    let tight = Options { max_run_bytes: 2 << 20, ..built_in() };
    let error = Session::from_bytes(&bytes, &tight).unwrap().run(&x, &[]).unwrap_err().to_string();
    // The step's own check, not that of its finished result: the limit in the message is what was left.
    assert!(
        error.contains("node `n15` (Concat)") && error.contains("larger than the limit of 10"),
        "{error}"
    );
}
