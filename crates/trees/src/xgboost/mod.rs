//! XGBoost models: JSON and UBJSON files, tree and linear boosters.

mod document;
mod json;
mod objective;
mod trees;
mod ubjson;

use document::{At, Doc};
pub(crate) use objective::arg_max;
use objective::{Objective, Transform, sigmoid, softmax};

use crate::error::ParseError;
use crate::forest::{Execution, Forest, LeafIds, ScalarLeaves, VectorLeaves, run};
use crate::rows::{Rows, Values};

/// Outputs that a model may have whatever its size; more must be backed by trees or weights.
const FREE_OUTPUTS: usize = 4096;

/// A model that was proven sound.
#[derive(Debug, Clone)]
pub(crate) struct XgboostModel {
    pub(crate) features: usize,
    pub(crate) feature_names: Vec<String>,
    pub(crate) objective_name: String,
    pub(crate) best_iteration: Option<usize>,
    objective: Objective,
    groups: usize,
    booster: Booster,
}

#[derive(Debug, Clone)]
enum Booster {
    Scalar { forest: Forest<f32>, leaves: ScalarLeaves<f32>, ids: Vec<u32> },
    Vector { forest: Forest<f32>, leaves: VectorLeaves<f32>, ids: Vec<u32> },
    Linear { weights: Vec<f32>, base: Vec<f32> },
}

/// Parses JSON.
pub(crate) fn from_json(bytes: &[u8]) -> Result<XgboostModel, ParseError> {
    read(&json::parse(bytes)?)
}

/// Parses UBJSON.
pub(crate) fn from_ubjson(bytes: &[u8]) -> Result<XgboostModel, ParseError> {
    read(&ubjson::parse(bytes)?)
}

fn read(doc: &Doc) -> Result<XgboostModel, ParseError> {
    let root = At::root(doc);
    if root.find("learner").is_none() && root.find("tree_info").is_some() {
        return Err(ParseError::Unsupported {
            found: "the JSON that LightGBM's `dump_model` returns".into(),
            advice: "save the model as text with `booster.save_model(\"model.txt\")`".into(),
        });
    }
    let learner = root.key("learner")?;
    let parameters = learner.key("learner_model_param")?;
    let features = parameters.key("num_feature")?.count()?;
    let objective_name = learner.key("objective")?.key("name")?.text()?.to_owned();
    let objective = Objective::from_name(&objective_name)?;
    let count = |name| parameters.find(name).map_or(Ok(0), |at| at.count());
    let groups = count("num_class")?.max(count("num_target")?).max(1);
    let booster_at = learner.key("gradient_booster")?;
    let base_scores = base_scores(&parameters.key("base_score")?)?;
    let base = |limit: usize| {
        if groups > limit.max(FREE_OUTPUTS) {
            return Err(
                parameters.error(format!("{groups} outputs are more than the model has trees or weights"))
            );
        }
        let mut margins =
            base_scores.iter().map(|score| objective.margin(*score)).collect::<Result<Vec<_>, _>>()?;
        match margins.as_slice() {
            [one] => margins = vec![*one; groups],
            several if several.len() == groups => {}
            several => {
                let message = format!("`base_score` has {} values for {groups} outputs", several.len());
                return Err(parameters.error(message));
            }
        }
        Ok(margins)
    };
    let name = booster_at.key("name")?;
    let booster = match name.text()? {
        "gbtree" => tree_booster(&booster_at.key("model")?, None, features, groups, base)?,
        "dart" => {
            let weights = booster_at.key("weight_drop")?.numbers()?;
            tree_booster(&booster_at.key("gbtree")?.key("model")?, Some(weights), features, groups, base)?
        }
        "gblinear" => {
            let at = booster_at.key("model")?.key("weights")?;
            let weights: Vec<f32> = at.numbers()?.iter().map(|weight| *weight as f32).collect();
            let expected = features.checked_add(1).and_then(|rows| rows.checked_mul(groups));
            if expected != Some(weights.len()) {
                let message =
                    format!("{} weights do not fit {features} features and {groups} outputs", weights.len());
                return Err(at.error(message));
            }
            // The library starts every output of a linear booster from the first base score.
            let base = base(weights.len())?;
            let first = base.first().copied().unwrap_or_default();
            Booster::Linear { base: vec![first; base.len()], weights }
        }
        other => {
            return Err(name.error(format!("the booster `{other}` is not one of gbtree, dart, gblinear")));
        }
    };
    let feature_names = learner.find("feature_names").map_or(Ok(Vec::new()), |at| at.texts())?;
    let best = learner.find("attributes").and_then(|attributes| attributes.find("best_iteration"));
    let best_iteration = best.and_then(|best| best.count().ok());
    Ok(XgboostModel { features, feature_names, objective_name, best_iteration, objective, groups, booster })
}

