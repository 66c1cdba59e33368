//! Random LightGBM models predict the same as a naive implementation of the library's rules.

use std::fmt::Write;

use gantry_trees::{Format, Model, Output, PredictionValues, Rows};
use proptest::prelude::*;

use crate::random::{Random, cases};

/// Around the border of what counts as zero, which is a single-precision constant.
const ZERO: f64 = 1e-35_f32 as f64;
const VALUES: [f64; 14] =
    [-2.0, -1.0, -0.5, -ZERO, -1e-36, 0.0, 1e-36, ZERO, 1.1e-35, 0.1, 1.0, 3.7, 40.0, 1e300];

#[derive(Debug)]
enum Tree {
    Leaf(usize),
    Split { feature: usize, threshold: f64, kind: u8, set: Vec<u32>, left: Box<Tree>, right: Box<Tree> },
}

fn grow(random: &mut Random, features: usize, depth: usize, leaves: &mut usize) -> Tree {
    if depth == 0 || random.chance(15) {
        *leaves += 1;
        return Tree::Leaf(*leaves - 1);
    }
    let categorical = random.chance(25);
    let kind = if categorical { 1 } else { random.pick(&[0, 2, 4, 6, 8, 10]) };
    let set = (0..=random.below(2)).map(|_| random.below(1 << 16) as u32 | 1 << 8).collect();
    Tree::Split {
        feature: random.below(features),
        threshold: random.pick(&VALUES),
        kind,
        set: if categorical { set } else { Vec::new() },
        left: Box::new(grow(random, features, depth - 1, leaves)),
        right: Box::new(grow(random, features, depth - 1, leaves)),
    }
}

impl Tree {
    fn leaf(&self, row: &[f64]) -> usize {
        let (feature, threshold, kind, set, left, right) = match self {
            Tree::Leaf(leaf) => return *leaf,
            Tree::Split { feature, threshold, kind, set, left, right } => {
                (*feature, *threshold, *kind, set, left, right)
            }
        };
        // The library's reader of dense rows drops values around zero.
        let mut value = if row[feature].abs() <= ZERO { 0.0 } else { row[feature] };
        let goes_left = if kind & 1 == 1 {
            let whole = value.trunc();
            whole >= 0.0
                && set.get(whole as usize / 32).is_some_and(|word| word >> (whole as u32 % 32) & 1 == 1)
        } else {
            let missing_type = kind >> 2;
            if value.is_nan() && missing_type != 2 {
                value = 0.0;
            }
            if missing_type == 1 && value.abs() <= ZERO || missing_type == 2 && value.is_nan() {
                kind & 2 != 0
            } else {
                value <= threshold
            }
        };
        if goes_left { left.leaf(row) } else { right.leaf(row) }
    }

    /// Numbers the splits in pre-order and returns the spelling of this child.
    fn spell(&self, out: &mut Spelling) -> i64 {
        match self {
            Tree::Leaf(leaf) => -1 - *leaf as i64,
            Tree::Split { feature, threshold, kind, set, left, right } => {
                let at = out.features.len();
                out.features.push(feature.to_string());
                out.kinds.push(kind.to_string());
                if *kind & 1 == 1 {
                    out.thresholds.push((out.boundaries.len() - 1).to_string());
                    out.words.extend(set.iter().map(u32::to_string));
                    out.boundaries.push(out.words.len().to_string());
                } else {
                    out.thresholds.push(format!("{threshold:e}"));
                }
                out.lefts.push(String::new());
                out.rights.push(String::new());
                out.lefts[at] = left.spell(out).to_string();
                out.rights[at] = right.spell(out).to_string();
                at as i64
            }
        }
    }
}

#[derive(Default)]
struct Spelling {
    features: Vec<String>,
    thresholds: Vec<String>,
    kinds: Vec<String>,
    lefts: Vec<String>,
    rights: Vec<String>,
    boundaries: Vec<String>,
    words: Vec<String>,
}

fn spell_tree(number: usize, tree: &Tree, values: &[f64]) -> String {
    let mut out = Spelling { boundaries: vec!["0".into()], ..Spelling::default() };
    tree.spell(&mut out);
    let mut text =
        format!("Tree={number}\nnum_leaves={}\nnum_cat={}\n", values.len(), out.boundaries.len() - 1);
    let values: Vec<String> = values.iter().map(f64::to_string).collect();
    let mut lines = vec![("leaf_value", &values)];
    if values.len() > 1 {
        lines.extend([
            ("split_feature", &out.features),
            ("threshold", &out.thresholds),
            ("decision_type", &out.kinds),
            ("left_child", &out.lefts),
            ("right_child", &out.rights),
        ]);
    }
    if out.boundaries.len() > 1 {
        lines.extend([("cat_boundaries", &out.boundaries), ("cat_threshold", &out.words)]);
    }
    for (key, values) in lines {
        writeln!(text, "{key}={}", values.join(" ")).unwrap();
    }
    text + "shrinkage=1\n\n\n"
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn predictions_match_the_naive_implementation(seed: u64, count in 1_usize..70, single: bool) {
        let mut random = Random::new(seed);
        let (features, trees) = (1 + random.below(4), 1 + random.below(6));
        let mut text = format!(
            "tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={}\n\n",
            features - 1
        );
        let mut ensemble = Vec::new();
        for number in 0..trees {
            let mut leaves = 0;
            let depth = random.below(8);
            let tree = grow(&mut random, features, depth, &mut leaves);
            let values: Vec<f64> = (0..leaves).map(|_| random.below(1000) as f64 / 300.0).collect();
            text += &spell_tree(number, &tree, &values);
            ensemble.push((tree, values));
        }
        text += "end of trees\n";
        let model = Model::from_bytes(text.as_bytes(), Format::LightgbmText).unwrap();
        let input: Vec<f64> = (0..count * features)
            .map(|_| if random.chance(10) { f64::NAN } else { random.pick(&VALUES) })
            .map(|value| if single { f64::from(value as f32) } else { value })
            .collect();
        let singles: Vec<f32> = input.iter().map(|value| *value as f32).collect();
        let rows = if single {
            Rows::f32(&singles, count, features)
        } else {
            Rows::f64(&input, count, features)
        };
        let expected: Vec<f64> = input
            .chunks(features)
            .map(|row| ensemble.iter().fold(0.0, |sum, (tree, values)| sum + values[tree.leaf(row)]))
            .collect();
        let prediction = model.predict(rows.unwrap(), Output::Predict).unwrap();
        prop_assert_eq!(prediction.values, PredictionValues::F64(expected));
    }
}
