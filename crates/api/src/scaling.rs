//! Desired replicas and their bounds.

use crate::FieldError;

/// Validated desired, minimum and maximum replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    pub replicas: u32,
    pub min: u32,
    /// `u32::MAX` when unbounded.
    pub max: u32,
}

/// One replica, unbounded: the default of an empty spec.
impl Default for Scaling {
    fn default() -> Self {
        Self { replicas: 1, min: 0, max: u32::MAX }
    }
}

/// A spec with replica fields.
pub(crate) trait ReplicaFields {
    /// `replicas`, `minReplicas` and `maxReplicas` as specified.
    fn replica_fields(&self) -> [Option<i32>; 3];
}

impl Scaling {
    /// Fills in the defaults.
    pub fn new(replicas: Option<i32>, min: Option<i32>, max: Option<i32>) -> Result<Self, FieldError> {
        let non_negative = |field: &str, value: Option<i32>| {
            value
                .map(|v| {
                    u32::try_from(v)
                        .map_err(|_| (format!("spec.{field}"), format!("must be at least 0, got {v}")))
                })
                .transpose()
        };
        let replicas = non_negative("replicas", replicas)?;
        let min = non_negative("minReplicas", min)?.unwrap_or(0);
        // 0 means unbounded, like an unset field.
        let max = non_negative("maxReplicas", max)?.filter(|m| *m > 0).unwrap_or(u32::MAX);
        if min > max {
            return Err(min_above_max(min, max));
        }
        let desired = replicas.unwrap_or_else(|| min.max(1).min(max));
        if desired < min {
            return Err(("spec.replicas".into(), format!("is {desired}, fewer than minReplicas {min}")));
        }
        if desired > max {
            return Err(("spec.replicas".into(), format!("is {desired}, more than maxReplicas {max}")));
        }
        Ok(Self { replicas: desired, min, max })
    }

    /// The upper bound in the scheduler's gRPC API: 0 means unbounded.
    pub(crate) const fn max_in_proto(&self) -> u32 {
        if self.max == u32::MAX { 0 } else { self.max }
    }
}

fn min_above_max(min: u32, max: u32) -> FieldError {
    (
        "spec.minReplicas".into(),
        format!("is {min}, more than maxReplicas {max}: lower one or raise the other"),
    )
}
