//! Hostile and broken files: each is a descriptive error, in bounded memory and time.

use crate::support::{
    Message, attribute, built_in, cases, floats, graph, initializer, ints, model, node, texts, value_info,
};
use gantry_onnx::{EngineChoice, Options, Session};
use gantry_tensor::{DataType, Elements, Tensor};
use proptest::prelude::*;
use std::time::{Duration, Instant};

fn error(bytes: Vec<u8>) -> String {
    let start = Instant::now();
    let error = Session::from_bytes(bytes, &built_in()).expect_err("a hostile file was loaded").to_string();
    assert!(start.elapsed() < Duration::from_secs(5), "{error} took {:?}", start.elapsed());
    error
}

/// A tree of three nodes; `children` are what its root points at.
fn tree(children: [i64; 2], feature: i64, class_node: i64) -> Message {
    [
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        ints("nodes_featureids", &[feature, 0, 0]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        ints("nodes_truenodeids", &[children[0], 0, 0]),
        ints("nodes_falsenodeids", &[children[1], 0, 0]),
        ints("target_treeids", &[0, 0]),
        ints("target_nodeids", &[1, class_node]),
        ints("target_ids", &[0, 0]),
        floats("target_weights", &[1.0, 2.0]),
    ]
    .iter()
    .fold(node("TreeEnsembleRegressor", "ai.onnx.ml", "trees", &["x"], &["y"]), |n, a| n.message(5, a))
}

#[test]
fn broken_files_are_described() {
    let relu = |i: &str, o: &str| node("Relu", "", &format!("n_{o}"), &[i], &[o]);
    let sizes = |v: &[i64]| -> Vec<u8> { v.iter().flat_map(|d| d.to_le_bytes()).collect() };
    let wrong_type = node("Softmax", "", "s", &["x"], &["y"]).message(5, &floats("axis", &[1.0]));
    let missing = node("TreeEnsembleRegressor", "ai.onnx.ml", "trees", &["x"], &["y"]);
    let deep = (0..20).fold(graph(&[relu("x", "y")], &[]), |inner, _| {
        let body = attribute("body", 5).message(6, &inner);
        graph(&[node("Loop", "", "l", &["x"], &["y"]).message(5, &body)], &[])
    });
    let huge = initializer("w", 1, &[1 << 40, 1 << 40], &[]);
    let far = initializer("w", 1, &[1 << 40], &[0; 8]);
    let negative = initializer("w", 1, &[-4], &[0; 16]);
    let ragged = initializer("w", 1, &[2], &[0; 9]);
    let w = initializer("w", 1, &[4], &[0; 16]);
    let add = node("Add", "", "add", &["x", "w"], &["y"]);
    let table: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "the file has no graph: it is empty or not an ONNX model"),
        (b"hello, this is no model".to_vec(), "this is not an ONNX file"),
        (vec![0xff; 64], "this is not an ONNX file"),
        (Message::default().int(1, 8).0, "the file has no graph"),
        (vec![0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f], "ends in the middle of a field"),
        (model(&graph(&[relu("y", "y")], &[])), "the graph has a cycle through node `n_y`"),
        (model(&graph(&[relu("b", "a"), relu("a", "b"), relu("b", "y")], &[])), "the graph has a cycle"),
        (model(&graph(&[relu("gone", "y")], &[])), "node `n_y` reads `gone`, which is no input"),
        (model(&graph(&[], &[])), "the output `y` is made by no node"),
        (model(&graph(&[relu("x", "y"), relu("x", "y")], &[])), "the name `y` is given to two values"),
        (model(&graph(&[relu("x", "x")], &[])), "the name `x` is given to two values"),
        (
            model(&graph(std::slice::from_ref(&add), &[w.clone(), w.clone()])),
            "the name `w` is given to two values",
        ),
        (
            model(&graph(std::slice::from_ref(&add), &[huge])),
            "tensor `w`: dimensions [1099511627776, 1099511627776] are",
        ),
        (model(&graph(std::slice::from_ref(&add), &[far])), "need 1099511627776 values, the file has 2"),
        (model(&graph(std::slice::from_ref(&add), &[negative])), "tensor `w`: dimensions [-4] are negative"),
        (model(&graph(std::slice::from_ref(&add), &[ragged])), "need 2 values, the file has 2"),
        (
            model(&graph(&[add], &[initializer("w", 77, &[1], &[0])])),
            "tensor `w`: element type 77 is not supported",
        ),
        (
            model(&graph(&[node("Whatever", "", "w1", &["x"], &["y"])], &[])),
            "no built-in engine has Whatever (ai.onnx 17, node `w1`); set ORT_DYLIB_PATH",
        ),
        (
            model(&graph(&[node("Attention", "com.microsoft", "att", &["x"], &["y"])], &[])),
            "no built-in engine has Attention (com.microsoft 1, node `att`); set ORT_DYLIB_PATH",
        ),
        (
            model(&graph(
                &[node("Scaler", "ai.onnx.ml", "s", &["x"], &["a"]), node("Conv", "", "c", &["a"], &["y"])],
                &[],
            )),
            "node `s` (Scaler): attribute `offset` and scale must both be given",
        ),
        (model(&graph(&[wrong_type], &[])), "attribute `axis` should be an integer and is floats"),
        (model(&graph(&[missing], &[])), "node `trees` (TreeEnsembleRegressor)"),
        (model(&graph(&[tree([0, 2], 0, 2)], &[])), "node `trees` (TreeEnsembleRegressor)"),
        (model(&graph(&[tree([1, 1], 0, 2)], &[])), "node `trees` (TreeEnsembleRegressor)"),
        (model(&graph(&[tree([1, 9], 0, 2)], &[])), "node 2: the tree has two roots"),
        (model(&graph(&[tree([1, 2], -3, 2)], &[])), "-3 is not a feature"),
        (model(&graph(&[tree([1, 2], 0, 7)], &[])), "node 7 of tree 0 does not exist"),
        (model(&deep), "graphs are nested more than 8 deep"),
        (
            model(&graph(
                &[
                    node("ConstantOfShape", "", "c", &["w"], &["b"]),
                    node("Conv", "", "k", &["x", "b"], &["y"]),
                ],
                &[initializer("w", 7, &[3], &sizes(&[1 << 20, 1 << 20, 1 << 20]))],
            )),
            "node `c` (ConstantOfShape) requests the size [1048576, 1048576, 1048576]",
        ),
        (
            model(&graph(&[relu("x", "y")], &[]).message(11, &value_info("z", 99, &[1]))),
            "input `z` is not a tensor of a supported type",
        ),
        (
            Message(model(&graph(&[relu("x", "y")], &[]))).message(25, &Message::default()).0,
            "the model uses functions of its own",
        ),
    ];
    for (bytes, expected) in table {
        println!("{expected}");
        let error = error(bytes);
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
}

