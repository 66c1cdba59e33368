//! Tree ensembles, on the evaluator of `gantry-trees`.

use super::post_transform::{Labels, Post, Second, argmax, probit};
use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value};
use gantry_tensor::Elements;
use gantry_trees::onnx_ensemble::{
    Aggregate, Builder, Ensemble, Mode, NodeSpec, Precision, Scores, WeightSpec,
};
use gantry_trees::{PredictError, Rows};

/// The operators of this file.
pub(super) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "TreeEnsembleClassifier" => classifier(node)?,
        "TreeEnsembleRegressor" => regressor(node)?,
        "TreeEnsemble" => ensemble(node)?,
        _ => return Ok(None),
    }))
}

/// A list attribute that may also be given as a tensor of doubles.
fn reals(node: &Node<'_>, name: &str) -> Result<(Vec<f64>, bool), OpError> {
    if let Some(tensor) = node.tensor(&format!("{name}_as_tensor"))? {
        let double = matches!(tensor.data, Elements::Fp64(_));
        let values =
            tensor.data.to_f64().ok_or_else(|| OpError::attribute(name, "is not a tensor of numbers"))?;
        return Ok((values.into_owned(), double));
    }
    Ok((node.floats(name)?.iter().map(|&v| f64::from(v)).collect(), false))
}

/// An attribute list that must be as long as the others.
struct Columns<'a> {
    length: usize,
    node: &'a Node<'a>,
}

impl<'a> Columns<'a> {
    fn ints(&self, name: &str) -> Result<&'a [i64], OpError> {
        let values = self.node.ints(name)?;
        self.check(name, values.len())?;
        Ok(values)
    }

    fn check(&self, name: &str, length: usize) -> Result<(), OpError> {
        if length == self.length {
            return Ok(());
        }
        Err(OpError::attribute(name, format!("has {length} values where {} are needed", self.length)))
    }
}

fn mode(name: &[u8]) -> Result<Mode, OpError> {
    std::str::from_utf8(name)
        .ok()
        .and_then(Mode::from_name)
        .ok_or_else(|| OpError::attribute("nodes_modes", format!("has {:?}", String::from_utf8_lossy(name))))
}

/// Reads the `nodes_*` attributes. Returns whether thresholds are doubles.
fn nodes(node: &Node<'_>, builder: &mut Builder) -> Result<bool, OpError> {
    let modes = node.texts("nodes_modes")?;
    if modes.is_empty() {
        return Err(OpError::attribute("nodes_modes", "is missing: there are no trees"));
    }
    let list = Columns { length: modes.len(), node };
    let (trees, ids, features) =
        (list.ints("nodes_treeids")?, list.ints("nodes_nodeids")?, list.ints("nodes_featureids")?);
    let (yes, no) = (list.ints("nodes_truenodeids")?, list.ints("nodes_falsenodeids")?);
    let missing = node.ints("nodes_missing_value_tracks_true")?;
    if !missing.is_empty() {
        list.check("nodes_missing_value_tracks_true", missing.len())?;
    }
    let (thresholds, double) = reals(node, "nodes_values")?;
    list.check("nodes_values", thresholds.len())?;
    let columns = modes.iter().zip(trees.iter().zip(ids)).zip(features.iter().zip(&thresholds));
    for (i, (((name, (&tree, &id)), (&feature, &threshold)), (&true_node, &false_node))) in
        columns.zip(yes.iter().zip(no)).enumerate()
    {
        let mode = mode(name)?;
        if mode != Mode::Leaf && (true_node == id || false_node == id) {
            return Err(OpError::attribute(
                "nodes_truenodeids",
                format!("or nodes_falsenodeids leads from node {id} of tree {tree} to itself"),
            ));
        }
        builder.node(NodeSpec {
            tree,
            node: id,
            mode,
            feature,
            threshold,
            true_node,
            false_node,
            missing_tracks_true: missing.get(i).is_some_and(|&m| m != 0),
        });
    }
    Ok(double)
}

