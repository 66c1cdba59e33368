//! Decisions about rollouts, for notifications.

use gantry_core::{
    rollout::{Event, Exposure, Finding},
    scheduling::{Millis, ObjectRollout, RolloutKind, RolloutTarget, State},
};
use gantry_proto::gantry::{RolloutPolicy, ServiceRoute};
use prost::Message as _;
use std::sync::Arc;

/// Notices that a receiver may be behind before it loses some.
pub(crate) const CAPACITY: usize = 1024;

/// An event of a rollout, after it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutNotice {
    /// Name of the event, as in the metric `rollout_events`.
    pub event: &'static str,
    pub at: Millis,
    /// As in manifests.
    pub kind: &'static str,
    /// Of a service, `namespace/name`.
    pub name: Arc<str>,
    /// Of the policy in the API server; empty for others.
    pub namespace: String,
    pub policy: Arc<str>,
    /// The version that the event is about; `None` if it is gone.
    pub version: Option<u32>,
    /// The version that is returned to.
    pub to: Option<u32>,
    /// Percentage of the requests that the version gets from now on, or of those that are copied to it.
    pub percent: Option<u32>,
    /// A reason that a program can match, where the event has one.
    pub reason: Option<String>,
    /// One sentence.
    pub message: String,
    /// `spec` of the policy as JSON.
    pub spec: Vec<u8>,
}

/// `None` for a rejected command, whose caller gets the reason, and for an object that is gone.
pub(crate) fn of(state: &State, target: &RolloutTarget, event: &Event, at: Millis) -> Option<RolloutNotice> {
    let (revision, to, finding) = match event {
        Event::CommandRejected { .. } => return None,
        Event::RolledBack { revision, to, finding } => (revision, Some(to), Some(finding)),
        Event::Degraded { revision, finding } => (revision, None, Some(finding)),
        Event::Reverting { revision, to }
        | Event::Reverted { revision, to }
        | Event::RevertFailed { revision, to } => (revision, Some(to), None),
        Event::Deployed { revision }
        | Event::Started { revision }
        | Event::StageEntered { revision, .. }
        | Event::Paused { revision }
        | Event::ApprovalNeeded { revision }
        | Event::Resumed { revision }
        | Event::Promoted { revision }
        | Event::Cancelled { revision }
        | Event::BakeEnded { revision } => (revision, None, None),
    };
    let rollout = rollout(state, target)?;
    let (namespace, spec) = source(state, target, &rollout.policy)?;
    let (version, to) = (number(state, target, revision), to.and_then(|to| number(state, target, to)));
    let exposure = match event {
        Event::StageEntered { exposure, .. } => Some(*exposure),
        _ => None,
    };
    Some(RolloutNotice {
        event: event.name(),
        at,
        kind: target.kind.name(),
        name: target.name.clone(),
        namespace,
        policy: rollout.policy.clone(),
        version,
        to,
        percent: exposure.map(|exposure| exposure.percent().get()),
        reason: finding.map(|finding| finding.reason.to_string()),
        message: sentence(target, event, version, to, finding),
        spec,
    })
}

fn rollout<'a>(state: &'a State, target: &RolloutTarget) -> Option<&'a ObjectRollout> {
    match target.kind {
        RolloutKind::Model => state.models().get(&target.name)?.rollout.as_deref(),
        RolloutKind::Pipeline => state.pipelines().get(&target.name)?.rollout.as_deref(),
        RolloutKind::Service => state.services().get(&target.name)?.rollout.as_deref(),
    }
}

/// The newest version of a revision.
fn number(state: &State, target: &RolloutTarget, revision: &str) -> Option<u32> {
    match target.kind {
        RolloutKind::Model => {
            let versions = &state.models().get(&target.name)?.versions;
            versions.iter().rfind(|v| *v.revision() == *revision).map(|v| v.number)
        }
        RolloutKind::Pipeline => {
            let versions = &state.pipelines().get(&target.name)?.versions;
            versions.iter().rfind(|v| *v.revision() == *revision).map(|v| v.number)
        }
        RolloutKind::Service => {
            let delivery = state.services().get(&target.name)?.delivery.as_ref()?;
            delivery.versions.iter().rfind(|v| *v.revision == *revision).map(|v| v.number)
        }
    }
}

/// Namespace and spec of the policy, as it was put or as it came with the route of a service.
fn source(state: &State, target: &RolloutTarget, policy: &str) -> Option<(String, Vec<u8>)> {
    if target.kind == RolloutKind::Service {
        let route = ServiceRoute::decode(&*state.services().get(&target.name)?.route).ok()?;
        return Some((route.namespace, route.delivery?.spec));
    }
    let record = state.rollout_policies().get(policy)?;
    let RolloutPolicy { namespace, spec, .. } = RolloutPolicy::decode(&*record.content).ok()?;
    Some((namespace, spec))
}

fn sentence(
    target: &RolloutTarget,
    event: &Event,
    version: Option<u32>,
    to: Option<u32>,
    finding: Option<&Finding>,
) -> String {
    let named = |version: Option<u32>| version.map_or_else(|| "a version".into(), |v| format!("version {v}"));
    let (version, to) = (named(version), named(to));
    let happened = match event {
        Event::Deployed { .. } => format!("{version} is deployed"),
        Event::Started { .. } => format!("the rollout of {version} started"),
        Event::StageEntered { exposure: Exposure::Weight(percent), .. } => {
            format!("{version} gets {percent} of the requests")
        }
        Event::StageEntered { exposure: Exposure::Mirror(percent), .. } => {
            format!("{version} gets copies of {percent} of the requests")
        }
        Event::Paused { .. } => format!("the rollout of {version} is paused"),
        Event::ApprovalNeeded { .. } => {
            format!("{version} waits for approval: gantry rollout promote {}", target.name)
        }
        Event::Resumed { .. } => format!("the rollout of {version} continues"),
        Event::Promoted { .. } => format!("{version} is promoted"),
        Event::RolledBack { .. } => format!("{version} is rolled back to {to}"),
        Event::Cancelled { .. } => {
            format!("the rollout of {version} is cancelled, because the spec changed")
        }
        Event::BakeEnded { .. } => format!("the bake of {version} ended"),
        Event::Degraded { .. } => format!("{version}, which serves, has a problem"),
        Event::Reverting { .. } => format!("{version} returns to {to}"),
        Event::Reverted { .. } => format!("{version} is replaced by {to}, the previous one"),
        Event::RevertFailed { .. } => {
            format!("{version} still serves: {to}, the previous one, did not become ready")
        }
        Event::CommandRejected { .. } => String::new(),
    };
    let why = finding.map(|finding| format!(": {}", finding.message)).unwrap_or_default();
    format!("{target}: {happened}{why}")
}