#[test]
fn valid_tree_is_loaded() {
    let session = Session::from_bytes(model(&graph(&[tree([1, 2], 0, 2)], &[])), &built_in()).unwrap();
    let x = Tensor::new("x", [2, 4], Elements::Fp32(vec![0.0, 9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0])).unwrap();
    assert_eq!(*session.run(&[x], &[]).unwrap()[0].elements(), Elements::Fp32(vec![1.0, 2.0]));
}

#[test]
fn deep_chain_of_nodes_does_not_recurse() {
    let mut nodes = vec![node("Relu", "", "first", &["x"], &["v0"])];
    for i in 0..50_000 {
        nodes.push(node("Neg", "", "n", &[&format!("v{i}")], &[&format!("v{}", i + 1)]));
    }
    nodes.push(node("Relu", "", "last", &["v50000"], &["y"]));
    nodes.reverse();
    let session = Session::from_bytes(model(&graph(&nodes, &[])), &built_in()).unwrap();
    let x = Tensor::new("x", [1, 4], Elements::Fp32(vec![1.0; 4])).unwrap();
    assert_eq!(*session.run(&[x], &[]).unwrap()[0].elements(), Elements::Fp32(vec![1.0; 4]));
}

#[test]
fn sizes_from_requests_are_bounded() {
    let shape = node("Shape", "", "shape", &["x"], &["s"]);
    let large = initializer("big", 7, &[1], &(1i64 << 40).to_le_bytes());
    let nodes = [
        shape,
        node("Mul", "", "mul", &["s", "big"], &["t"]),
        node("ConstantOfShape", "", "fill", &["t"], &["u"]),
        node("ReduceSum", "", "sum", &["u"], &["v"]),
        node("Add", "", "add", &["x", "v"], &["y"]),
    ];
    let session = Session::from_bytes(model(&graph(&nodes, &[large])), &built_in()).unwrap();
    let x = Tensor::new("x", [1, 4], Elements::Fp32(vec![1.0; 4])).unwrap();
    let error = session.run(&[x], &[]).unwrap_err().to_string();
    assert!(
        error.contains("node `fill` (ConstantOfShape)") && error.contains("larger than the limit"),
        "{error}"
    );
}

#[test]
fn empty_tensor_with_huge_dimension_is_rejected() {
    let sum = node("ReduceSum", "", "sum", &["x", "axes"], &["y"]);
    let graph = Message::default()
        .message(1, &sum)
        .message(5, &initializer("axes", 7, &[1], &1i64.to_le_bytes()))
        .message(11, &value_info("x", 1, &[-1, -1]))
        .message(12, &value_info("y", 1, &[-1, 1]));
    let session = Session::from_bytes(model(&graph), &built_in()).unwrap();
    let empty = |rows: usize| Tensor::new("x", [rows, 0], Elements::Fp32(vec![])).unwrap();
    assert_eq!(*session.run(&[empty(3)], &[]).unwrap()[0].elements(), Elements::Fp32(vec![0.0; 3]));
    for rows in [1 << 28, 1 << 30, 1 << 40, usize::MAX] {
        let error = session.run(&[empty(rows)], &[]).unwrap_err().to_string();
        assert!(
            error.contains("expected FP32 [-1,-1]") || error.contains("larger than the limit"),
            "{error}"
        );
    }
}

