//! Rollout policies, commands and statistics.

use super::Invalid;
use gantry_core::{
    rollout::{Errors, LatencyHistogram, Sample, Stats},
    scheduling::{PolicyRecord, RolloutTarget, Steer},
};
use gantry_proto::gantry::{RolloutPolicy, VersionTraffic, steer_rollout_request::Action};
use prost::Message as _;
use std::sync::Arc;

const MAX_SPEC: usize = 64 << 10;
const MAX_TARGETS: usize = 10_000;

pub(crate) fn rollout_policy(policy: RolloutPolicy) -> Result<PolicyRecord, Invalid> {
    gantry_api::check_name(&policy.name).map_err(|problem| Invalid::new(format!("name: {problem}")))?;
    for (field, count) in [("models", policy.models.len()), ("pipelines", policy.pipelines.len())] {
        if count > MAX_TARGETS {
            return Err(Invalid::new(format!("{field}: {count} names, at most {MAX_TARGETS} are possible")));
        }
    }
    if policy.spec.len() > MAX_SPEC {
        return Err(Invalid::new(format!("spec: more than {MAX_SPEC} bytes")));
    }
    let rules = gantry_api::rollout_policy::policy_of_json(&policy.spec).map_err(Invalid::new)?;
    let content = policy.encode_to_vec().into();
    let models = policy.models.into_iter().map(RolloutTarget::model);
    let pipelines = policy.pipelines.into_iter().map(RolloutTarget::pipeline);
    Ok(PolicyRecord {
        name: policy.name.into(),
        targets: models.chain(pipelines).collect(),
        policy: Arc::new(rules),
        content,
    })
}

/// The object that a message names: a model, or a pipeline instead.
pub(crate) fn rollout_target(model: &str, pipeline: &str) -> RolloutTarget {
    if pipeline.is_empty() { RolloutTarget::model(model) } else { RolloutTarget::pipeline(pipeline) }
}

/// `None` for an unknown action.
pub(crate) fn steer(action: i32) -> Option<Steer> {
    Some(match Action::try_from(action).ok()? {
        Action::Unknown => return None,
        Action::Promote => Steer::Promote,
        Action::PromoteFull => Steer::PromoteFull,
        Action::Pause => Steer::Pause,
        Action::Resume => Steer::Resume,
        Action::Abort => Steer::Abort,
        Action::Retry => Steer::Retry,
        Action::Undo => Steer::Undo,
    })
}

pub(crate) fn version_traffic(traffic: VersionTraffic) -> (u32, Stats) {
    let stats = Stats {
        requests: traffic.requests,
        errors: Errors {
            server: traffic.server_errors,
            timeout: traffic.timeouts,
            connection: traffic.connection_errors,
            client: traffic.client_errors,
        },
        latency: LatencyHistogram::from_counts(traffic.latency),
        outputs: traffic.value_bins.into_iter().zip(traffic.value_counts).collect(),
        compared: Sample::new(traffic.differing, traffic.compared),
        ..Stats::default()
    };
    (traffic.version, stats)
}
