//! Linear models.

use super::post_transform::{Labels, Post, Second, argmax, probit};
use crate::native::node::{Kernel, Node};
use crate::native::ops::matmul::Weights;
use crate::native::value::{Args, OpError, Value};

/// The operators of this file.
pub(super) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "LinearClassifier" => classifier(node)?,
        "LinearRegressor" => regressor(node)?,
        _ => return Ok(None),
    }))
}

/// Coefficients, one row per target in the file, and intercepts, as one matrix product.
struct Linear {
    weights: Weights,
    intercepts: Option<Vec<f32>>,
    targets: usize,
    features: usize,
}

impl Linear {
    fn new(coefficients: &[f32], intercepts: &[f32], targets: usize) -> Result<Self, OpError> {
        if targets == 0 || coefficients.is_empty() || !coefficients.len().is_multiple_of(targets) {
            return Err(OpError::attribute(
                "coefficients",
                format!("has {} values, which are not rows for {targets} targets", coefficients.len()),
            ));
        }
        if !intercepts.is_empty() && intercepts.len() != targets {
            return Err(OpError::attribute(
                "intercepts",
                format!("has {} values for {targets} targets", intercepts.len()),
            ));
        }
        let features = coefficients.len() / targets;
        let by_feature = (0..features)
            .flat_map(|f| (0..targets).filter_map(move |t| coefficients.get(t * features + f).copied()))
            .collect();
        Ok(Self {
            weights: Weights::new(features, targets, by_feature)?,
            intercepts: (!intercepts.is_empty()).then(|| intercepts.to_vec()),
            targets,
            features,
        })
    }

    fn scores(&self, args: &Args<'_>, x: &[f32], rows: usize, columns: usize) -> Result<Vec<f32>, OpError> {
        if columns != self.features {
            return Err(OpError::Shape(format!(
                "rows have {columns} features, the model has {}",
                self.features
            )));
        }
        self.weights.multiply(args.watch, x, rows, self.intercepts.as_deref())
    }
}

fn classifier(node: &Node<'_>) -> Result<Kernel, OpError> {
    let labels = Labels::of(node, "classlabels_ints", "classlabels_strings")?;
    let intercepts = node.floats("intercepts")?;
    // Without intercepts, the number of labels is the number of coefficient rows.
    let targets = if intercepts.is_empty() { labels.len() } else { intercepts.len() };
    let linear = Linear::new(node.floats("coefficients")?, intercepts, targets)?;
    let post = Post::of(node)?;
    let labels = match labels {
        Labels::Ints(v) if targets == 1 && v.len() != 2 => Labels::Ints(vec![0, 1]),
        Labels::Texts(v) if targets == 1 && v.len() != 2 => Labels::Texts(vec!["0".into(), "1".into()]),
        other => other,
    };
    let two = node.ints("classlabels_ints")?.len() == 2 || node.texts("classlabels_strings")?.len() == 2;
    let add_second = targets == 1 && two;
    if labels.len() < targets {
        return Err(OpError::attribute(
            "classlabels",
            format!("names {} of {targets} classes", labels.len()),
        ));
    }
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (rows, columns) = x.rows()?;
        args.room(&[rows, targets])?;
        let mut scores = linear.scores(args, &x.floats()?, rows, columns)?;
        let classes: Vec<usize> = if targets == 1 {
            scores.iter().map(|&s| usize::from(s > 0.0)).collect()
        } else {
            scores.chunks(targets).map(argmax).collect()
        };
        let mut width = targets;
        if add_second {
            scores = match post {
                Post::Probit => scores.iter().flat_map(|&s| [probit(s), 0.0]).collect(),
                _ => scores.iter().flat_map(|&s| Second::Complement.apply(s, post)).collect(),
            };
            width = 2;
        } else {
            post.apply_rows(&mut scores, targets);
        }
        Ok(vec![labels.values(&classes)?, Value::f32([rows, width], scores)])
    }))
}

fn regressor(node: &Node<'_>) -> Result<Kernel, OpError> {
    let targets =
        usize::try_from(node.int("targets", 1)?).map_err(|_| OpError::attribute("targets", "is negative"))?;
    let linear = Linear::new(node.floats("coefficients")?, node.floats("intercepts")?, targets)?;
    let post = Post::of(node)?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (rows, columns) = x.rows()?;
        args.room(&[rows, targets])?;
        let mut scores = linear.scores(args, &x.floats()?, rows, columns)?;
        post.apply_rows(&mut scores, linear.targets);
        Ok(vec![Value::f32([rows, targets], scores)])
    }))
}
