//! LightGBM objectives: how raw scores become predictions.

use crate::error::ParseError;

/// Transform of the raw scores of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Objective {
    Identity,
    /// The square with the sign kept, for targets that were trained as roots.
    SignedSquare,
    Exp,
    Binary {
        sigmoid: f64,
    },
    Softmax,
    OneVersusAll {
        sigmoid: f64,
    },
    CrossEntropy,
    CrossEntropyLambda,
}

impl Objective {
    /// Reads the header's line, for example `binary sigmoid:1`; no line at all means a custom objective.
    pub(super) fn read(line: Option<&str>) -> Result<Self, ParseError> {
        let mut words = line.unwrap_or("custom").split_ascii_whitespace();
        let name = words.next().unwrap_or("custom");
        let parameters: Vec<&str> = words.collect();
        let sigmoid = || match parameters.iter().find_map(|word| word.strip_prefix("sigmoid:")) {
            None => Ok(1.0),
            Some(text) => match text.parse::<f64>() {
                Ok(sigmoid) if sigmoid.is_finite() && sigmoid > 0.0 => Ok(sigmoid),
                _ => Err(ParseError::field(
                    "objective",
                    format!("`{text}` is not a positive sigmoid parameter"),
                )),
            },
        };
        Ok(match name {
            "regression" | "regression_l2" | "regression_l1" | "huber" | "fair" | "quantile" | "mape" => {
                if parameters.contains(&"sqrt") {
                    Self::SignedSquare
                } else {
                    Self::Identity
                }
            }
            "lambdarank" | "rank_xendcg" | "custom" | "none" => Self::Identity,
            "poisson" | "gamma" | "tweedie" => Self::Exp,
            "binary" => Self::Binary { sigmoid: sigmoid()? },
            "multiclass" => Self::Softmax,
            "multiclassova" => Self::OneVersusAll { sigmoid: sigmoid()? },
            "cross_entropy" => Self::CrossEntropy,
            "cross_entropy_lambda" => Self::CrossEntropyLambda,
            _ => {
                let message = format!("`{name}` is not known, so its prediction cannot be computed");
                return Err(ParseError::field("objective", message));
            }
        })
    }

    /// Turns the raw scores of one row into the prediction.
    pub(super) fn convert(self, scores: &mut [f64]) {
        let each = |scores: &mut [f64], convert: &dyn Fn(f64) -> f64| {
            for score in scores {
                *score = convert(*score);
            }
        };
        match self {
            Self::Identity => {}
            Self::SignedSquare => each(scores, &|score| score * score.abs()),
            Self::Exp => each(scores, &f64::exp),
            Self::Binary { sigmoid } | Self::OneVersusAll { sigmoid } => {
                each(scores, &|score| 1.0 / (1.0 + (-sigmoid * score).exp()));
            }
            Self::CrossEntropy => each(scores, &|score| 1.0 / (1.0 + (-score).exp())),
            Self::CrossEntropyLambda => each(scores, &|score| score.exp().ln_1p()),
            Self::Softmax => {
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                each(scores, &|score| (score - largest).exp());
                let sum: f64 = scores.iter().sum();
                each(scores, &|score| score / sum);
            }
        }
    }
}
