//! Pipeline status.

use super::Readiness;
use crate::output::{count, rfc3339};
use gantry_api::Pipeline;
use gantry_proto::scheduler::{self as pb, pipeline_version_state::PipelineStatus};
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(crate) struct PipelineView {
    pub(crate) name: String,
    /// Latest first.
    pub(crate) versions: Vec<PipelineVersionView>,
}

#[derive(Clone, Debug)]
pub(crate) struct PipelineVersionView {
    pub(crate) number: u32,
    pub(crate) status: PipelineStatus,
    pub(crate) reason: String,
    pub(crate) models_ready: bool,
    pub(crate) gateway: PipelineStatus,
    pub(crate) gateway_reason: String,
    pub(crate) since: Option<prost_types::Timestamp>,
    pub(crate) definition: pb::Pipeline,
}

impl From<pb::PipelineStatusResponse> for PipelineView {
    fn from(status: pb::PipelineStatusResponse) -> Self {
        let mut versions: Vec<_> = status.versions.into_iter().map(PipelineVersionView::from).collect();
        versions.sort_by_key(|v| std::cmp::Reverse(v.number));
        Self { name: status.pipeline_name, versions }
    }
}

impl From<pb::PipelineWithState> for PipelineVersionView {
    fn from(version: pb::PipelineWithState) -> Self {
        let (definition, state) = (version.pipeline.unwrap_or_default(), version.state.unwrap_or_default());
        Self {
            number: definition.version.max(state.pipeline_version),
            status: state.status(),
            models_ready: state.models_ready,
            gateway: state.pipeline_gw_status(),
            reason: state.reason,
            gateway_reason: state.pipeline_gw_reason,
            since: state.last_change_timestamp,
            definition,
        }
    }
}

impl PipelineView {
    /// The latest requested version.
    pub(crate) fn latest(&self) -> Option<&PipelineVersionView> {
        self.versions.first()
    }

    pub(crate) fn is_terminated(&self) -> bool {
        self.latest().is_none_or(|v| v.status == PipelineStatus::PipelineTerminated)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.latest().map_or(Readiness::Deleted, PipelineVersionView::readiness)
    }

    pub(crate) fn message(&self) -> String {
        self.latest().map(PipelineVersionView::message).unwrap_or_default()
    }

    /// The manifest with its status.
    pub(crate) fn document(&self, all_versions: bool) -> Value {
        let Some(latest) = self.latest() else {
            return json!({ "kind": "Pipeline", "metadata": { "name": self.name } });
        };
        let mut document = serde_json::to_value(Pipeline::from_proto(&latest.definition)).unwrap_or_default();
        let mut status = latest.status();
        if all_versions && let Value::Object(map) = &mut status {
            let versions: Value = self.versions.iter().map(PipelineVersionView::summary).collect();
            map.insert("versions".into(), versions);
        }
        if let Value::Object(map) = &mut document {
            map.insert("status".into(), status);
        }
        document
    }
}

impl PipelineVersionView {
    pub(crate) fn readiness(&self) -> Readiness {
        use PipelineStatus as S;
        match self.status {
            S::PipelineFailed | S::PipelineFailedTerminating => Readiness::Failed,
            S::PipelineTerminate | S::PipelineTerminating | S::PipelineTerminated => Readiness::Deleted,
            S::PipelineReady if self.models_ready && self.gateway == S::PipelineReady => Readiness::Ready,
            _ => Readiness::Progressing,
        }
    }

    pub(crate) fn state_name(&self) -> &'static str {
        self.status.as_str_name().trim_start_matches("Pipeline")
    }

    /// The reason if something is wrong, else a description of the state.
    pub(crate) fn message(&self) -> String {
        let number = self.number;
        match self.readiness() {
            Readiness::Ready => format!("serving version {number}"),
            Readiness::Deleted if self.status == PipelineStatus::PipelineTerminated => "deleted".into(),
            Readiness::Deleted => "terminating".into(),
            _ if !self.models_ready && !self.reason.is_empty() => self.reason.clone(),
            _ if !self.gateway_reason.is_empty() => self.gateway_reason.clone(),
            _ if !self.reason.is_empty() => self.reason.clone(),
            _ => format!("creating version {number}"),
        }
    }

    pub(crate) fn steps_column(&self) -> String {
        self.definition.steps.len().to_string()
    }

    pub(crate) fn summary_line(&self) -> String {
        count(self.definition.steps.len() as u64, "step")
    }

    fn status(&self) -> Value {
        let since = rfc3339(self.since);
        let condition = |kind: &str, ready: bool, reason: &str, message: &str| {
            let mut condition = json!({
                "type": kind,
                "status": if ready { "True" } else { "False" },
                "reason": reason,
                "message": message,
            });
            if let (Some(at), Value::Object(map)) = (&since, &mut condition) {
                map.insert("lastTransitionTime".into(), at.as_str().into());
            }
            condition
        };
        let (state, gateway) = (self.status.as_str_name(), self.gateway.as_str_name());
        let is_ready = |status| status == PipelineStatus::PipelineReady;
        json!({
            "conditions": [
                condition("ModelsReady", self.models_ready, if self.models_ready { "Ready" } else { "NotReady" },
                    if self.models_ready { "" } else { &self.reason }),
                condition("PipelineGwReady", is_ready(self.gateway), gateway, &self.gateway_reason),
                condition("PipelineReady", is_ready(self.status), state, &self.reason),
                condition("Ready", self.readiness() == Readiness::Ready, state, &self.message()),
            ],
            "state": state,
            "version": self.number,
        })
    }

    fn summary(&self) -> Value {
        json!({ "version": self.number, "state": self.status.as_str_name(), "reason": self.message() })
    }
}
