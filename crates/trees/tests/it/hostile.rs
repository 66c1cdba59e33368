//! Hostile files are rejected with the reason and the place.

use gantry_trees::onnx_ensemble::{Builder, Mode, NodeSpec, WeightSpec};
use gantry_trees::{Format, Model, Output, PredictionValues, Rows};

const XGBOOST: &str = r#"{"learner": {"attributes": {}, "feature_names": [], "feature_types": [],
"gradient_booster": {"name": "gbtree", "model": {"gbtree_model_param": {"num_parallel_tree": "1", "num_trees": "1"},
"tree_info": [0], "trees": [{"left_children": [1, 3, -1, -1, -1], "right_children": [2, 4, -1, -1, -1],
"parents": [2147483647, 0, 0, 1, 1], "split_indices": [0, 1, 0, 0, 0], "split_conditions": [5E-1, 0, 1, 2, 3],
"split_type": [0, 1, 0, 0, 0], "default_left": [1, 0, 0, 0, 0], "categories": [1, 3], "categories_nodes": [1],
"categories_segments": [0], "categories_sizes": [2], "base_weights": [0, 0, 0, 0, 0],
"tree_param": {"num_nodes": "5", "num_feature": "2", "size_leaf_vector": "1"}}]}},
"learner_model_param": {"base_score": "5E-1", "num_class": "0", "num_feature": "2", "num_target": "1"},
"objective": {"name": "reg:squarederror"}}, "version": [3, 2, 0]}"#;

const LIGHTGBM: &str = "tree
version=v4
num_class=1
num_tree_per_iteration=1
label_index=0
max_feature_idx=1
objective=regression
feature_names=a b
feature_infos=[0:1] 0:1
tree_sizes=300

Tree=0
num_leaves=3
num_cat=1
split_feature=0 1
threshold=0.5 0
decision_type=2 1
left_child=1 -1
right_child=-3 -2
leaf_value=1 2 3
cat_boundaries=0 1
cat_threshold=10
is_linear=0
shrinkage=1

end of trees
";

