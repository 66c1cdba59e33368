//! `modelStatus`: the state of the model, from its pods.

use super::{
    component::{BuildError, ComponentKind},
    pods::{PodFailure, UNSCHEDULABLE, failure, is_downloading, is_ready},
};
use crate::cluster::OwnedObject;
use gantry_api::kserve::{FailureInfo, ModelCopies, ModelStates, ModelStatus};
use std::sync::Arc;

/// The status of a model that cannot be deployed.
pub(super) fn invalid(error: &BuildError, before: Option<&ModelStatus>) -> ModelStatus {
    let reason = match error.component {
        ComponentKind::Predictor => error.reason,
        ComponentKind::Transformer | ComponentKind::Explainer => "InvalidPredictorSpec",
    };
    let known = ["RuntimeDisabled", "NoSupportingRuntime", "RuntimeNotRecognized"];
    let reason = if known.contains(&reason) { reason } else { "InvalidPredictorSpec" };
    let failure = FailureInfo {
        reason: Some(reason.to_owned()),
        message: Some(error.message.clone()),
        ..FailureInfo::default()
    };
    ModelStatus {
        transition_status: "InvalidSpec".into(),
        states: Some(states(before, "FailedToLoad")),
        last_failure_info: Some(failure),
        copies: before.and_then(|before| before.copies.clone()),
    }
}

fn states(before: Option<&ModelStatus>, target: &str) -> ModelStates {
    let active = before.and_then(|b| b.states.as_ref()).map(|states| states.active_model_state.clone());
    ModelStates {
        active_model_state: active.filter(|state| !state.is_empty()).unwrap_or_else(|| "Pending".into()),
        target_model_state: target.to_owned(),
    }
}

/// The status of a model without pods.
pub(super) fn standby() -> ModelStatus {
    let standby = || "Standby".to_owned();
    ModelStatus {
        transition_status: "UpToDate".into(),
        states: Some(ModelStates { active_model_state: standby(), target_model_state: standby() }),
        last_failure_info: None,
        copies: Some(ModelCopies { failed_copies: 0, total_copies: Some(0) }),
    }
}

/// The status of a deployed model.
pub(super) fn observed(
    pods: &[&Arc<OwnedObject>],
    is_done: bool,
    revision: Option<&str>,
    before: Option<&ModelStatus>,
) -> ModelStatus {
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let failed: Vec<PodFailure> = pods.iter().filter_map(|pod| failure(pod)).collect();
    let copies = Some(ModelCopies {
        failed_copies: i64::try_from(failed.iter().filter(|f| f.has_run()).count()).unwrap_or_default(),
        total_copies: i64::try_from(ready).ok(),
    });
    if is_done {
        let loaded = ModelStates { active_model_state: "Loaded".into(), target_model_state: "Loaded".into() };
        let transition_status = "UpToDate".into();
        return ModelStatus { transition_status, states: Some(loaded), last_failure_info: None, copies };
    }
    let (transition, target) = match () {
        // A pod that waits for a node has not failed: it may fit later.
        () if failed.iter().any(|f| f.reason != UNSCHEDULABLE) => ("BlockedByFailedLoad", "FailedToLoad"),
        () if pods.iter().any(|pod| is_downloading(pod)) => ("InProgress", "Loading"),
        () => ("InProgress", "Pending"),
    };
    let mut states = states(before, target);
    if ready > 0 {
        states.active_model_state = "Loaded".into();
    }
    let last_failure_info = failed.first().map(|failure| FailureInfo {
        location: Some(failure.pod.clone()),
        reason: Some(if failure.has_run() { "ModelLoadFailed" } else { "RuntimeUnhealthy" }.to_owned()),
        message: Some(failure.message.clone()),
        model_revision_name: revision.map(str::to_owned),
        time: None,
        exit_code: failure.exit_code,
    });
    ModelStatus { transition_status: transition.into(), states: Some(states), last_failure_info, copies }
}
