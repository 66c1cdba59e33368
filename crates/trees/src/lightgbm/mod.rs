//! LightGBM models: the text that `save_model` writes.

mod linear;
mod objective;
mod text;
mod tree;

use linear::LinearLeaves;
use objective::Objective;
use text::File;

use crate::error::ParseError;
use crate::forest::{Column, Execution, Forest, LeafIds, ScalarLeaves, Sink, run};
use crate::rows::{Rows, Values};
use crate::xgboost::arg_max;

/// Outputs that a model may have whatever its size; more must be backed by trees.
const FREE_OUTPUTS: usize = 4096;

/// A model that was proven sound.
#[derive(Debug, Clone)]
pub(crate) struct LightgbmModel {
    pub(crate) features: usize,
    pub(crate) feature_names: Vec<String>,
    pub(crate) objective_name: String,
    objective: Objective,
    groups: usize,
    /// The number of iterations to divide by, for random forests.
    average_over: Option<f64>,
    /// For rows in single precision: the same trees with thresholds rounded down, which decides the same.
    single: Forest<f32>,
    double: Forest<f64>,
    leaves: Leaves,
    ids: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Leaves {
    Constant(ScalarLeaves<f64>),
    Linear(LinearLeaves),
}

/// Reads a text model.
pub(crate) fn from_text(bytes: &[u8]) -> Result<LightgbmModel, ParseError> {
    let file = File::cut(bytes)?;
    let header = &file.header;
    let version = header.find("version").unwrap_or("");
    if !matches!(version, "v2" | "v3" | "v4") {
        return Err(
            header.error("version", format!("is `{version:.40}`, but only v2, v3 and v4 can be read"))
        );
    }
    let features = header.one::<usize>("max_feature_idx")?;
    let features =
        features.checked_add(1).ok_or_else(|| header.error("max_feature_idx", "is not a feature index"))?;
    let groups: usize = header.one("num_tree_per_iteration")?;
    if groups == 0 || groups > FREE_OUTPUTS.max(file.trees.len()) {
        let message = format!("is {groups}, which does not fit {} trees", file.trees.len());
        return Err(header.error("num_tree_per_iteration", message));
    }
    if !file.trees.len().is_multiple_of(groups) {
        let message = format!("is {groups}, but the {} trees are no multiple of it", file.trees.len());
        return Err(header.error("num_tree_per_iteration", message));
    }
    let objective_line = header.find("objective");
    let objective = Objective::read(objective_line)?;
    let names: Vec<String> =
        header.find("feature_names").unwrap_or("").split_ascii_whitespace().map(str::to_owned).collect();
    if !names.is_empty() && names.len() != features {
        return Err(
            header.error("feature_names", format!("has {} names for {features} features", names.len()))
        );
    }
    let iterations = file.trees.len() / groups;
    let averaged = header.find("average_output").is_some() && iterations > 0;
    let (single, double, leaves, ids) = compile(&file, features, groups)?;
    Ok(LightgbmModel {
        features,
        feature_names: names,
        objective_name: objective_line.unwrap_or("custom").to_owned(),
        objective,
        groups,
        average_over: averaged.then_some(iterations as f64),
        single,
        double,
        leaves,
        ids,
    })
}

type Compiled = (Forest<f32>, Forest<f64>, Leaves, Vec<u32>);

fn compile(file: &File<'_>, features: usize, groups: usize) -> Result<Compiled, ParseError> {
    let (mut single, mut double) = (Forest::builder(features), Forest::builder(features));
    let (mut values, mut ids, mut tree_groups) = (Vec::new(), Vec::new(), Vec::new());
    let mut linear: Option<LinearLeaves> = None;
    for (number, block) in file.trees.iter().enumerate() {
        let tree = tree::read(block, number)?;
        let locate = |error: crate::forest::TreeError| ParseError::tree(number, error.node, error.message);
        let order = single.push(&tree.nodes).map_err(locate)?;
        double.push(&tree.nodes).map_err(locate)?;
        tree_groups.push((number % groups) as u32);
        if tree.linear.is_some() && linear.is_none() {
            linear = Some(LinearLeaves::over(values.len()));
        }
        for leaf in &order {
            values.push(tree.values.get(*leaf as usize).copied().unwrap_or_default());
            if let Some(linear) = &mut linear {
                let leaf = tree.linear.as_ref().and_then(|leaves| leaves.get(*leaf as usize));
                let mut terms = Vec::new();
                for (feature, slope) in leaf.iter().flat_map(|leaf| &leaf.terms) {
                    let column = Column { feature: *feature, zero_is_missing: false };
                    // Both forests see the same requests in the same order, so they number columns alike.
                    single.column(column).map_err(locate)?;
                    terms.push((double.column(column).map_err(locate)?, *slope));
                }
                linear.push(leaf.map(|leaf| leaf.constant), terms);
            }
        }
        ids.extend(order);
    }
    let scalar = ScalarLeaves { values, groups: tree_groups, start: vec![0.0; groups] };
    let leaves = match linear {
        None => Leaves::Constant(scalar),
        Some(linear) => Leaves::Linear(linear.finish(scalar)),
    };
    Ok((single.finish(), double.finish(), leaves, ids))
}

impl LightgbmModel {
    pub(crate) fn classes(&self) -> Option<usize> {
        match self.objective {
            Objective::Binary { .. } => Some(2),
            Objective::Softmax | Objective::OneVersusAll { .. } => Some(self.groups),
            _ => None,
        }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.groups
    }

