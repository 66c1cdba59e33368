//! What is reported of a model.

use crate::{
    cluster::{Custom, Model},
    conditions::{Outlook, Says, Truth, conditions},
    schedulers::ModelView,
};
use gantry_api::ModelStatus;
use gantry_core::mutant;
use gantry_proto::scheduler::{self as pb, model_status::ModelState};
use k8s_openapi::jiff::Timestamp;

/// The condition of Seldon's operator, of which `Ready` is made.
const MODEL_READY: &str = "ModelReady";

/// What a scheduler's view comes to.
pub(super) fn of(view: &ModelView) -> Says {
    let state = view.state();
    let report = view.latest.as_ref().and_then(|l| l.state.as_ref());
    let reason = report.map(|r| r.reason.clone()).unwrap_or_default();
    let code = report.map(|r| r.reason_code.clone()).unwrap_or_default();
    let version = view.latest.as_ref().map_or(0, |l| l.version);
    let server = view.latest.as_ref().map(|l| l.server_name.as_str()).filter(|s| !s.is_empty());
    let on = server.map(|s| format!(" on {s}")).unwrap_or_default();
    let or = |text: &str| if reason.is_empty() { text.to_owned() } else { reason.clone() };
    match state {
        ModelState::ModelAvailable => {
            Says::new(true, "ModelAvailable", format!("serves version {version}{on}"), Outlook::Settled)
        }
        ModelState::ModelScaledDown => Says::new(
            true,
            "ModelScaledDown",
            "sleeps: no replica is wanted until a request comes",
            Outlook::Settled,
        ),
        ModelState::ModelFailed => {
            Says::new(false, word(&code, "ModelFailed"), or("could not be loaded"), Outlook::Final)
        }
        ModelState::ScheduleFailed => Says::new(
            mutant::is("calls_failures_ready"),
            word(&code, "ScheduleFailed"),
            or("no server can take it"),
            Outlook::Passing,
        ),
        ModelState::ModelTerminating | ModelState::ModelTerminate => {
            Says::new(false, "ModelTerminating", or("is being unloaded"), Outlook::Passing)
        }
        ModelState::ModelTerminated | ModelState::ModelTerminateFailed => {
            Says::new(false, "ModelTerminated", or("is unloaded"), Outlook::Passing)
        }
        ModelState::ModelProgressing | ModelState::ModelCreate => Says::new(
            false,
            word(&code, "ModelProgressing"),
            or(&format!("version {version} is being loaded{on}")),
            Outlook::Passing,
        ),
        ModelState::Unknown => {
            Says::new(Truth::Unknown, "ModelStateUnknown", or("the scheduler does not say"), Outlook::Passing)
        }
    }
}

fn word(code: &str, usual: &str) -> String {
    if code.is_empty() { usual.to_owned() } else { code.to_owned() }
}

/// The whole status: what is said, and the figures of the scheduler's view.
pub(super) fn told(
    object: &Custom<Model>,
    says: &Says,
    view: Option<&ModelView>,
    now: Timestamp,
) -> ModelStatus {
    let before = object.status.clone().unwrap_or_default();
    let report = view.and_then(|v| v.latest.as_ref()).and_then(|l| l.state.as_ref());
    let server =
        view.and_then(|v| v.latest.as_ref()).map(|l| l.server_name.as_str()).filter(|s| !s.is_empty());
    let asked = object.spec.as_ref().ok().and_then(|s| s.scaling().ok()).map_or(0, |s| s.replicas);
    let available = report.map_or(0, |r| r.available_replicas);
    let all = report.map_or(asked, |r| r.available_replicas + r.unavailable_replicas).max(available);
    ModelStatus {
        observed_generation: Some(if mutant::is("tells_of_the_wrong_generation") {
            1
        } else {
            object.generation()
        }),
        conditions: conditions(&before.conditions, &[(MODEL_READY, says)], says, object.generation(), now),
        annotations: before.annotations,
        replicas: i32::try_from(all).unwrap_or(i32::MAX),
        available_replicas: i32::try_from(available).unwrap_or(i32::MAX),
        selector: server.map(|s| format!("server={s}")).or(before.selector),
        modelgw_ready: report.map(gateway).filter(|g| !g.is_empty()),
    }
}

/// The state of model gateways, where there are any, in the form of the reference.
fn gateway(report: &pb::ModelStatus) -> String {
    if report.model_gw_state() == ModelState::Unknown {
        return String::new();
    }
    let reason = &report.model_gw_reason;
    let state = report.model_gw_state().as_str_name();
    if reason.is_empty() { state.to_owned() } else { format!("{state} ({reason}) ") }
}
