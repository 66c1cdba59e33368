//! Support vector machines.
//!
//! Sums are taken in double precision: that is never further from the training library than single precision.

use super::post_transform::{Labels, Post, Second, argmax, logistic};
use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value};

/// The operators of this file.
pub(super) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "SVMClassifier" => classifier(node)?,
        "SVMRegressor" => regressor(node)?,
        _ => return Ok(None),
    }))
}

#[derive(Clone, Copy)]
enum Shape {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// Support vectors and the function that compares a row with each of them.
struct Supports {
    shape: Shape,
    gamma: f64,
    coef0: f64,
    degree: f64,
    vectors: Vec<f32>,
    count: usize,
    features: usize,
}

impl Supports {
    fn new(node: &Node<'_>, vectors: &[f32], count: usize) -> Result<Self, OpError> {
        if count == 0 || vectors.is_empty() || !vectors.len().is_multiple_of(count) {
            return Err(OpError::attribute(
                "support_vectors",
                format!("has {} values, which are not {count} vectors", vectors.len()),
            ));
        }
        let shape = match node.text("kernel_type", "LINEAR")? {
            "LINEAR" => Shape::Linear,
            "POLY" => Shape::Poly,
            "RBF" => Shape::Rbf,
            "SIGMOID" => Shape::Sigmoid,
            other => return Err(OpError::attribute("kernel_type", format!("is {other:?}"))),
        };
        let parameters = node.floats("kernel_params")?;
        let at = |i: usize| parameters.get(i).copied().map_or(0.0, f64::from);
        Ok(Self {
            shape,
            gamma: at(0),
            coef0: at(1),
            degree: at(2),
            vectors: vectors.to_vec(),
            count,
            features: vectors.len() / count,
        })
    }

    fn compare(&self, x: &[f32], v: &[f32]) -> f64 {
        let dot = || x.iter().zip(v).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        match self.shape {
            Shape::Linear => dot(),
            Shape::Poly => (self.gamma * dot() + self.coef0).powf(self.degree),
            Shape::Sigmoid => (self.gamma * dot() + self.coef0).tanh(),
            Shape::Rbf => {
                let distance: f64 = x
                    .iter()
                    .zip(v)
                    .map(|(&a, &b)| {
                        let d = f64::from(a) - f64::from(b);
                        d * d
                    })
                    .sum();
                (-self.gamma * distance).exp()
            }
        }
    }

    /// Ends early when the run has to stop.
    fn all(&self, args: &Args<'_>, x: &[f32]) -> Vec<f64> {
        let vectors = self.vectors.chunks(self.features);
        vectors.take_while(|v| args.watch.spend(v.len()).is_ok()).map(|v| self.compare(x, v)).collect()
    }

    fn check(&self, columns: usize) -> Result<(), OpError> {
        if columns == self.features {
            return Ok(());
        }
        Err(OpError::Shape(format!("rows have {columns} features, the model has {}", self.features)))
    }
}

fn first(values: &[f32], name: &str) -> Result<f64, OpError> {
    values.first().copied().map(f64::from).ok_or_else(|| OpError::attribute(name, "is missing"))
}

fn regressor(node: &Node<'_>) -> Result<Kernel, OpError> {
    let coefficients = node.floats("coefficients")?.to_vec();
    let rho = first(node.floats("rho")?, "rho")?;
    let one_class = node.int("one_class", 0)? != 0;
    let post = Post::of(node)?;
    let count = usize::try_from(node.int("n_supports", 0)?)
        .map_err(|_| OpError::attribute("n_supports", "is negative"))?;
    let supports = if count > 0 {
        Supports::new(node, node.floats("support_vectors")?, count)?
    } else {
        // Without support vectors the coefficients are one vector.
        let mut supports = Supports::new(node, &coefficients, 1)?;
        supports.shape = Shape::Linear;
        supports
    };
    if count > 0 && coefficients.len() != count {
        return Err(OpError::attribute(
            "coefficients",
            format!("has {} values for {count} vectors", coefficients.len()),
        ));
    }
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (rows, columns) = x.rows()?;
        supports.check(columns)?;
        args.room(&[rows, supports.count])?;
        let mut scores: Vec<f32> = x
            .floats()?
            .chunks(columns.max(1))
            // The plan discards the result of a stopped step.
            .take_while(|_| args.watch.check().is_ok())
            .map(|row| {
                let values = supports.all(args, row);
                let sum: f64 = if count == 0 {
                    values.iter().sum()
                } else {
                    values.iter().zip(&coefficients).map(|(k, &c)| k * f64::from(c)).sum()
                };
                (sum + rho) as f32
            })
            .collect();
        if one_class {
            for s in &mut scores {
                *s = if *s > 0.0 { 1.0 } else { -1.0 };
            }
        }
        post.apply_rows(&mut scores, 1);
        Ok(vec![Value::f32([rows, 1], scores)])
    }))
}

