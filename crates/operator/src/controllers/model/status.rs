//! Status of a model.

use crate::{
    cluster::{Custom, Model},
    conditions::{ConditionStatus, ConditionUpdate, Progress, conditions},
    schedulers::{ModelView, ServingVersion},
};
use gantry_api::ModelStatus;
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use k8s_openapi::jiff::Timestamp;

/// The condition of Seldon's operator that `Ready` is derived from.
const MODEL_READY: &str = "ModelReady";

/// The condition of a model as its scheduler has it.
pub(super) fn of(view: &ModelView) -> ConditionUpdate {
    let state = view.state();
    let report = view.latest.as_ref().and_then(|l| l.state.as_ref());
    let reason = report.map(|r| r.reason.clone()).unwrap_or_default();
    let code = report.map(|r| r.reason_code.clone()).unwrap_or_default();
    let version = view.latest.as_ref().map_or(0, |l| l.version);
    let server = view.latest.as_ref().map(|l| l.server_name.as_str()).filter(|s| !s.is_empty());
    let on = server.map(|s| format!(" on {s}")).unwrap_or_default();
    let or = |text: &str| if reason.is_empty() { text.to_owned() } else { reason.clone() };
    let stable = serving(view).map(|serving| serving.version);
    match state {
        ModelState::ModelAvailable => ConditionUpdate::new(
            true,
            "ModelAvailable",
            format!("serves version {version}{on}"),
            Progress::Settled,
        ),
        ModelState::ModelScaledDown => ConditionUpdate::new(
            true,
            "ModelScaledDown",
            "scaled to zero; will scale up on the next request",
            Progress::Settled,
        ),
        ModelState::ModelFailed if code == "RolledBack" => {
            let stable = stable.map(|stable| format!("; version {stable} serves")).unwrap_or_default();
            let message = format!(
                "version {version} was {}{stable}: change the Model, or allow it again with `gantry rollout retry`",
                or("rolled back")
            );
            ConditionUpdate::new(false, code, message, Progress::Stalled)
        }
        ModelState::ModelProgressing if code == "RollingOut" => {
            let stable = stable.map(|stable| format!("; version {stable} serves the others"));
            let is = if reason.starts_with("waits") { "" } else { "is " };
            let message = format!("version {version} {is}{}{}", or("rolled out"), stable.unwrap_or_default());
            ConditionUpdate::new(false, code, message, Progress::InProgress)
        }
        ModelState::ModelFailed => ConditionUpdate::new(
            false,
            reason_or(&code, "ModelFailed"),
            or("could not be loaded"),
            Progress::Stalled,
        ),
        ModelState::ScheduleFailed => ConditionUpdate::new(
            false,
            reason_or(&code, "ScheduleFailed"),
            or("no server fits"),
            Progress::InProgress,
        ),
        ModelState::ModelTerminating | ModelState::ModelTerminate => {
            ConditionUpdate::new(false, "ModelTerminating", or("is being unloaded"), Progress::InProgress)
        }
        ModelState::ModelTerminated | ModelState::ModelTerminateFailed => {
            ConditionUpdate::new(false, "ModelTerminated", or("is unloaded"), Progress::InProgress)
        }
        ModelState::ModelProgressing | ModelState::ModelCreate => ConditionUpdate::new(
            false,
            reason_or(&code, "ModelProgressing"),
            or(&format!("version {version} is being loaded{on}")),
            Progress::InProgress,
        ),
        ModelState::Unknown => ConditionUpdate::new(
            ConditionStatus::Unknown,
            "ModelStateUnknown",
            or("the scheduler reports no state"),
            Progress::InProgress,
        ),
    }
}

/// The version that serves requests beside the latest one, or instead of it, under a rollout policy.
fn serving(view: &ModelView) -> Option<ServingVersion> {
    let latest = view.latest.as_ref().map_or(0, |latest| latest.version);
    view.serving.filter(|serving| serving.version != latest)
}

fn reason_or(code: &str, default: &str) -> String {
    if code.is_empty() { default.to_owned() } else { code.to_owned() }
}

pub(super) fn build_status(
    object: &Custom<Model>,
    condition: &ConditionUpdate,
    view: Option<&ModelView>,
    now: Timestamp,
) -> ModelStatus {
    let before = object.status.clone().unwrap_or_default();
    let report = view.and_then(|v| v.latest.as_ref()).and_then(|l| l.state.as_ref());
    let server =
        view.and_then(|v| v.latest.as_ref()).map(|l| l.server_name.as_str()).filter(|s| !s.is_empty());
    let desired = object.spec.as_ref().ok().and_then(|s| s.scaling().ok()).map_or(0, |s| s.replicas);
    let latest = report.map_or(0, |r| r.available_replicas);
    let available = latest.saturating_add(view.and_then(serving).map_or(0, |serving| serving.available));
    let all = report.map_or(desired, |r| r.available_replicas + r.unavailable_replicas).max(available);
    ModelStatus {
        observed_generation: Some(object.generation()),
        conditions: conditions(
            &before.conditions,
            &[(MODEL_READY, condition)],
            condition,
            object.generation(),
            now,
        ),
        annotations: before.annotations,
        replicas: i32::try_from(all).unwrap_or(i32::MAX),
        available_replicas: i32::try_from(available).unwrap_or(i32::MAX),
        selector: server.map(|s| format!("server={s}")).or(before.selector),
        modelgw_ready: report.map(gateway).filter(|g| !g.is_empty()),
    }
}

/// The last status of this generation, with another condition: what the scheduler reported before is unknown now, not
/// gone.
pub(super) fn unreachable(
    object: &Custom<Model>,
    condition: &ConditionUpdate,
    now: Timestamp,
) -> ModelStatus {
    let before = object.status.clone().unwrap_or_default();
    let own = [(MODEL_READY, condition)];
    ModelStatus {
        conditions: conditions(&before.conditions, &own, condition, object.generation(), now),
        ..before
    }
}

/// The state of model gateways, in Seldon's format.
fn gateway(report: &pb::ModelStatus) -> String {
    if report.model_gw_state() == ModelState::Unknown {
        return String::new();
    }
    let reason = &report.model_gw_reason;
    let state = report.model_gw_state().as_str_name();
    if reason.is_empty() { state.to_owned() } else { format!("{state} ({reason}) ") }
}
