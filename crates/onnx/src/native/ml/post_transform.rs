//! Post-transforms of raw scores, and class labels.

use crate::native::node::Node;
use crate::native::value::{OpError, Value};
use bytes::Bytes;
use gantry_tensor::Elements;

/// `post_transform`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Post {
    None,
    Logistic,
    Softmax,
    SoftmaxZero,
    Probit,
}

impl Post {
    pub(super) fn of(node: &Node<'_>) -> Result<Self, OpError> {
        Ok(match node.text("post_transform", "NONE")? {
            "NONE" => Self::None,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX" => Self::Softmax,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => {
                return Err(OpError::attribute("post_transform", format!("is {other:?}, which is none")));
            }
        })
    }

    /// Transforms the scores of one row.
    pub(super) fn apply(self, scores: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Logistic => scores.iter_mut().for_each(|s| *s = logistic(*s)),
            Self::Softmax => softmax(scores),
            Self::SoftmaxZero => softmax_zero(scores),
            Self::Probit => scores.iter_mut().for_each(|s| *s = probit(*s)),
        }
    }

    /// Transforms many rows.
    pub(super) fn apply_rows(self, scores: &mut [f32], columns: usize) {
        if self != Self::None && columns > 0 {
            scores.chunks_mut(columns).for_each(|row| self.apply(row));
        }
    }
}

pub(super) fn logistic(x: f32) -> f32 {
    let v = 1.0 / (1.0 + (-x.abs()).exp());
    if x < 0.0 { 1.0 - v } else { v }
}

fn softmax(scores: &mut [f32]) {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        *s = (*s - top).exp();
        sum += *s;
    }
    for s in scores.iter_mut() {
        *s /= sum;
    }
}

/// A softmax that leaves zeros out of the sum: a score of zero means that the class has no evidence.
fn softmax_zero(scores: &mut [f32]) {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let scale = (-top).exp();
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        if s.abs() > 1e-7 {
            *s = (*s - top).exp();
            sum += *s;
        } else {
            *s *= scale;
        }
    }
    for s in scores.iter_mut() {
        *s /= sum;
    }
}

/// √2 · erf⁻¹(2x − 1), with Winitzki's approximation of the inverse error function (a = 0.147).
#[allow(clippy::approx_constant, reason = "the constants of ONNX Runtime, to agree with it")]
pub(super) fn probit(x: f32) -> f32 {
    let y = 2.0 * x - 1.0;
    let sign = if y < 0.0 { -1.0 } else { 1.0 };
    let log = ((1.0 - y) * (1.0 + y)).ln();
    let v = 2.0 / (3.14159 * 0.147) + 0.5 * log;
    let w = log / 0.147;
    1.414_213_5 * sign * (-v + (v * v - w).sqrt()).sqrt()
}

/// How one score of a binary classifier becomes two, unless the logistic of `−s` and `s` is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// `1 − s` and `s`.
    Complement,
    /// `−s` and `s`.
    Mirror,
}

impl Second {
    pub(super) fn apply(self, score: f32, post: Post) -> [f32; 2] {
        match (self, post) {
            (_, Post::Logistic) => [logistic(-score), logistic(score)],
            (Self::Mirror, _) => [-score, score],
            (Self::Complement, _) => [1.0 - score, score],
        }
    }
}

/// The labels of a classifier.
#[derive(Debug, Clone)]
pub(super) enum Labels {
    Ints(Vec<i64>),
    Texts(Vec<Bytes>),
}

impl Labels {
    pub(super) fn of(node: &Node<'_>, ints: &str, texts: &str) -> Result<Self, OpError> {
        let words = node.texts(texts)?;
        if words.is_empty() {
            Ok(Self::Ints(node.ints(ints)?.to_vec()))
        } else {
            Ok(Self::Texts(words.iter().map(|w| Bytes::copy_from_slice(w)).collect()))
        }
    }

    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Ints(v) => v.len(),
            Self::Texts(v) => v.len(),
        }
    }

    /// The labels of these classes, as a tensor.
    pub(super) fn values(&self, classes: &[usize]) -> Result<Value, OpError> {
        let missing = |c: usize| OpError::Value(format!("class {c} has no label"));
        let data = match self {
            Self::Ints(v) => Elements::Int64(
                classes
                    .iter()
                    .map(|&c| v.get(c).copied().ok_or_else(|| missing(c)))
                    .collect::<Result<_, _>>()?,
            ),
            Self::Texts(v) => Elements::Bytes(
                classes
                    .iter()
                    .map(|&c| v.get(c).cloned().ok_or_else(|| missing(c)))
                    .collect::<Result<_, _>>()?,
            ),
        };
        Ok(Value::new([classes.len()], data))
    }
}

/// The first of the largest.
pub(super) fn argmax(scores: &[f32]) -> usize {
    let mut best = 0;
    let mut top = scores.first().copied().unwrap_or(0.0);
    for (i, &s) in scores.iter().enumerate().skip(1) {
        if s > top {
            best = i;
            top = s;
        }
    }
    best
}