/// An `Add` whose constant is in another file.
fn with_external(location: &str, length: Option<&str>) -> Vec<u8> {
    let entry = |k: &str, v: &str| Message::default().text(1, k).text(2, v);
    let mut w = Message::default().int(1, 4).int(2, 1).text(8, "w").int(14, 1);
    w = w.message(13, &entry("location", location));
    if let Some(length) = length {
        w = w.message(13, &entry("length", length));
    }
    model(&graph(&[node("Add", "", "add", &["x", "w"], &["y"])], &[w]))
}

#[test]
fn external_weights_outside_model_directory_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("model");
    std::fs::create_dir_all(inside.join("sub")).unwrap();
    let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for path in [directory.path().join("secret.bin"), inside.join("w.bin"), inside.join("sub/w.bin")] {
        std::fs::write(path, &weights).unwrap();
    }
    std::fs::write(inside.join("short.bin"), &weights[..7]).unwrap();
    let load = |location: &str, length: Option<&str>| {
        let path = inside.join("m.onnx");
        std::fs::write(&path, with_external(location, length)).unwrap();
        Session::load(path, &built_in())
    };
    for good in ["w.bin", "./w.bin", "sub/w.bin"] {
        let session = load(good, Some("16")).unwrap();
        let x = Tensor::new("x", [1, 4], Elements::Fp32(vec![1.0; 4])).unwrap();
        let y = session.run(&[x], &[]).unwrap();
        assert_eq!(*y[0].elements(), Elements::Fp32(vec![2.0, 3.0, 4.0, 5.0]));
    }
    let absolute = directory.path().join("secret.bin");
    let mut table = vec![
        ("../secret.bin", "not a file name inside the model's directory"),
        ("sub/../../secret.bin", "not a file name inside the model's directory"),
        (absolute.to_str().unwrap(), "not a file name inside the model's directory"),
        ("", "not a file name inside the model's directory"),
        ("none.bin", "cannot be read"),
        ("sub", "cannot be read"),
        ("short.bin", "need 4 values, the file has 1"),
    ];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&absolute, inside.join("link.bin")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", inside.join("zero.bin")).unwrap();
        table.push(("link.bin", "a link that leads out of the model's directory"));
        table.push(("zero.bin", "a link that leads out of the model's directory"));
    }
    for (location, expected) in table {
        let error = load(location, None).unwrap_err().to_string();
        assert!(error.contains(expected), "{location}: {error:?} does not say {expected:?}");
    }
    let error = load("w.bin", Some("17")).unwrap_err().to_string();
    assert!(error.contains("ends before 17 bytes"), "{error}");
    let error = Session::from_bytes(with_external("w.bin", None), &built_in()).unwrap_err().to_string();
    assert!(error.contains("the model was given as bytes"), "{error}");
}

/// Loads, and runs with an input that fits, on every engine; errors are fine, a panic or a hang is not.
fn survive(bytes: &[u8]) {
    for engine in [EngineChoice::Native, EngineChoice::Auto] {
        let options = Options { engine, max_run_bytes: 1 << 22, ..built_in() };
        let Ok(session) = Session::from_bytes(bytes, &options) else { continue };
        let inputs: Option<Vec<Tensor>> = session
            .inputs()
            .iter()
            .map(|spec| {
                let shape: Vec<usize> =
                    spec.shape.iter().map(|&d| if d < 0 { 2 } else { d as usize }).collect();
                let n = gantry_tensor::shape_product(&shape).filter(|&n| n < 100_000)?;
                let elements = match spec.datatype {
                    DataType::Fp32 => Elements::Fp32(vec![0.5; n]),
                    DataType::Fp64 => Elements::Fp64(vec![0.5; n]),
                    DataType::Int64 => Elements::Int64(vec![1; n]),
                    DataType::Int32 => Elements::Int32(vec![1; n]),
                    DataType::Bool => Elements::Bool(vec![true; n]),
                    DataType::Bytes => Elements::Bytes(vec!["red".into(); n]),
                    DataType::Fp16 => Elements::Fp16(vec![0x3800; n]),
                    DataType::Bf16 => Elements::Bf16(vec![0x3f00; n]),
                    _ => return None,
                };
                Tensor::new(spec.name.clone(), shape, elements).ok()
            })
            .collect();
        if let Some(inputs) = inputs {
            let _ = session.run(&inputs, &[]);
        }
    }
}

fn samples() -> Vec<Vec<u8>> {
    let mut samples: Vec<Vec<u8>> = cases("sklearn")
        .iter()
        .chain(&cases("nets"))
        .filter(|c| !c.name.contains("cnn"))
        .map(|c| std::fs::read(&c.model).unwrap())
        .filter(|b| b.len() < 12_000)
        .collect();
    samples.sort_by_key(Vec::len);
    samples
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        survive(&bytes);
    }

    #[test]
    fn mutated_models_never_panic(
        pick in any::<proptest::sample::Index>(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::weighted(0.2, any::<proptest::sample::Index>()),
    ) {
        thread_local!(static SAMPLES: Vec<Vec<u8>> = samples());
        let mut bytes = SAMPLES.with(|s| s[pick.index(s.len())].clone());
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        survive(&bytes);
    }
}
