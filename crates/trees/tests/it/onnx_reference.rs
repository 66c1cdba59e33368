//! Random ensembles score the same as a naive recursive evaluator.

use gantry_trees::Rows;
use gantry_trees::onnx_ensemble::{Aggregate, Builder, Mode, NodeSpec, Precision, Scores, WeightSpec};
use proptest::prelude::*;

use crate::random::{Random, cases};

/// Few distinct values, so that inputs often equal thresholds.
const VALUES: [f64; 9] = [-1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 3.0, f64::INFINITY, f64::NEG_INFINITY];
const MODES: [Mode; 6] = [Mode::Leq, Mode::Lt, Mode::Gt, Mode::Gte, Mode::Eq, Mode::Neq];

struct Ensemble {
    nodes: Vec<NodeSpec>,
    weights: Vec<WeightSpec>,
    trees: usize,
    targets: usize,
    features: usize,
    aggregate: Aggregate,
    base: Vec<f64>,
    double: bool,
}

fn generate(random: &mut Random) -> Ensemble {
    let (targets, features, trees) = (1 + random.below(3), 1 + random.below(6), random.below(12));
    let aggregate = random.pick(&[Aggregate::Sum, Aggregate::Average, Aggregate::Min, Aggregate::Max]);
    let base =
        if random.chance(50) { (0..targets).map(|at| at as f64 * 0.25 - 0.1).collect() } else { Vec::new() };
    let double = random.chance(30);
    let mut ensemble =
        Ensemble { nodes: vec![], weights: vec![], trees, targets, features, aggregate, base, double };
    let modes: &[Mode] = if random.chance(50) { &MODES[..1] } else { &MODES };
    // Whether leaves have one weight, one per target, or any number.
    let shape = random.below(3);
    for tree in 0..trees {
        let id = tree as i64 * 3 + 1;
        let depth = random.below(9);
        grow(&mut ensemble, random, id, 0, depth, modes, shape);
        // Every tree has a node 0, which is the root.
    }
    ensemble
}

fn grow(
    ensemble: &mut Ensemble,
    random: &mut Random,
    tree: i64,
    node: i64,
    depth: usize,
    modes: &[Mode],
    shape: usize,
) {
    if depth == 0 || random.chance(20) {
        ensemble.nodes.push(NodeSpec::new(tree, node, Mode::Leaf));
        let count = [1, ensemble.targets, random.below(4)][shape];
        for index in 0..count {
            let target = match shape {
                0 => tree as usize % ensemble.targets,
                1 => index,
                _ => random.below(ensemble.targets),
            };
            let weight = random.below(2000) as f64 / 700.0 - 1.0;
            ensemble.weights.push(WeightSpec { tree, node, target: target as i64, weight });
        }
        return;
    }
    let (true_node, false_node) = (node * 2 + 1, node * 2 + 2);
    ensemble.nodes.push(NodeSpec {
        feature: random.below(ensemble.features) as i64,
        threshold: random.pick(&VALUES),
        missing_tracks_true: random.chance(50),
        true_node,
        false_node,
        ..NodeSpec::new(tree, node, random.pick(modes))
    });
    grow(ensemble, random, tree, true_node, depth - 1, modes, shape);
    grow(ensemble, random, tree, false_node, depth - 1, modes, shape);
}

impl Ensemble {
    fn leaf(&self, tree: i64, node: i64, row: &[f64]) -> i64 {
        let at = self.nodes.iter().find(|at| at.tree == tree && at.node == node).unwrap();
        let value = at.feature as usize;
        let (value, threshold) =
            (row[value], if self.double { at.threshold } else { f64::from(at.threshold as f32) });
        let answer = match at.mode {
            Mode::Leaf => return node,
            Mode::Leq => value <= threshold,
            Mode::Lt => value < threshold,
            Mode::Gt => value > threshold,
            Mode::Gte => value >= threshold,
            Mode::Eq => value == threshold,
            Mode::Neq => value != threshold,
        };
        let answer = answer || value.is_nan() && at.missing_tracks_true;
        self.leaf(tree, if answer { at.true_node } else { at.false_node }, row)
    }

    /// Scores of one row in the type `F`, which is how both precisions are checked without tolerance.
    fn score<F>(&self, row: &[f64], zero: F, cast: impl Fn(f64) -> F, add: impl Fn(F, F) -> F) -> Vec<F>
    where
        F: Copy + PartialOrd + std::ops::Div<Output = F>,
    {
        let mut scores: Vec<Option<F>> = vec![None; self.targets];
        for tree in 0..self.trees {
            let tree = tree as i64 * 3 + 1;
            let leaf = self.leaf(tree, 0, row);
            for weight in self.weights.iter().filter(|weight| weight.tree == tree && weight.node == leaf) {
                let score = &mut scores[weight.target as usize];
                let new = cast(weight.weight);
                *score = Some(match (*score, self.aggregate) {
                    (None, Aggregate::Sum | Aggregate::Average) => add(zero, new),
                    (None, Aggregate::Min | Aggregate::Max) => new,
                    (Some(old), Aggregate::Sum | Aggregate::Average) => add(old, new),
                    (Some(old), Aggregate::Min) => {
                        if new < old {
                            new
                        } else {
                            old
                        }
                    }
                    (Some(old), Aggregate::Max) => {
                        if new > old {
                            new
                        } else {
                            old
                        }
                    }
                });
            }
        }
        let finish = |(target, score): (usize, &Option<F>)| {
            let mut score = score.unwrap_or(zero);
            if self.aggregate == Aggregate::Average && self.trees > 0 {
                score = score / cast(self.trees as f64);
            }
            self.base.get(target).map_or(score, |base| add(score, cast(*base)))
        };
        scores.iter().enumerate().map(finish).collect()
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn scores_match_a_recursive_walk(seed: u64, rows in 0_usize..80, threads in 1_usize..4) {
        let mut random = Random::new(seed);
        let ensemble = generate(&mut random);
        let precision = if ensemble.double { Precision::Double } else { Precision::Single };
        let mut builder = Builder::new(ensemble.targets);
        builder.aggregate(ensemble.aggregate).base_values(&ensemble.base).precision(precision);
        for node in &ensemble.nodes {
            builder.node(*node);
        }
        for weight in &ensemble.weights {
            builder.weight(*weight);
        }
        let built = builder.build().unwrap();
        prop_assert!(built.features() <= ensemble.features);
        prop_assert_eq!(built.trees(), ensemble.trees);
        let missing = if random.chance(50) { 15 } else { 0 };
        let input: Vec<f64> = (0..rows * ensemble.features)
            .map(|_| if random.chance(missing) { f64::NAN } else { random.pick(&VALUES) })
            .collect();
        if ensemble.double {
            let view = Rows::f64(&input, rows, ensemble.features).unwrap();
            let Scores::F64(scores) = built.scores(view, threads).unwrap() else { panic!("wrong type") };
            let expected = input.chunks(ensemble.features).flat_map(|row| {
                ensemble.score(row, 0.0, |value| value, |a, b| a + b)
            });
            prop_assert_eq!(scores, expected.collect::<Vec<f64>>());
        } else {
            let input: Vec<f32> = input.iter().map(|value| *value as f32).collect();
            let view = Rows::f32(&input, rows, ensemble.features).unwrap();
            let Scores::F32(scores) = built.scores(view, threads).unwrap() else { panic!("wrong type") };
            let expected = input.chunks(ensemble.features).flat_map(|row| {
                let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
                ensemble.score(&row, 0.0_f32, |value| value as f32, |a, b| a + b)
            });
            prop_assert_eq!(scores, expected.collect::<Vec<f32>>());
        }
    }
}