struct Classifier {
    supports: Supports,
    /// By class: the first of its support vectors; one more entry for the end.
    starts: Vec<usize>,
    coefficients: Vec<f32>,
    rho: Vec<f32>,
    sigmoids: Vec<(f32, f32)>,
    labels: Labels,
    post: Post,
    all_positive: bool,
}

fn classifier(node: &Node<'_>) -> Result<Kernel, OpError> {
    let labels = Labels::of(node, "classlabels_ints", "classlabels_strings")?;
    let classes = labels.len();
    let coefficients = node.floats("coefficients")?.to_vec();
    let post = Post::of(node)?;
    if classes < 2 {
        return Err(OpError::attribute("classlabels", "names fewer than two classes"));
    }
    let mut starts = vec![0usize];
    for &n in node.ints("vectors_per_class")? {
        let next = usize::try_from(n).ok().and_then(|n| starts.last()?.checked_add(n));
        starts.push(next.ok_or_else(|| OpError::attribute("vectors_per_class", "has a negative number"))?);
    }
    let vectors = starts.last().copied().unwrap_or(0);
    if vectors == 0 {
        return linear_classifier(node, labels, &coefficients, post);
    }
    let pairs = classes * (classes - 1) / 2;
    let (a, b) = (node.floats("prob_a")?, node.floats("prob_b")?);
    let rho = node.floats("rho")?.to_vec();
    let sizes_fit = starts.len() == classes + 1
        && (classes - 1).checked_mul(vectors).is_some_and(|n| coefficients.len() >= n)
        && rho.len() >= pairs
        && a.len() == b.len()
        && (a.is_empty() || a.len() >= pairs);
    if !sizes_fit {
        return Err(OpError::Value(format!(
            "vectors_per_class, coefficients, rho, prob_a and prob_b do not fit {classes} classes and {vectors} vectors"
        )));
    }
    let machine = Classifier {
        supports: Supports::new(node, node.floats("support_vectors")?, vectors)?,
        starts,
        all_positive: coefficients.iter().all(|&c| c >= 0.0),
        coefficients,
        rho,
        sigmoids: a.iter().copied().zip(b.iter().copied()).collect(),
        labels,
        post,
    };
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (rows, columns) = x.rows()?;
        machine.supports.check(columns)?;
        args.room(&[rows, machine.supports.count])?;
        let mut classes = Vec::with_capacity(rows);
        let mut scores = Vec::new();
        for row in x.floats()?.chunks(columns.max(1)) {
            classes.push(machine.row(args, row, &mut scores));
            args.watch.check()?;
        }
        let width = scores.len().checked_div(rows).unwrap_or(0);
        Ok(vec![machine.labels.values(&classes)?, Value::f32([rows, width], scores)])
    }))
}

impl Classifier {
    /// Scores one row: each pair of classes votes, and with the sigmoids' parameters the votes become
    /// probabilities.
    fn row(&self, args: &Args<'_>, x: &[f32], to: &mut Vec<f32>) -> usize {
        let count = self.labels.len();
        let kernels = self.supports.all(args, x);
        let mut votes = vec![0u32; count];
        let mut pairs = Vec::new();
        for i in 0..count {
            for j in i + 1..count {
                let sum =
                    self.pair(&kernels, i, j) + self.rho.get(pairs.len()).copied().map_or(0.0, f64::from);
                pairs.push(sum as f32);
                if let Some(vote) = votes.get_mut(if sum > 0.0 { i } else { j }) {
                    *vote += 1;
                }
            }
        }
        let mut class = 0;
        for (i, &n) in votes.iter().enumerate() {
            if n > votes.get(class).copied().unwrap_or(0) {
                class = i;
            }
        }
        if !self.sigmoids.is_empty() {
            let mut scores = couple(&self.pair_probabilities(&pairs), count);
            self.post.apply(&mut scores);
            to.extend(scores);
        } else if let &[score] = pairs.as_slice() {
            if self.post == Post::None {
                to.extend(Second::Mirror.apply(score, Post::None));
            } else {
                to.extend(Second::Complement.apply(score, self.post));
            }
            if self.all_positive && score >= 0.5 {
                class = 1;
            }
        } else {
            self.post.apply(&mut pairs);
            to.extend(pairs);
        }
        class
    }

