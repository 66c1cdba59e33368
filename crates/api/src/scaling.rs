//! How many replicas are wanted, and between which bounds.

use crate::Refusal;

/// Replicas, fewest and most, checked against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Replicas wanted.
    pub replicas: u32,
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas; `u32::MAX` when there is no bound.
    pub max: u32,
}

/// One replica without bounds: what an empty spec asks for.
impl Default for Scaling {
    fn default() -> Self {
        Self { replicas: 1, min: 0, max: u32::MAX }
    }
}

/// A spec that asks for replicas.
pub(crate) trait Scaled {
    /// `replicas`, `minReplicas` and `maxReplicas` as they are written.
    fn written(&self) -> [Option<i32>; 3];
}

impl Scaling {
    /// Fills in the defaults; `Err` is a field and what is wrong with it.
    pub fn new(replicas: Option<i32>, min: Option<i32>, max: Option<i32>) -> Result<Self, Refusal> {
        let whole = |field: &str, value: Option<i32>| {
            value
                .map(|v| {
                    u32::try_from(v)
                        .map_err(|_| (format!("spec.{field}"), format!("must be at least 0, got {v}")))
                })
                .transpose()
        };
        let replicas = whole("replicas", replicas)?;
        let min = whole("minReplicas", min)?.unwrap_or(0);
        // 0 stands for "no upper bound", as an unset field does.
        let max = whole("maxReplicas", max)?.filter(|m| *m > 0).unwrap_or(u32::MAX);
        if min > max {
            return Err(more_than_most(min, max));
        }
        let wanted = replicas.unwrap_or_else(|| min.max(1).min(max));
        if wanted < min {
            return Err(("spec.replicas".into(), format!("is {wanted}, fewer than minReplicas {min}")));
        }
        if wanted > max {
            return Err(("spec.replicas".into(), format!("is {wanted}, more than maxReplicas {max}")));
        }
        Ok(Self { replicas: wanted, min, max })
    }

    /// The upper bound as the scheduler's contract has it: 0 when there is none.
    pub(crate) const fn max_on_the_wire(&self) -> u32 {
        if self.max == u32::MAX { 0 } else { self.max }
    }
}

fn more_than_most(min: u32, max: u32) -> Refusal {
    (
        "spec.minReplicas".into(),
        format!("is {min}, more than maxReplicas {max}: lower one or raise the other"),
    )
}
