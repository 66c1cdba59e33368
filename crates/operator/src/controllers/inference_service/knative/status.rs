//! What a Service of Knative reports: conditions, revisions, traffic and URL.

use super::super::{component::Component, model_status, snapshot::Snapshot, status::Fact};
use crate::{
    cluster::{Custom, InferenceService, OwnedObject},
    conditions::ConditionStatus,
};
use gantry_api::kserve::{ComponentStatus, ModelStatus, StatusAddress, TrafficTarget};
use serde_json::Value;
use std::sync::Arc;

/// The label of a pod with its revision.
const REVISION: &str = "serving.knative.dev/revision";

/// The state of one component.
#[derive(Clone, Debug)]
pub(super) struct ServiceState<'a> {
    pub component: &'a Component,
    live: Option<&'a OwnedObject>,
    before: Option<&'a ComponentStatus>,
    /// Whether the status is that of the latest spec.
    is_current: bool,
    pub ready: Fact,
    pub route: Fact,
    pub configuration: Fact,
}

impl<'a> ServiceState<'a> {
    pub(super) fn of(
        object: &'a Custom<InferenceService>,
        component: &'a Component,
        live: Option<&'a OwnedObject>,
    ) -> Self {
        let generation = |live: &OwnedObject| live.metadata.generation.unwrap_or_default();
        let is_current =
            live.is_some_and(|live| live.number("/status/observedGeneration") >= generation(live));
        let before = object.status.as_ref().and_then(|s| s.components.get(component.kind.as_str()));
        let fact = |name: &str| condition(component, live.filter(|_| is_current), name);
        Self {
            component,
            live,
            before,
            is_current,
            ready: fact("Ready"),
            route: fact("RoutesReady"),
            configuration: fact("ConfigurationsReady"),
        }
    }

    fn text(&self, pointer: &str) -> Option<String> {
        let found = self.live?.data.pointer(pointer).and_then(Value::as_str);
        found.filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The revision that had all traffic, which a canary leaves the rest to.
    pub(super) fn rolled_out(&self) -> Option<&str> {
        self.before?.latest_rolledout_revision.as_deref()
    }

    /// The URL of the Service, of a ready one or of an earlier status.
    pub(super) fn url(&self) -> Option<String> {
        let live = self.text("/status/url").filter(|_| self.ready.is_true());
        live.or_else(|| self.before.and_then(|before| before.url.clone()))
    }

    fn traffic(&self) -> Vec<TrafficTarget> {
        let traffic = self.live.and_then(|live| live.data.pointer("/status/traffic")).cloned();
        traffic.and_then(|traffic| serde_json::from_value(traffic).ok()).unwrap_or_default()
    }

    pub(super) fn component_status(&self) -> ComponentStatus {
        let before = self.before.cloned().unwrap_or_default();
        let created = self.text("/status/latestCreatedRevisionName").or(before.latest_created_revision);
        let ready = self.text("/status/latestReadyRevisionName").or(before.latest_ready_revision);
        let (rolled_out, previous) = self.rolled_out_revisions(created.as_deref(), ready.as_deref());
        let address = self.text("/status/address/url").filter(|_| self.ready.is_true());
        let address = address.map(|url| StatusAddress { url: Some(url) }).or(before.address);
        ComponentStatus {
            latest_created_revision: created,
            latest_ready_revision: ready,
            latest_rolledout_revision: rolled_out,
            previous_rolledout_revision: previous,
            traffic: self.traffic(),
            url: self.url(),
            address,
            ..ComponentStatus::default()
        }
    }

    /// The revision with all traffic and the one before it. A status of an older spec moves nothing.
    fn rolled_out_revisions(
        &self,
        created: Option<&str>,
        ready: Option<&str>,
    ) -> (Option<String>, Option<String>) {
        let rolled_out = self.before.and_then(|b| b.latest_rolledout_revision.clone());
        let previous = self.before.and_then(|b| b.previous_rolledout_revision.clone());
        let traffic = self.traffic();
        let is_latest =
            |t: &&TrafficTarget| t.latest_revision == Some(true) && t.revision_name.as_deref() == ready;
        let share = traffic.iter().find(is_latest).and_then(|target| target.percent);
        let (Some(ready), Some(share), true) = (ready, share, self.is_current) else {
            return (rolled_out, previous);
        };
        if rolled_out.as_deref() != Some(ready) {
            return if share == 100 { (Some(ready.to_owned()), rolled_out) } else { (rolled_out, previous) };
        }
        // The canary was reverted: its revision is the one that was rolled out, with the rest of the traffic.
        let of_revision = traffic.iter().filter(|t| t.revision_name.as_deref() == Some(ready));
        let total: i64 = of_revision.filter_map(|target| target.percent).sum();
        if share < 100 && total == 100 && created == Some(ready) && previous.is_some() {
            return (previous.clone(), previous);
        }
        (rolled_out, previous)
    }

    /// The state of the model, from the pods of the latest revision.
    pub(super) fn model_status(&self, snapshot: &Snapshot, before: Option<&ModelStatus>) -> ModelStatus {
        let created = self.text("/status/latestCreatedRevisionName");
        let is_of = |pod: &&Arc<OwnedObject>| {
            let revision = pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION));
            revision.is_some() && revision == created.as_ref() && pod.metadata.deletion_timestamp.is_none()
        };
        let pods: Vec<&Arc<OwnedObject>> = snapshot.pods.iter().filter(is_of).collect();
        let is_done = self.ready.is_true() && created == self.text("/status/latestReadyRevisionName");
        let mut status = model_status::observed(&pods, is_done, created.as_deref(), before);
        // A revision without pods has failed before it got one.
        if pods.is_empty() && !is_done && self.ready.status == ConditionStatus::False {
            status.transition_status = "BlockedByFailedLoad".into();
            if let Some(states) = &mut status.states {
                states.target_model_state = "FailedToLoad".into();
            }
        }
        status
    }
}

/// A condition of the live Service; unknown while it is missing, or its status is that of an older spec.
fn condition(component: &Component, live: Option<&OwnedObject>, name: &str) -> Fact {
    let conditions = live.and_then(|live| live.data.pointer("/status/conditions")).and_then(Value::as_array);
    let text = |c: &Value, field: &str| c.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = conditions.into_iter().flatten().find(|c| text(c, "type") == name);
    let Some(found) = found else {
        let message = format!("Service {} of Knative has not been reconciled yet", component.key.name);
        return Fact::new(ConditionStatus::Unknown, "", message);
    };
    let status = match text(found, "status").as_str() {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    Fact::new(status, text(found, "reason"), text(found, "message"))
}