/// One base score, or one per output: `5E-1`, or `[5E-1]` since version 3.1.
fn base_scores(at: &At<'_>) -> Result<Vec<f32>, ParseError> {
    let text = at.text()?.trim();
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let parse = |part: &str| match part.trim().parse::<f32>() {
        Ok(score) if score.is_finite() => Ok(score),
        _ => Err(at.error(format!("`{}` is not a finite number", part.trim()))),
    };
    inner.split(',').map(parse).collect()
}

fn tree_booster(
    model: &At<'_>,
    weights: Option<&[f64]>,
    features: usize,
    groups: usize,
    base: impl Fn(usize) -> Result<Vec<f32>, ParseError>,
) -> Result<Booster, ParseError> {
    let trees = model.key("trees")?.list()?;
    let info = model.key("tree_info")?;
    let tree_groups = info.numbers()?;
    if tree_groups.len() != trees.len() {
        return Err(info.error(format!("has {} entries for {} trees", tree_groups.len(), trees.len())));
    }
    if let Some(weights) = weights
        && weights.len() != trees.len()
    {
        let message = format!("has {} entries for {} trees", weights.len(), trees.len());
        return Err(ParseError::field("learner.gradient_booster.weight_drop", message));
    }
    let mut forest = Forest::builder(features);
    let (mut values, mut ids, mut tree_outputs) = (Vec::new(), Vec::new(), None);
    for (number, at) in trees.iter().enumerate() {
        let tree = trees::read(at, number)?;
        if *tree_outputs.get_or_insert(tree.outputs) != tree.outputs {
            return Err(at.error("has another number of values per leaf than the trees before it"));
        }
        if tree.outputs != 1 && tree.outputs != groups {
            return Err(at.error(format!("has {} values per leaf for {groups} outputs", tree.outputs)));
        }
        let order =
            forest.push(&tree.nodes).map_err(|error| ParseError::tree(number, error.node, error.message))?;
        let weight = weights.and_then(|weights| weights.get(number)).map_or(1.0, |weight| *weight as f32);
        for node in &order {
            let Some(leaf) = tree.leaf(*node) else {
                return Err(ParseError::tree(number, *node as usize, "the leaf has no value"));
            };
            values.extend(leaf.iter().map(|value| *value as f32 * weight));
        }
        ids.extend(order);
    }
    let start = base(trees.len().max(values.len()))?;
    let forest = forest.finish();
    if tree_outputs.is_some_and(|outputs| outputs > 1) {
        return Ok(Booster::Vector { forest, leaves: VectorLeaves { values, start }, ids });
    }
    let in_range =
        |group: &f64| (group.fract() == 0.0 && (0.0..groups as f64).contains(group)).then_some(*group as u32);
    let groups = tree_groups.iter().map(in_range).collect::<Option<Vec<u32>>>();
    let groups = groups.ok_or_else(|| info.error("a tree belongs to an output that does not exist"))?;
    Ok(Booster::Scalar { forest, leaves: ScalarLeaves { values, groups, start }, ids })
}

impl XgboostModel {
    pub(crate) fn classes(&self) -> Option<usize> {
        if !self.objective.classifies {
            return None;
        }
        match self.objective.transform {
            Transform::Softmax | Transform::ArgMax => Some(self.groups),
            _ => Some(2),
        }
    }

    pub(crate) fn margin_outputs(&self) -> usize {
        self.groups
    }

    pub(crate) fn predict_outputs(&self) -> usize {
        if self.objective.transform == Transform::ArgMax { 1 } else { self.groups }
    }

    pub(crate) fn class_outputs(&self) -> usize {
        match self.objective.transform {
            Transform::Softmax | Transform::ArgMax => 1,
            _ => self.groups,
        }
    }