/// Reads `target_*` or `class_*`. Returns the weights and whether they are doubles.
fn weights(node: &Node<'_>, prefix: &str, builder: &mut Builder) -> Result<(Vec<WeightSpec>, bool), OpError> {
    let (values, double) = reals(node, &format!("{prefix}_weights"))?;
    let list = Columns { length: values.len(), node };
    let trees = list.ints(&format!("{prefix}_treeids"))?;
    let ids = list.ints(&format!("{prefix}_nodeids"))?;
    let targets = list.ints(&format!("{prefix}_ids"))?;
    let specs: Vec<WeightSpec> = values
        .iter()
        .zip(targets)
        .zip(trees.iter().zip(ids))
        .map(|((&weight, &target), (&tree, &node))| WeightSpec { tree, node, target, weight })
        .collect();
    for &spec in &specs {
        builder.weight(spec);
    }
    Ok((specs, double))
}

fn finish(builder: &mut Builder, double: bool) -> Result<Ensemble, OpError> {
    if double {
        builder.precision(Precision::Double);
    }
    builder.build().map_err(|e| OpError::Value(e.to_string()))
}

/// Scores of all rows, one after another.
fn scores(ensemble: &Ensemble, args: &Args<'_>) -> Result<(usize, Scores), OpError> {
    let x = args.get(0)?;
    let (rows, columns) = x.rows()?;
    args.room(&[rows, ensemble.targets()])?;
    let fault = |e: PredictError| match e {
        PredictError::Stopped => args.watch.error(),
        other => OpError::Shape(other.to_string()),
    };
    let stop = args.watch.stop();
    let scores = match x.data {
        Elements::Fp64(v) => ensemble.scores_until(Rows::f64(v, rows, columns).map_err(fault)?, 1, &stop),
        _ => ensemble.scores_until(Rows::f32(&x.floats()?, rows, columns).map_err(fault)?, 1, &stop),
    };
    Ok((rows, scores.map_err(fault)?))
}

fn single(scores: Scores) -> Vec<f32> {
    match scores {
        Scores::F32(v) => v,
        Scores::F64(v) => v.into_iter().map(|s| s as f32).collect(),
    }
}

fn regressor(node: &Node<'_>) -> Result<Kernel, OpError> {
    let targets = usize::try_from(node.int("n_targets", 1)?)
        .map_err(|_| OpError::attribute("n_targets", "is negative"))?;
    let mut builder = Builder::new(targets);
    builder.aggregate(aggregate(node.text("aggregate_function", "SUM")?)?);
    let double = nodes(node, &mut builder)?;
    let (_, double_weights) = weights(node, "target", &mut builder)?;
    let (base, _) = reals(node, "base_values")?;
    builder.base_values(&base);
    let ensemble = finish(&mut builder, double || double_weights)?;
    let post = Post::of(node)?;
    Ok(Box::new(move |args| {
        let (rows, scores) = scores(&ensemble, args)?;
        let mut scores = single(scores);
        regression_post(post, &mut scores, targets);
        Ok(vec![Value::f32([rows, targets], scores)])
    }))
}

/// A single target knows no other transform than the probit.
fn regression_post(post: Post, scores: &mut [f32], targets: usize) {
    if targets > 1 {
        post.apply_rows(scores, targets);
    } else if post == Post::Probit {
        for s in scores.iter_mut() {
            *s = probit(*s);
        }
    }
}

fn aggregate(name: &str) -> Result<Aggregate, OpError> {
    Ok(match name {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return Err(OpError::attribute("aggregate_function", format!("is {other:?}"))),
    })
}

/// The parts of a classifier that turn scores into labels.
struct Classes {
    labels: Labels,
    base: Vec<f32>,
    post: Post,
    /// By class: whether any leaf has a weight for it.
    scored: Vec<bool>,
    all_positive: bool,
}

fn classifier(node: &Node<'_>) -> Result<Kernel, OpError> {
    let labels = Labels::of(node, "classlabels_int64s", "classlabels_strings")?;
    let count = labels.len();
    if count == 0 {
        return Err(OpError::attribute("classlabels", "is missing"));
    }
    // One label only: the score still belongs to two classes, and the label is the positive one.
    let mut builder = Builder::new(count.max(1));
    let double = nodes(node, &mut builder)?;
    let (specs, double_weights) = weights(node, "class", &mut builder)?;
    let mut scored = vec![false; count];
    for spec in &specs {
        if let Some(flag) = usize::try_from(spec.target).ok().and_then(|t| scored.get_mut(t)) {
            *flag = true;
        }
    }
    let (base, _) = reals(node, "base_values")?;
    let base: Vec<f32> = base.into_iter().map(|b| b as f32).collect();
    if !base.is_empty() && base.len() != count && !(base.len() == 1 && count == 2) {
        return Err(OpError::attribute(
            "base_values",
            format!("has {} values for {count} classes", base.len()),
        ));
    }
    let ensemble = finish(&mut builder, double || double_weights)?;
    let classes = Classes {
        labels,
        base,
        post: Post::of(node)?,
        scored,
        all_positive: specs.iter().all(|w| w.weight >= 0.0),
    };
    Ok(Box::new(move |args| {
        let (rows, scores) = scores(&ensemble, args)?;
        classes.finish(single(scores), rows)
    }))
}

