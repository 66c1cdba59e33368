//! XGBoost objectives: how margins become predictions, and how the base score becomes a margin.

use crate::error::ParseError;

/// Transform of the margins of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transform {
    Identity,
    Sigmoid,
    Exp,
    Softmax,
    /// The index of the largest margin.
    ArgMax,
    /// One above zero, else zero.
    Hinge,
}

/// The inverse that a base score goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Identity,
    Logit,
    Log,
}

/// An objective as far as predictions depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Objective {
    pub(super) transform: Transform,
    link: Link,
    pub(super) classifies: bool,
}

impl Objective {
    pub(super) fn from_name(name: &str) -> Result<Self, ParseError> {
        let (transform, link, classifies) = match name {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "reg:quantileerror"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => (Transform::Identity, Link::Identity, false),
            "reg:logistic" => (Transform::Sigmoid, Link::Logit, false),
            "binary:logistic" => (Transform::Sigmoid, Link::Logit, true),
            // Its base score is a margin already, other than for the other logistic objectives.
            "binary:logitraw" => (Transform::Identity, Link::Identity, true),
            "binary:hinge" => (Transform::Hinge, Link::Identity, true),
            "multi:softmax" => (Transform::ArgMax, Link::Identity, true),
            "multi:softprob" => (Transform::Softmax, Link::Identity, true),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Transform::Exp, Link::Log, false)
            }
            _ => {
                let message =
                    format!("the objective `{name}` is not known, so its prediction cannot be computed");
                return Err(ParseError::field("learner.objective.name", message));
            }
        };
        Ok(Self { transform, link, classifies })
    }

    /// The margin that a base score stands for.
    pub(super) fn margin(self, base_score: f32) -> Result<f32, ParseError> {
        let margin = match self.link {
            Link::Identity => base_score,
            Link::Logit => -(1.0 / base_score.clamp(1e-6, 1.0 - 1e-6) - 1.0).ln(),
            Link::Log => base_score.ln(),
        };
        // The logarithm of zero is fine: a count whose mean is zero.
        if !margin.is_nan() {
            return Ok(margin);
        }
        let message = format!("{base_score} is out of range for the objective");
        Err(ParseError::field("learner.learner_model_param.base_score", message))
    }
}

/// The logistic function with the guards of the library.
pub(super) fn sigmoid(margin: f32) -> f32 {
    1.0 / ((-margin).min(88.7).exp() + 1.0 + 1e-16)
}

/// Turns margins into probabilities, summing in double precision.
pub(super) fn softmax(margins: &mut [f32]) {
    let largest = margins.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f64;
    for margin in margins.iter_mut() {
        *margin = (*margin - largest).exp();
        sum += f64::from(*margin);
    }
    let sum = sum as f32;
    for margin in margins {
        *margin /= sum;
    }
}

/// The index of the largest value; the first one of equals.
pub(crate) fn arg_max<T: PartialOrd>(values: &[T]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate().skip(1) {
        if values.get(best).is_some_and(|largest| value > largest) {
            best = index;
        }
    }
    best
}