    pub(crate) fn trees(&self) -> usize {
        match &self.booster {
            Booster::Scalar { forest, .. } | Booster::Vector { forest, .. } => forest.tree_count(),
            Booster::Linear { .. } => 0,
        }
    }

    pub(crate) fn margins(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<f32> {
        match &self.booster {
            Booster::Scalar { forest, leaves, .. } => run(forest, leaves, rows, execution),
            Booster::Vector { forest, leaves, .. } => run(forest, leaves, rows, execution),
            Booster::Linear { weights, base } => linear(weights, base, rows),
        }
    }

    pub(crate) fn predict(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<f32> {
        let mut margins = self.margins(rows, execution);
        match self.objective.transform {
            Transform::Identity => {}
            Transform::Sigmoid => margins.iter_mut().for_each(|margin| *margin = sigmoid(*margin)),
            Transform::Exp => margins.iter_mut().for_each(|margin| *margin = margin.exp()),
            Transform::Hinge => {
                for margin in &mut margins {
                    *margin = f32::from(u8::from(*margin > 0.0));
                }
            }
            Transform::Softmax => margins.chunks_exact_mut(self.groups).for_each(softmax),
            Transform::ArgMax => {
                return margins.chunks_exact(self.groups).map(|row| arg_max(row) as f32).collect();
            }
        }
        margins
    }

    /// Class indices; only for objectives that classify.
    pub(crate) fn classify(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<u32> {
        match self.objective.transform {
            Transform::Softmax | Transform::ArgMax => {
                let scores = self.class_scores(rows, execution);
                scores.chunks_exact(self.groups).map(|row| arg_max(row) as u32).collect()
            }
            Transform::Sigmoid => {
                let predictions = self.predict(rows, execution);
                predictions.iter().map(|probability| u32::from(*probability > 0.5)).collect()
            }
            _ => self.margins(rows, execution).iter().map(|margin| u32::from(*margin > 0.0)).collect(),
        }
    }

    /// The library's own basis of comparison: probabilities where it predicts those, else margins.
    fn class_scores(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<f32> {
        let mut margins = self.margins(rows, execution);
        if self.objective.transform == Transform::Softmax {
            margins.chunks_exact_mut(self.groups).for_each(softmax);
        }
        margins
    }

    /// The node number of the leaf in each tree, or nothing for a linear booster.
    pub(crate) fn leaves(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Option<Vec<u32>> {
        match &self.booster {
            Booster::Scalar { forest, ids, .. } | Booster::Vector { forest, ids, .. } => {
                Some(run(forest, &LeafIds { ids, trees: forest.tree_count() }, rows, execution))
            }
            Booster::Linear { .. } => None,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let names: usize = self.feature_names.iter().map(|name| name.len() + size_of::<String>()).sum();
        names
            + match &self.booster {
                Booster::Scalar { forest, leaves, ids } => {
                    forest.memory_bytes() + 4 * (leaves.values.len() + leaves.groups.len() + ids.len())
                }
                Booster::Vector { forest, leaves, ids } => {
                    forest.memory_bytes() + 4 * (leaves.values.len() + ids.len())
                }
                Booster::Linear { weights, base } => 4 * (weights.len() + base.len()),
            }
    }
}

/// Weights are stored feature by feature, one per output, and end with the biases.
fn linear(weights: &[f32], base: &[f32], rows: &Rows<'_>) -> Vec<f32> {
    let groups = base.len();
    let (slopes, biases) = weights.split_at(weights.len() - groups);
    let start: Vec<f32> = biases.iter().zip(base).map(|(bias, base)| bias + base).collect();
    let mut out = start.repeat(rows.rows());
    let features = rows.features();
    let mut add = |row: usize, feature: usize, value: f32| {
        let sums = out.get_mut(row * groups..(row + 1) * groups).unwrap_or_default();
        let slopes = slopes.get(feature * groups..(feature + 1) * groups).unwrap_or_default();
        if !value.is_nan() {
            sums.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += value * slope);
        }
    };
    match rows.values() {
        Values::F32(values) => {
            values.iter().enumerate().for_each(|(at, value)| add(at / features, at % features, *value));
        }
        Values::F64(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(at, value)| add(at / features, at % features, *value as f32));
        }
    }
    out
}