    pub(crate) fn trees(&self) -> usize {
        self.double.tree_count()
    }

    fn run<S: Sink<f32> + Sink<f64, Out = <S as Sink<f32>>::Out>>(
        &self,
        sink: &S,
        rows: &Rows<'_>,
        execution: &Execution<'_>,
    ) -> Vec<<S as Sink<f32>>::Out> {
        match rows.values() {
            Values::F32(_) => run::<f32, S>(&self.single, sink, rows, execution),
            Values::F64(_) => run::<f64, S>(&self.double, sink, rows, execution),
        }
    }

    pub(crate) fn margins(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<f64> {
        match &self.leaves {
            Leaves::Constant(leaves) => self.run(leaves, rows, execution),
            Leaves::Linear(leaves) => self.run(leaves, rows, execution),
        }
    }

    pub(crate) fn predict(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<f64> {
        let mut scores = self.margins(rows, execution);
        // The library averages predictions only; its raw scores stay sums.
        if let Some(iterations) = self.average_over {
            for score in &mut scores {
                *score /= iterations;
            }
        }
        scores.chunks_exact_mut(self.groups).for_each(|row| self.objective.convert(row));
        scores
    }

    /// Class indices; only for objectives that classify.
    pub(crate) fn classify(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<u32> {
        let predictions = self.predict(rows, execution);
        if matches!(self.objective, Objective::Binary { .. }) {
            return predictions.iter().map(|probability| u32::from(*probability > 0.5)).collect();
        }
        predictions.chunks_exact(self.groups).map(|row| arg_max(row) as u32).collect()
    }

    /// The library's leaf index in each tree.
    pub(crate) fn leaf_indices(&self, rows: &Rows<'_>, execution: &Execution<'_>) -> Vec<u32> {
        self.run(&LeafIds { ids: &self.ids, trees: self.double.tree_count() }, rows, execution)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let names: usize = self.feature_names.iter().map(|name| name.len() + size_of::<String>()).sum();
        let leaves = match &self.leaves {
            Leaves::Constant(leaves) => 8 * leaves.values.len() + 4 * leaves.groups.len(),
            Leaves::Linear(leaves) => leaves.memory_bytes(),
        };
        names + leaves + self.single.memory_bytes() + self.double.memory_bytes() + 4 * self.ids.len()
    }
}
