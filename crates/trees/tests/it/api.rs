//! Model metadata and request validation.

use std::fs;

use gantry_trees::{Format, Model, Output, PredictError, Rows};

use crate::golden::directory;

fn model(file: &str) -> Model {
    let bytes = fs::read(directory().join(file)).unwrap();
    Model::from_bytes(&bytes, Format::sniff(&bytes).unwrap()).unwrap()
}

fn any_of(name: &str) -> Model {
    let file = if directory().join(format!("{name}.json")).exists() { "json" } else { "ubj" };
    model(&format!("{name}.{file}"))
}

#[test]
fn metadata_is_read_from_the_file() {
    let table = [
        (any_of("xgb_multi_softprob"), "multi:softprob", Some(3), 18, [3, 3, 1, 18]),
        (any_of("xgb_multi_softmax"), "multi:softmax", Some(3), 18, [1, 3, 1, 18]),
        (any_of("xgb_binary_logistic"), "binary:logistic", Some(2), 6, [1, 1, 1, 6]),
        (any_of("xgb_reg_quantileerror"), "reg:quantileerror", None, 18, [3, 3, 3, 18]),
        (model("lgb_binary.txt"), "binary sigmoid:1", Some(2), 6, [1, 1, 1, 6]),
        (model("lgb_multiclass.txt"), "multiclass num_class:3", Some(3), 18, [3, 3, 1, 18]),
    ];
    for (model, objective, classes, trees, outputs) in table {
        assert_eq!(model.objective(), objective);
        assert_eq!((model.features(), model.classes(), model.trees()), (5, classes, trees), "{objective}");
        let kinds = [Output::Predict, Output::Margin, Output::Class, Output::Leaf];
        assert_eq!(kinds.map(|kind| model.outputs_per_row(kind)), outputs, "{objective}");
        assert!((1_000..100_000).contains(&model.memory_bytes()), "{objective}: {}", model.memory_bytes());
    }
    assert_eq!(any_of("xgb_names").feature_names(), ["a", "b b", "ç", "d", "e\""]);
    assert_eq!(model("lgb_binary.txt").feature_names()[4], "Column_4");
    assert!(any_of("xgb_early_stop").best_iteration().is_some());
    assert_eq!(any_of("xgb_deep").best_iteration(), None);
}

#[test]
fn invalid_requests_are_rejected() {
    let regression = any_of("xgb_reg_squarederror");
    let rows = Rows::f32(&[0.0; 8], 2, 4).unwrap();
    let error = regression.predict(rows, Output::Predict).unwrap_err();
    assert_eq!(error, PredictError::Features { expected: 5, actual: 4 });
    assert_eq!(error.to_string(), "the model takes 5 features per row, but the rows have 4");
    let rows = Rows::f32(&[0.0; 5], 1, 5).unwrap();
    let error = regression.predict(rows, Output::Class).unwrap_err();
    assert!(error.to_string().contains("`reg:squarederror` does not classify"), "{error}");
    let error = any_of("xgb_linear").predict(rows, Output::Leaf).unwrap_err();
    assert_eq!(error, PredictError::NoTrees);
}

#[test]
fn no_rows_give_no_outputs() {
    for model in [any_of("xgb_multi_softprob"), model("lgb_rf.txt"), any_of("xgb_linear")] {
        let prediction = model.predict(Rows::f64(&[], 0, 5).unwrap(), Output::Predict).unwrap();
        assert_eq!(prediction.rows, 0);
    }
}

#[test]
fn prediction_does_not_depend_on_threads() {
    let model = any_of("xgb_category_softprob");
    let values: Vec<f32> = (0..5 * 20_000).map(|at| (at as f32 * 0.61) % 9.0).collect();
    let rows = Rows::f32(&values, 20_000, 5).unwrap();
    let one = model.predict(rows, Output::Predict).unwrap();
    for threads in [0, 2, 3, 1000] {
        assert_eq!(model.predict_with_threads(rows, Output::Predict, threads).unwrap(), one, "{threads}");
    }
}

#[test]
fn stopped_evaluation_is_an_error() {
    let values = vec![0.5; 5 * 200_000];
    for model in [any_of("xgb_category_softprob"), model("lgb_multiclass.txt")] {
        for threads in [1, 4] {
            let rows = |count: usize| Rows::f32(&values[..5 * count], count, 5).unwrap();
            let evaluate = |count| model.predict_until(rows(count), Output::Predict, threads, &|| true);
            assert_eq!(evaluate(200_000), Err(PredictError::Stopped));
            // A short evaluation ends before it polls.
            assert_eq!(evaluate(10), model.predict(rows(10), Output::Predict));
        }
    }
}

#[test]
fn disproportionate_output_is_rejected() {
    // A file of a few bytes that claims many outputs, and a request whose rows have no features.
    let text = r#"{"learner": {"gradient_booster": {"name": "gbtree", "model": {"tree_info": [], "trees": []}},
        "learner_model_param": {"base_score": "0", "num_class": "4000", "num_feature": "0"},
        "objective": {"name": "multi:softprob"}}}"#;
    let model = Model::from_bytes(text.as_bytes(), Format::XgboostJson).unwrap();
    let rows = Rows::f32(&[], 1_000_000_000, 0).unwrap();
    let error = model.predict(rows, Output::Predict).unwrap_err();
    assert_eq!(error, PredictError::TooLarge { rows: 1_000_000_000, outputs: 4000 });
}
