//! Scale-up and scale-down triggers for the scheduler.

use crate::model_cache::ModelInfo;
use gantry_proto::agent::{ModelScalingTriggerMessage, model_scaling_trigger_message::Trigger};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// In-flight requests per model that trigger a scale-up.
    pub in_flight: u32,
    /// Idle time that triggers a scale-down.
    pub idle: Duration,
    /// Evaluation interval.
    pub period: Duration,
}

impl Default for Scaling {
    fn default() -> Self {
        Self { in_flight: 30, idle: Duration::from_mins(10), period: Duration::from_secs(20) }
    }
}

/// Triggers are repeated at each evaluation.
pub(crate) fn triggers(
    scaling: &Scaling,
    server: &str,
    replica: u32,
    models: &[ModelInfo],
) -> Vec<ModelScalingTriggerMessage> {
    let watched = models.iter().filter(|m| m.autoscaling);
    watched
        .filter_map(|model| {
            let (trigger, metric, value) = if model.in_flight >= scaling.in_flight.max(1) {
                (Trigger::ScaleUp, "inference_lag", model.in_flight)
            } else if model.in_flight == 0 && model.idle >= scaling.idle {
                let seconds = u32::try_from(model.idle.as_secs()).unwrap_or(u32::MAX);
                (Trigger::ScaleDown, "inactive_seconds", seconds)
            } else {
                return None;
            };
            Some(ModelScalingTriggerMessage {
                server_name: server.to_owned(),
                replica_idx: replica,
                model_name: model.model.clone(),
                model_version: model.version,
                trigger: trigger as i32,
                amount: 1,
                metrics: [(metric.to_owned(), value)].into(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn triggers_follow_in_flight_and_idle_time() {
        let scaling = Scaling::default();
        for (autoscaling, in_flight, idle, expected) in [
            (true, 30, 0, Some(Trigger::ScaleUp)),
            (true, 29, 0, None),
            (true, 0, 599, None),
            (true, 0, 600, Some(Trigger::ScaleDown)),
            // A long request keeps its model.
            (true, 1, 3600, None),
            (true, 40, 3600, Some(Trigger::ScaleUp)),
            (false, 100, 0, None),
            (false, 0, 9999, None),
        ] {
            let model = ModelInfo {
                name: "m_2".into(),
                model: "m".into(),
                version: 2,
                in_memory: true,
                used: SystemTime::UNIX_EPOCH,
                idle: Duration::from_secs(idle),
                in_flight,
                autoscaling,
            };
            let triggers = triggers(&scaling, "s", 1, &[model]);
            assert_eq!(triggers.first().map(ModelScalingTriggerMessage::trigger), expected);
            assert!(triggers.iter().all(|t| t.model_name == "m" && t.model_version == 2 && t.amount == 1));
        }
    }
}