impl Classes {
    fn finish(&self, mut scores: Vec<f32>, rows: usize) -> Result<Vec<Value>, OpError> {
        let count = self.labels.len();
        let chosen: Vec<usize> = if count == 2 {
            scores.chunks_mut(2).map(|row| self.binary(row)).collect()
        } else {
            scores.chunks_mut(count).map(|row| self.many(row)).collect()
        };
        Ok(vec![self.labels.values(&chosen)?, Value::f32([rows, count], scores)])
    }

    fn many(&self, row: &mut [f32]) -> usize {
        for (s, b) in row.iter_mut().zip(&self.base) {
            *s += b;
        }
        let class = if self.base.is_empty() && self.scored.contains(&false) {
            // A class without weights has no score, not the score zero.
            let mut best: Option<(usize, f32)> = None;
            for (i, (&s, _)) in row.iter().zip(&self.scored).enumerate().filter(|(_, (_, known))| **known) {
                if best.is_none_or(|(_, top)| s > top) {
                    best = Some((i, s));
                }
            }
            best.map_or(0, |(i, _)| i)
        } else {
            argmax(row)
        };
        self.post.apply(row);
        class
    }

    /// Two classes: often only one has weights, and the other score follows from it.
    fn binary(&self, row: &mut [f32]) -> usize {
        let [first, second] = row else { return 0 };
        let one_sided = self.scored != [true, true];
        if !one_sided {
            if let &[a, b] = self.base.as_slice() {
                *first += a;
                *second += b;
            } else if let &[a] = self.base.as_slice() {
                *first += a;
            }
            let class = usize::from(*second > *first);
            self.post.apply(row);
            return class;
        }
        // Weights of only one class are those of the positive one, whatever its number.
        let base = self.base.last().copied().unwrap_or(0.0);
        let score = *first + *second + base;
        let (class, rule) = if self.all_positive {
            (usize::from(score > 0.5), Second::Complement)
        } else {
            (usize::from(score > 0.0), Second::Mirror)
        };
        if self.post == Post::Probit {
            (*first, *second) = (probit(score), 0.0);
        } else {
            [*first, *second] = rule.apply(score, self.post);
        }
        class
    }
}

/// The operator that replaced the other two in version 5 of the operator set.
fn ensemble(node: &Node<'_>) -> Result<Kernel, OpError> {
    let targets = usize::try_from(node.int("n_targets", 1)?)
        .map_err(|_| OpError::attribute("n_targets", "is negative"))?;
    let mut builder = Builder::new(targets);
    builder.aggregate(match node.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return Err(OpError::attribute("aggregate_function", format!("is {other}"))),
    });
    let splits =
        node.tensor("nodes_splits")?.ok_or_else(|| OpError::attribute("nodes_splits", "is missing"))?;
    let double = matches!(splits.data, Elements::Fp64(_));
    trees_of_ensemble(node, &splits, &mut builder)?;
    let compiled = finish(&mut builder, double)?;
    let post = match node.int("post_transform", 0)? {
        0 => Post::None,
        1 => Post::Softmax,
        2 => Post::Logistic,
        3 => Post::SoftmaxZero,
        4 => Post::Probit,
        other => return Err(OpError::attribute("post_transform", format!("is {other}"))),
    };
    Ok(Box::new(move |args| {
        let (rows, scores) = scores(&compiled, args)?;
        let data = match scores {
            Scores::F64(v) if post == Post::None => Elements::Fp64(v),
            other => {
                let wide = matches!(other, Scores::F64(_));
                let mut scores = single(other);
                regression_post(post, &mut scores, targets);
                if wide {
                    Elements::Fp64(scores.into_iter().map(f64::from).collect())
                } else {
                    Elements::Fp32(scores)
                }
            }
        };
        Ok(vec![Value::new([rows, targets], data)])
    }))
}

