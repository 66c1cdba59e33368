//! Rollout policies, commands and statistics.

use super::Invalid;
use gantry_core::{
    rollout::{Errors, LatencyHistogram, RolloutPolicy as RolloutPolicyRules, Sample, Stats},
    scheduling::{PolicyRecord, RolloutTarget, Steer},
};
use gantry_proto::gantry::{RolloutPolicy, VersionTraffic, steer_rollout_request::Action};
use prost::Message as _;
use std::sync::Arc;

const MAX_SPEC: usize = 64 << 10;
const MAX_TARGETS: usize = 10_000;

pub(crate) fn rollout_policy(policy: RolloutPolicy) -> Result<PolicyRecord, Invalid> {
    for (field, count) in [("models", policy.models.len()), ("pipelines", policy.pipelines.len())] {
        if count > MAX_TARGETS {
            return Err(Invalid::new(format!("{field}: {count} names, at most {MAX_TARGETS} are possible")));
        }
    }
    let rules = rules("name", &policy.name, &policy.spec)?;
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

/// The rules of a policy; `at` is where its name is.
pub(super) fn rules(at: &str, name: &str, spec: &[u8]) -> Result<RolloutPolicyRules, Invalid> {
    gantry_api::check_name(name).map_err(|problem| Invalid::new(format!("{at}: {problem}")))?;
    if spec.len() > MAX_SPEC {
        return Err(Invalid::new(format!("spec: more than {MAX_SPEC} bytes")));
    }
    gantry_api::rollout_policy::policy_of_json(spec).map_err(Invalid::new)
}

/// The object that a message names: a model, or a pipeline or service instead. `None` unless it is one of them.
pub(crate) fn rollout_target(model: &str, pipeline: &str, service: &str) -> Option<RolloutTarget> {
    match (model, pipeline, service) {
        (model, "", "") if !model.is_empty() => Some(RolloutTarget::model(model)),
        ("", pipeline, "") if !pipeline.is_empty() => Some(RolloutTarget::pipeline(pipeline)),
        ("", "", service) if !service.is_empty() => Some(RolloutTarget::service(service)),
        _ => None,
    }
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