    fn pair(&self, kernels: &[f64], i: usize, j: usize) -> f64 {
        let total = self.supports.count;
        let part = |class: usize, row: usize| -> f64 {
            let from = self.starts.get(class).copied().unwrap_or(0);
            let to = self.starts.get(class + 1).copied().unwrap_or(from);
            let coefficients = self.coefficients.get(row * total + from..row * total + to).unwrap_or(&[]);
            let kernels = kernels.get(from..to).unwrap_or(&[]);
            coefficients.iter().zip(kernels).map(|(&c, k)| f64::from(c) * k).sum()
        };
        part(i, j - 1) + part(j, i)
    }

    /// For each pair, the probability of the first of the two.
    fn pair_probabilities(&self, pairs: &[f32]) -> Vec<f32> {
        let sure = 1e-7f32;
        pairs
            .iter()
            .zip(&self.sigmoids)
            .map(|(&score, &(a, b))| (1.0 - logistic(score * a + b)).clamp(sure, 1.0 - sure))
            .collect()
    }
}

/// Probabilities of the classes from those of the pairs: the second method of Wu, Lin and Weng (2004).
#[allow(
    clippy::indexing_slicing,
    reason = "every index is below count, or count² for the matrices made here"
)]
fn couple(pairs: &[f32], count: usize) -> Vec<f32> {
    let mut r = vec![0.0f64; count * count];
    let mut pair = pairs.iter();
    for i in 0..count {
        for j in i + 1..count {
            let p = pair.next().copied().map_or(0.5, f64::from);
            r[i * count + j] = p;
            r[j * count + i] = 1.0 - p;
        }
    }
    let mut q = vec![0.0f64; count * count];
    for i in 0..count {
        for j in 0..count {
            if i != j {
                q[i * count + i] += r[j * count + i] * r[j * count + i];
                q[i * count + j] = -r[j * count + i] * r[i * count + j];
            }
        }
    }
    let mut p = vec![1.0 / count as f64; count];
    let close_enough = 0.005 / count as f64;
    let rounds = 100.max(count);
    for _ in 0..rounds {
        let mut qp: Vec<f64> =
            (0..count).map(|i| (0..count).map(|j| q[i * count + j] * p[j]).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(a, b)| a * b).sum();
        if qp.iter().all(|v| (v - pqp).abs() < close_enough) {
            break;
        }
        for i in 0..count {
            let step = (pqp - qp[i]) / q[i * count + i];
            p[i] += step;
            pqp = (pqp + step * (step * q[i * count + i] + 2.0 * qp[i])) / (1.0 + step) / (1.0 + step);
            for j in 0..count {
                qp[j] = (qp[j] + step * q[i * count + j]) / (1.0 + step);
                p[j] /= 1.0 + step;
            }
        }
    }
    p.into_iter().map(|v| v as f32).collect()
}

/// Without support vectors there is one row of coefficients per class.
fn linear_classifier(
    node: &Node<'_>,
    labels: Labels,
    coefficients: &[f32],
    post: Post,
) -> Result<Kernel, OpError> {
    let mut rows_of = Supports::new(node, coefficients, labels.len())?;
    rows_of.shape = Shape::Linear;
    let rho = first(node.floats("rho")?, "rho")?;
    let all_positive = coefficients.iter().all(|&c| c >= 0.0);
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let (rows, columns) = x.rows()?;
        rows_of.check(columns)?;
        args.room(&[rows, labels.len()])?;
        let mut scores = Vec::new();
        let mut classes = Vec::with_capacity(rows);
        for row in x.floats()?.chunks(columns.max(1)) {
            args.watch.check()?;
            let mut values: Vec<f32> = rows_of.all(args, row).iter().map(|v| (v + rho) as f32).collect();
            let best = argmax(&values);
            let top = values.get(best).copied().unwrap_or(0.0);
            let positive = if all_positive { top >= 0.5 } else { top > 0.0 };
            classes.push(if labels.len() == 2 && positive { 1 } else { best });
            post.apply(&mut values);
            scores.extend(values);
        }
        Ok(vec![labels.values(&classes)?, Value::f32([rows, labels.len()], scores)])
    }))
}
