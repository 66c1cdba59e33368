//! Model metadata and input validation.

use crate::support::{built_in, data};
use gantry_onnx::{Engine, EngineChoice, LoadError, Options, Session};
use gantry_tensor::{DataType, Elements, Tensor, TensorSpec};

fn session(name: &str) -> Session {
    Session::load(data("sklearn").join(format!("{name}.onnx")), &built_in()).unwrap()
}

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn floats(name: &str, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    Tensor::new(name, shape, Elements::Fp32(vec![0.5; n])).unwrap()
}

#[test]
fn names_types_and_shapes_are_read_from_the_file() {
    let logistic = session("logistic");
    assert_eq!(logistic.inputs(), [spec("X", DataType::Fp32, &[-1, 4])]);
    assert_eq!(
        logistic.outputs(),
        [spec("label", DataType::Int64, &[-1]), spec("probabilities", DataType::Fp32, &[-1, 3])]
    );
    assert!(logistic.batchable());
    assert_eq!(*logistic.engine(), Engine::Native);
    assert_eq!(
        logistic.why(),
        "the built-in evaluator has every operator of the model; ONNX Runtime is switched off"
    );
    assert!((500..10_000).contains(&logistic.memory_bytes()), "{}", logistic.memory_bytes());

    let columns = session("columns_logistic");
    let types: Vec<DataType> = columns.inputs().iter().map(|s| s.datatype).collect();
    assert_eq!(types, [DataType::Fp32, DataType::Fp32, DataType::Fp32, DataType::Bytes, DataType::Bytes]);
}

#[test]
fn score_maps_become_a_matrix() {
    for name in ["logistic_zipmap", "logistic_strings_zipmap"] {
        let zipped = session(name);
        assert_eq!(zipped.outputs()[1], spec("output_probability", DataType::Fp32, &[-1, 3]));
        let result = zipped.run(&[floats("X", &[2, 4])], &["output_probability"]).unwrap();
        assert_eq!(result[0].shape(), [2, 3]);
    }
}

#[test]
fn invalid_inputs_are_named() {
    let logistic = session("logistic");
    let ints = Tensor::new("X", [1, 4], Elements::Int64(vec![1; 4])).unwrap();
    let cases: [(Vec<Tensor>, &str); 6] = [
        (vec![floats("X", &[1, 3])], "input X: expected FP32 [-1,4], got FP32 [1,3]"),
        (vec![floats("X", &[4])], "input X: expected FP32 [-1,4], got FP32 [4]"),
        (vec![ints], "input X: expected FP32 [-1,4], got INT64 [1,4]"),
        (vec![floats("Z", &[1, 4])], "input Z: the model has no such input; it takes X"),
        (vec![], "input X: expected FP32 [-1,4], got nothing"),
        (vec![floats("X", &[1, 4]), floats("X", &[1, 4])], "input X: given twice"),
    ];
    for (tensors, message) in cases {
        assert_eq!(logistic.run(&tensors, &[]).unwrap_err().to_string(), message);
        assert_eq!(logistic.check(&tensors).unwrap_err().to_string(), message);
    }
}

#[test]
fn outputs_are_returned_in_requested_order() {
    let logistic = session("logistic");
    let x = [floats("X", &[2, 4])];
    let names = |wanted: &[&str]| -> Vec<String> {
        logistic.run(&x, wanted).unwrap().iter().map(|t| t.name().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["label", "probabilities"]);
    assert_eq!(names(&["probabilities", "label"]), ["probabilities", "label"]);
    assert_eq!(names(&["label", "label"]), ["label", "label"]);
    let error = logistic.run(&x, &["nope"]).unwrap_err();
    assert_eq!(error.to_string(), "output nope: the model has no such output; it has label, probabilities");
}

#[test]
fn empty_batch_gives_empty_outputs() {
    for name in ["logistic", "forest", "svc_probability", "mlp_classifier", "neighbours"] {
        let results = session(name).run(&[floats("X", &[0, 4])], &[]);
        match results {
            Ok(results) => assert_eq!(results[0].elements().len(), 0, "{name}"),
            // A scan over no rows has nothing to stack: an error.
            Err(e) => assert_eq!(name, "neighbours", "{e}"),
        }
    }
}

#[test]
fn runs_from_many_threads_agree() {
    for model in ["sklearn/forest.onnx", "nets/cnn.onnx", "nets/depthwise.onnx"] {
        let session = Session::load(data(model), &built_in()).unwrap();
        let shape: Vec<usize> =
            session.inputs()[0].shape.iter().map(|&d| if d < 0 { 3 } else { d as usize }).collect();
        let input = [floats(&session.inputs()[0].name, &shape)];
        let expected = session.run(&input, &[]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(session.run(&input, &[]).unwrap(), expected);
                    }
                });
            }
        });
    }
}

#[test]
fn missing_and_oversized_files_are_errors() {
    let error = Session::load(data("sklearn").join("none.onnx"), &built_in()).unwrap_err();
    assert!(error.to_string().starts_with("cannot read "), "{error}");
    let error = Session::load(data("sklearn"), &built_in()).unwrap_err();
    assert!(matches!(error, LoadError::Io { .. }), "{error}");
    let small = Options { max_model_bytes: 100, ..built_in() };
    let error = Session::load(data("sklearn").join("forest.onnx"), &small).unwrap_err();
    assert!(matches!(error, LoadError::TooLarge { limit: 100, .. }), "{error}");
}

#[test]
fn run_beyond_memory_limit_is_rejected() {
    let tight = Options { max_run_bytes: 4000, ..built_in() };
    let session = Session::load(data("sklearn").join("polynomial.onnx"), &tight).unwrap();
    assert!(session.run(&[floats("X", &[2, 4])], &[]).is_ok());
    let error = session.run(&[floats("X", &[2000, 4])], &[]).unwrap_err();
    assert!(error.to_string().contains("larger than the limit of"), "{error}");
}

#[test]
fn selected_engine_that_cannot_run_the_model_is_an_error() {
    let with = |engine| Options { engine, ..built_in() };
    let forest = data("sklearn").join("forest.onnx");
    let error = Session::load(&forest, &with(EngineChoice::OnnxRuntime)).unwrap_err();
    assert_eq!(error.to_string(), "ONNX Runtime: ONNX Runtime is switched off");
    let error = Session::load(&forest, &with(EngineChoice::Rten)).unwrap_err();
    assert!(error.to_string().contains("TreeEnsembleClassifier"), "{error}");
}