/// In `TreeEnsemble`, children are indices of nodes or of leaves, and trees are identified by their roots.
fn trees_of_ensemble(node: &Node<'_>, splits: &Value, builder: &mut Builder) -> Result<(), OpError> {
    let splits = splits.data.to_f64().unwrap_or_default();
    let list = Columns { length: splits.len(), node };
    let modes = node
        .tensor("nodes_modes")?
        .and_then(|t| match t.data {
            Elements::Uint8(v) => Some(v),
            _ => None,
        })
        .ok_or_else(|| OpError::attribute("nodes_modes", "is missing or not UINT8"))?;
    list.check("nodes_modes", modes.len())?;
    let features = list.ints("nodes_featureids")?;
    let (yes, yes_leaf) = (list.ints("nodes_truenodeids")?, list.ints("nodes_trueleafs")?);
    let (no, no_leaf) = (list.ints("nodes_falsenodeids")?, list.ints("nodes_falseleafs")?);
    let missing = node.ints("nodes_missing_value_tracks_true")?;
    let leaf_targets = node.ints("leaf_targetids")?;
    let leaf_weights = node
        .tensor("leaf_weights")?
        .and_then(|t| t.data.to_f64().map(std::borrow::Cow::into_owned))
        .ok_or_else(|| OpError::attribute("leaf_weights", "is missing"))?;
    if leaf_weights.len() != leaf_targets.len() {
        return Err(OpError::attribute("leaf_targetids", "is not as long as leaf_weights"));
    }
    let inner = splits.len() as i64;
    // Every node may be reached once over all trees, so that shared nodes and cycles end the walk.
    let mut left = splits.len() + leaf_weights.len();
    for (tree, &root) in node.ints("tree_roots")?.iter().enumerate() {
        let tree = tree as i64;
        let mut open = vec![(root, false)];
        while let Some((at, leaf)) = open.pop() {
            left = left.checked_sub(1).ok_or_else(|| {
                OpError::attribute("tree_roots", "leads to one node twice: these are not trees")
            })?;
            let outside = || OpError::attribute("tree_roots", format!("leads to {at}, which does not exist"));
            let i = usize::try_from(at).map_err(|_| outside())?;
            if leaf {
                let (&target, &weight) = leaf_targets.get(i).zip(leaf_weights.get(i)).ok_or_else(outside)?;
                let id = inner + at;
                builder.node(NodeSpec::new(tree, id, Mode::Leaf));
                builder.weight(WeightSpec { tree, node: id, target, weight });
                continue;
            }
            let (&split, &code) = splits.get(i).zip(modes.get(i)).ok_or_else(outside)?;
            let get = |values: &[i64]| values.get(i).copied().unwrap_or(0);
            let (yes, yes_leaf) = (get(yes), get(yes_leaf) != 0);
            let (no, no_leaf) = (get(no), get(no_leaf) != 0);
            let id = |child: i64, leaf: bool| if leaf { inner.saturating_add(child) } else { child };
            builder.node(NodeSpec {
                tree,
                node: at,
                mode: numbered_mode(code)?,
                feature: get(features),
                threshold: split,
                true_node: id(yes, yes_leaf),
                false_node: id(no, no_leaf),
                missing_tracks_true: missing.get(i).is_some_and(|&m| m != 0),
            });
            // A stump without a decision is written as a split with one leaf twice.
            if (yes, yes_leaf) == (no, no_leaf) {
                return Err(OpError::attribute(
                    "nodes_truenodeids",
                    "and nodes_falsenodeids are the same node",
                ));
            }
            open.extend([(yes, yes_leaf), (no, no_leaf)]);
        }
    }
    Ok(())
}

fn numbered_mode(code: u8) -> Result<Mode, OpError> {
    Ok(match code {
        0 => Mode::Leq,
        1 => Mode::Lt,
        2 => Mode::Gte,
        3 => Mode::Gt,
        4 => Mode::Eq,
        5 => Mode::Neq,
        other => {
            return Err(OpError::attribute("nodes_modes", format!("has {other}, which is not supported")));
        }
    })
}
