//! Fused and unfused `Conv` + `Relu` give equal results.

use crate::support::{Message, built_in, initializer, model, node, value_info};
use gantry_onnx::{Engine, EngineChoice, Options, Session};
use gantry_tensor::{Elements, Tensor};

fn conv() -> Message {
    // The defaults, which rten requires explicitly.
    let attributes = [("strides", &[1, 1][..]), ("dilations", &[1, 1]), ("pads", &[0, 0, 0, 0])];
    attributes.iter().fold(node("Conv", "", "conv", &["x", "w"], &["c"]), |n, (name, values)| {
        let start = Message::default().text(1, name).int(20, 7);
        n.message(5, &values.iter().fold(start, |a, &v| a.int(8, v)))
    })
}

/// A graph on images `x` of two channels, with four kernels of three by three in `w`.
fn images(nodes: &[Message], outputs: &[&str]) -> Vec<u8> {
    let weights: Vec<u8> =
        (0..4 * 2 * 9).flat_map(|i: i32| (((i * 37) % 19 - 9) as f32 / 4.0).to_le_bytes()).collect();
    let mut graph = nodes.iter().fold(Message::default(), |g, n| g.message(1, n));
    graph = graph.text(2, "g").message(5, &initializer("w", 1, &[4, 2, 3, 3], &weights));
    graph = graph.message(11, &value_info("x", 1, &[-1, 2, 5, 7]));
    for output in outputs {
        graph = graph.message(12, &value_info(output, 1, &[-1, 4, 3, 5]));
    }
    model(&graph)
}

fn run(bytes: &[u8], engine: EngineChoice, x: &Tensor) -> Vec<Vec<f32>> {
    let session = Session::from_bytes(bytes, &Options { engine, ..built_in() }).unwrap();
    assert_eq!(*session.engine() == Engine::Rten, engine == EngineChoice::Rten);
    let results = session.run(std::slice::from_ref(x), &[]).unwrap();
    results.iter().map(|t| t.elements().to_f32().unwrap().into_owned()).collect()
}

#[test]
fn fused_and_unfused_results_are_equal() {
    let relu = |to: &str| node("Relu", "", &format!("relu_{to}"), &["c"], &[to]);
    let table: [(&str, Vec<u8>); 5] = [
        ("together", images(&[conv(), relu("y")], &["y"])),
        ("the intermediate value is requested", images(&[conv(), relu("y")], &["c", "y"])),
        (
            "the value between is read twice",
            images(&[conv(), relu("r"), node("Add", "", "add", &["c", "r"], &["y"])], &["y"]),
        ),
        ("two follow", images(&[conv(), relu("y"), relu("z")], &["y", "z"])),
        ("written the other way round", images(&[relu("y"), conv()], &["y"])),
    ];
    let values: Vec<f32> = (0..2 * 2 * 5 * 7).map(|i: i32| ((i * 31) % 23 - 11) as f32 / 3.0).collect();
    let x = Tensor::new("x", [2, 2, 5, 7], Elements::Fp32(values)).unwrap();
    for (what, bytes) in table {
        let ours = run(&bytes, EngineChoice::Native, &x);
        let theirs = run(&bytes, EngineChoice::Rten, &x);
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().flatten().zip(theirs.iter().flatten()) {
            assert!((ours - theirs).abs() < 1e-4, "{what}: {ours} {theirs}");
        }
        // Both signs occur.
        assert!(ours.iter().flatten().any(|v| *v > 0.0), "{what}");
        assert!(what.contains("twice") || ours.iter().flatten().any(|v| *v == 0.0), "{what}");
    }
}

#[test]
fn nan_stays_nan() {
    let bytes = images(&[conv(), node("Relu", "", "relu", &["c"], &["y"])], &["y"]);
    let mut values = vec![1.0f32; 2 * 5 * 7];
    values[0] = f32::NAN;
    let x = Tensor::new("x", [1, 2, 5, 7], Elements::Fp32(values)).unwrap();
    let y = run(&bytes, EngineChoice::Native, &x);
    assert!(y[0][0].is_nan());
    assert!(y[0][14].is_finite());
}