fn refuse(format: Format, base: &str, table: &[(&str, &str, &str)]) {
    Model::from_bytes(base.as_bytes(), format).unwrap();
    for (from, to, expected) in table {
        assert!(base.contains(from), "{from} is not in the model");
        let changed = base.replacen(from, to, 1);
        let message = match Model::from_bytes(changed.as_bytes(), format) {
            Ok(_) => panic!("{from} -> {to} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(message.contains(expected), "{from} -> {to}: {message}");
    }
}

#[test]
fn unmodified_models_predict() {
    let rows = Rows::f32(&[0.4, 3.0, 0.4, 2.0, 0.5, 1.0], 3, 2).unwrap();
    let model = Model::from_bytes(XGBOOST.as_bytes(), Format::XgboostJson).unwrap();
    let values = model.predict(rows, Output::Predict).unwrap().values;
    assert_eq!(values, PredictionValues::F32(vec![3.5, 2.5, 1.5]));
    let model = Model::from_bytes(LIGHTGBM.as_bytes(), Format::LightgbmText).unwrap();
    let values = model.predict(rows, Output::Predict).unwrap().values;
    assert_eq!(values, PredictionValues::F64(vec![1.0, 2.0, 1.0]));
}

#[test]
fn broken_xgboost_models_are_rejected() {
    refuse(
        Format::XgboostJson,
        XGBOOST,
        &[
            ("[1, 3, -1, -1, -1]", "[1, 0, -1, -1, -1]", "tree 0, node 1: child 0 is reached twice"),
            ("[1, 3, -1, -1, -1]", "[2, 3, -1, -1, -1]", "tree 0, node 0: child 2 is reached twice"),
            ("[1, 3, -1, -1, -1]", "[0, 3, -1, -1, -1]", "tree 0, node 0: child 0 is reached twice"),
            (
                "[1, 3, -1, -1, -1]",
                "[1, 99, -1, -1, -1]",
                "child 99 is outside of the tree, which has 5 nodes",
            ),
            ("[1, 3, -1, -1, -1]", "[1, 3.5, -1, -1, -1]", "3.5 is not a child index"),
            ("[2, 4, -1, -1, -1]", "[2, -4, -1, -1, -1]", "-4 is not a child index"),
            ("[1, 3, -1, -1, -1]", "[1, 3, -77, -1, -1]", "tree 0, node 2: -77 is not a child index"),
            ("[1, 3, -1, -1, -1]", "[-77, 3, -1, -1, -1]", "tree 0, node 0: -77 is not a child index"),
            ("[1, 3, -1, -1, -1]", "[1, 3, -1, -1]", "but `left_children` has 4"),
            ("[1, 3, -1, -1, -1]", "[1, 3, -1, -1, \"x\"]", "expected a list of numbers"),
            ("[1, 3, -1, -1, -1]", "[]", "but `left_children` has 0"),
            ("[0, 1, 0, 0, 0]", "[2, 1, 0, 0, 0]", "splits on feature 2, but the model has 2"),
            ("[0, 1, 0, 0, 0]", "[-1, 1, 0, 0, 0]", "-1 is not a feature index"),
            ("[0, 1, 0, 0, 0]", "[1e30, 1, 0, 0, 0]", "is not a feature index"),
            ("[5E-1,", "[NaN,", "tree 0, node 0: the threshold is not a number"),
            ("[1, 3]", "[1, 16777216]", "a category is not a whole number in range"),
            ("[1, 3]", "[1, -3]", "a category is not a whole number in range"),
            ("\"categories_segments\": [0]", "\"categories_segments\": [1]", "outside of the list"),
            ("\"categories_segments\": [0]", "\"categories_segments\": [0, 1]", "differ in length"),
            ("\"categories_sizes\": [2]", "\"categories_sizes\": [4e9]", "outside of the list"),
            ("\"categories_sizes\": [2]", "\"categories_sizes\": [-1]", "outside of the list"),
            (
                "\"categories_nodes\": [1]",
                "\"categories_nodes\": [7]",
                "node 7: has categories, but is outside",
            ),
            ("\"categories_nodes\": [1]", "\"categories_nodes\": []", "no categories are listed"),
            (
                "\"num_nodes\": \"5\"",
                "\"num_nodes\": \"4000000000\"",
                "`num_nodes` is 4000000000, but there are 5",
            ),
            ("\"num_nodes\": \"5\"", "\"num_nodes\": \"-5\"", "expected a count"),
            ("\"size_leaf_vector\": \"1\"", "\"size_leaf_vector\": \"3\"", "3 values per leaf for 1 outputs"),
            ("\"tree_info\": [0]", "\"tree_info\": [1]", "belongs to an output that does not exist"),
            ("\"tree_info\": [0]", "\"tree_info\": [-1]", "belongs to an output that does not exist"),
            ("\"tree_info\": [0]", "\"tree_info\": [0, 0]", "has 2 entries for 1 trees"),
            ("\"num_class\": \"0\"", "\"num_class\": \"2000000000\"", "2000000000 outputs are more than"),
            ("\"num_class\": \"0\"", "\"num_class\": \"-2\"", "expected a count"),
            (
                "\"num_feature\": \"2\", \"num_target",
                "\"num_feature\": \"0\", \"num_target",
                "splits on feature 0",
            ),
            ("\"5E-1\"", "\"[1, 2]\"", "`base_score` has 2 values for 1 outputs"),
            ("\"5E-1\"", "\"abc\"", "`abc` is not a finite number"),
            ("\"5E-1\"", "\"inf\"", "is not a finite number"),
            ("reg:squarederror", "reg:unheard", "the objective `reg:unheard` is not known"),
            ("\"gbtree\", \"model\"", "\"gbforest\", \"model\"", "not one of gbtree, dart, gblinear"),
            (
                "\"gbtree\", \"model\"",
                "\"dart\", \"model\"",
                "learner.gradient_booster.weight_drop`: is missing",
            ),
            ("\"gbtree\", \"model\"", "\"gblinear\", \"model\"", "model.weights`: is missing"),
            ("\"learner\"", "\"lerner\"", "model field `learner`: is missing"),
            ("\"learner\"", "\"tree_info\"", "LightGBM's `dump_model`"),
        ],
    );
}

#[test]
fn broken_lightgbm_models_are_rejected() {
    refuse(
        Format::LightgbmText,
        LIGHTGBM,
        &[
            ("left_child=1 -1", "left_child=0 -1", "tree 0, node 0: child 0 is reached twice"),
            ("left_child=1 -1", "left_child=1 0", "tree 0, node 1: child 0 is reached twice"),
            ("left_child=1 -1", "left_child=1 -2", "is reached twice"),
            ("left_child=1 -1", "left_child=2 -1", "child 2 is outside of the tree, which has 3 leaves"),
            ("left_child=1 -1", "left_child=1 -4", "child -4 is outside of the tree"),
            ("left_child=1 -1", "left_child=1 -9223372036854775808", "is outside of the tree"),
            ("left_child=1 -1", "left_child=1", "line 18: `left_child` has 1 values, but 2 are needed"),
            ("left_child=1 -1\n", "", "`left_child` is missing"),
            ("split_feature=0 1", "split_feature=0 2", "splits on feature 2, but the model has 2"),
            ("split_feature=0 1", "split_feature=0 -1", "has the unusable value `-1`"),
            ("threshold=0.5 0", "threshold=nan 0", "tree 0, node 0: the threshold is not a number"),
            ("threshold=0.5 0", "threshold=0.5 1", "category set 1 does not exist"),
            ("threshold=0.5 0", "threshold=0.5 -1", "category set -1 does not exist"),
            ("decision_type=2 1", "decision_type=1 1", "category set 0.5 does not exist"),
            ("decision_type=2 1", "decision_type=12 1", "unknown treatment of missing values"),
            ("num_leaves=3", "num_leaves=0", "at least one leaf"),
            ("num_leaves=3", "num_leaves=-3", "`num_leaves` has the unusable value `-3`"),
            ("num_leaves=3", "num_leaves=4000000000", "`leaf_value` has 3 values, but 4000000000 are needed"),
            ("num_leaves=3", "num_leaves=18446744073709551615", "at least one leaf"),
            ("num_cat=1", "num_cat=18446744073709551615", "`cat_boundaries` has 2 values"),
            ("cat_boundaries=0 1", "cat_boundaries=1 0", "`cat_threshold` has 1 values, but 0 are needed"),
            ("cat_boundaries=0 1", "cat_boundaries=9 1", "`cat_boundaries` do not ascend"),
            ("is_linear=0", "is_linear=1", "`leaf_const` is missing"),
            (
                "is_linear=0",
                "is_linear=1\nleaf_const=1 2 3\nnum_features=1 0 0\nleaf_features=7\nleaf_coeff=1",
                "splits on feature 7",
            ),
            (
                "is_linear=0",
                "is_linear=1\nleaf_const=1 2 3\nnum_features=18446744073709551615 1 0\nleaf_features=\nleaf_coeff=",
                "`num_features` add up to too much",
            ),
            ("Tree=0", "Tree=1", "expected `Tree=0`"),
            ("num_tree_per_iteration=1", "num_tree_per_iteration=0", "is 0, which does not fit 1 trees"),
            ("num_tree_per_iteration=1", "num_tree_per_iteration=3", "no multiple of it"),
            ("num_tree_per_iteration=1", "num_tree_per_iteration=4000000000", "does not fit 1 trees"),
            ("max_feature_idx=1", "max_feature_idx=-1", "unusable value `-1`"),
            ("max_feature_idx=1", "max_feature_idx=18446744073709551615", "is not a feature index"),
            ("max_feature_idx=1", "max_feature_idx=7", "`feature_names` has 2 names for 8 features"),
            ("objective=regression", "objective=unheard", "`unheard` is not known"),
            ("objective=regression", "objective=binary sigmoid:-1", "`-1` is not a positive sigmoid"),
            ("version=v4", "version=v9", "is `v9`, but only v2, v3 and v4"),
            ("shrinkage=1", "num_leaves=3", "`num_leaves` appears twice in one block"),
            ("end of trees", "", "it is cut off"),
        ],
    );
}

#[test]
fn deepest_possible_chain_is_evaluated() {
    let splits = 100_000;
    let list =
        |value: &dyn Fn(usize) -> String, count: usize| (0..count).map(value).collect::<Vec<_>>().join(" ");
    let text = LIGHTGBM
        .replace("num_leaves=3\nnum_cat=1", &format!("num_leaves={}\nnum_cat=0", splits + 1))
        .replace("split_feature=0 1", &format!("split_feature={}", list(&|_| "0".into(), splits)))
        .replace("threshold=0.5 0", &format!("threshold={}", list(&|at| at.to_string(), splits)))
        .replace("decision_type=2 1", &format!("decision_type={}", list(&|_| "2".into(), splits)))
        .replace(
            "left_child=1 -1",
            &format!("left_child={}", list(&|at| (-1 - at as i64).to_string(), splits)),
        )
        .replace("right_child=-3 -2", &{
            let child = |at: usize| {
                if at + 1 < splits { (at + 1).to_string() } else { (-1 - splits as i64).to_string() }
            };
            format!("right_child={}", list(&child, splits))
        })
        .replace("leaf_value=1 2 3", &format!("leaf_value={}", list(&|at| at.to_string(), splits + 1)));
    let model = Model::from_bytes(text.as_bytes(), Format::LightgbmText).unwrap();
    let rows = [-5.0, 0.0, 77_777.5, 0.0, 1e9, 0.0];
    let prediction = model.predict(Rows::f64(&rows, 3, 2).unwrap(), Output::Predict).unwrap();
    assert_eq!(prediction.values, PredictionValues::F64(vec![0.0, 77_778.0, 100_000.0]));
}

#[test]
fn one_huge_category_costs_little_memory() {
    let text = XGBOOST.replacen("[1, 3]", "[1, 16777215]", 1);
    let model = Model::from_bytes(text.as_bytes(), Format::XgboostJson).unwrap();
    assert!(model.memory_bytes() < 10_000, "{}", model.memory_bytes());
    let rows = Rows::f32(&[0.4, 16_777_215.0, 0.4, 3.0], 2, 2).unwrap();
    let values = model.predict(rows, Output::Predict).unwrap().values;
    assert_eq!(values, PredictionValues::F32(vec![3.5, 2.5]));
}

#[test]
fn broken_ensembles_are_rejected() {
    let split =
        |node, true_node, false_node| NodeSpec { true_node, false_node, ..NodeSpec::new(0, node, Mode::Leq) };
    let leaf = |node| NodeSpec::new(0, node, Mode::Leaf);
    let weight = |node, target| WeightSpec { tree: 0, node, target, weight: 1.0 };
    let table: Vec<(Vec<NodeSpec>, Vec<WeightSpec>, &str)> = vec![
        (vec![split(0, 1, 0), leaf(1)], vec![], "the tree has no root"),
        (vec![split(0, 1, 2), split(1, 0, 2), leaf(2)], vec![], "the tree has no root"),
        (vec![split(0, 1, 2), split(1, 1, 2), leaf(2)], vec![], "is reached twice"),
        (vec![split(0, 1, 1), leaf(1)], vec![], "is reached twice"),
        (vec![split(0, 1, 9), leaf(1)], vec![], "child 9 does not exist"),
        (vec![split(0, 1, -1), leaf(1)], vec![], "child -1 does not exist"),
        (vec![split(0, 1, 2), leaf(1), leaf(2), leaf(3)], vec![], "the tree has two roots"),
        (vec![split(0, 1, 2), leaf(1), leaf(2), leaf(2)], vec![], "node id 2 is used twice"),
        (vec![NodeSpec { feature: -1, ..split(0, 1, 2) }, leaf(1), leaf(2)], vec![], "-1 is not a feature"),
        (vec![NodeSpec { feature: 1 << 40, ..split(0, 1, 2) }, leaf(1), leaf(2)], vec![], "is not a feature"),
        (vec![NodeSpec { threshold: f64::NAN, ..split(0, 1, 2) }, leaf(1), leaf(2)], vec![], "not a number"),
        (vec![leaf(0)], vec![weight(0, 1)], "weights[0]`: target 1 is not below 1"),
        (vec![leaf(0)], vec![weight(0, -1)], "target -1 is not below 1"),
        (vec![leaf(0)], vec![weight(4, 0)], "node 4 of tree 0 does not exist"),
    ];
    for (nodes, weights, expected) in table {
        let mut builder = Builder::new(1);
        for node in &nodes {
            builder.node(*node);
        }
        for weight in &weights {
            builder.weight(*weight);
        }
        let message = builder.build().unwrap_err().to_string();
        assert!(message.contains(expected), "{message} for {nodes:?}");
    }
    assert!(Builder::new(0).build().is_err());
    assert!(Builder::new(2).base_values(&[1.0]).build().is_err());
}
