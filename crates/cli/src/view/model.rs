//! Model status.

use crate::output::{PLACEHOLDER, Tone, rfc3339};
use gantry_api::{INFERENCE_SERVICE, Model, kserve::InferenceServiceSpec};
use gantry_artifacts::Uri;
use gantry_proto::scheduler::{
    self as pb, model_replica_status::ModelReplicaState, model_status::ModelState,
};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// Not ready yet; may resolve without a change.
    Progressing,
    /// Stays failed until the spec or its files change.
    Failed,
    /// Terminating or terminated.
    Deleted,
}

impl Readiness {
    pub(crate) const fn tone(self) -> Tone {
        match self {
            Self::Ready => Tone::Good,
            Self::Progressing => Tone::Busy,
            Self::Failed => Tone::Bad,
            Self::Deleted => Tone::Faint,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ModelView {
    pub(crate) name: String,
    pub(crate) deleted: bool,
    /// Latest first.
    pub(crate) versions: Vec<VersionView>,
}

#[derive(Clone, Debug)]
pub(crate) struct VersionView {
    pub(crate) number: u32,
    pub(crate) server: Option<String>,
    pub(crate) state: ModelState,
    pub(crate) reason: String,
    /// Machine-readable reason.
    pub(crate) reason_code: String,
    pub(crate) available: u32,
    pub(crate) desired: u32,
    pub(crate) since: Option<prost_types::Timestamp>,
    pub(crate) replicas: Vec<ReplicaView>,
    pub(crate) definition: pb::Model,
}

#[derive(Clone, Debug)]
pub(crate) struct ReplicaView {
    pub(crate) index: i32,
    pub(crate) state: ModelReplicaState,
    pub(crate) reason: String,
    pub(crate) since: Option<prost_types::Timestamp>,
}

impl From<pb::ModelStatusResponse> for ModelView {
    fn from(status: pb::ModelStatusResponse) -> Self {
        let mut versions: Vec<VersionView> = status.versions.into_iter().map(VersionView::from).collect();
        versions.sort_by_key(|v| std::cmp::Reverse(v.number));
        Self { name: status.model_name, deleted: status.deleted, versions }
    }
}

impl From<pb::ModelVersionStatus> for VersionView {
    fn from(version: pb::ModelVersionStatus) -> Self {
        let state = version.state.unwrap_or_default();
        Self {
            number: version.version,
            server: Some(version.server_name).filter(|s| !s.is_empty()),
            state: state.state(),
            available: state.available_replicas,
            desired: state.available_replicas.saturating_add(state.unavailable_replicas),
            since: state.last_change_timestamp,
            reason: state.reason,
            reason_code: state.reason_code,
            replicas: version
                .model_replica_state
                .into_iter()
                .map(|(index, replica)| ReplicaView {
                    index,
                    state: replica.state(),
                    since: replica.last_change_timestamp,
                    reason: replica.reason,
                })
                .collect(),
            definition: version.model_defn.unwrap_or_default(),
        }
    }
}

impl ModelView {
    /// The latest requested version.
    pub(crate) fn latest(&self) -> Option<&VersionView> {
        self.versions.first()
    }

    /// Deleted, with every replica unloaded.
    pub(crate) fn is_terminated(&self) -> bool {
        self.deleted && self.latest().is_none_or(|v| v.state == ModelState::ModelTerminated)
    }

    /// The manifest with its status.
    pub(crate) fn document(&self, all_versions: bool) -> Value {
        let Some(latest) = self.latest() else {
            return json!({ "kind": "Model", "metadata": { "name": self.name } });
        };
        let manifest = Model::from_proto(&latest.definition);
        let mut document = serde_json::to_value(&manifest).unwrap_or_default();
        let mut status = latest.status(manifest.metadata.generation);
        if all_versions {
            let versions: Value = self.versions.iter().map(VersionView::summary).collect();
            status.insert("versions".into(), versions);
        }
        if let Value::Object(map) = &mut document {
            if manifest.kind == INFERENCE_SERVICE {
                let spec = InferenceServiceSpec::from(&manifest.spec);
                map.insert("spec".into(), serde_json::to_value(spec).unwrap_or_default());
            }
            map.insert("status".into(), Value::Object(status));
        }
        document
    }
}

impl VersionView {
    pub(crate) const fn readiness(&self) -> Readiness {
        match self.state {
            ModelState::ModelAvailable => Readiness::Ready,
            ModelState::ModelFailed | ModelState::ModelTerminateFailed => Readiness::Failed,
            ModelState::ModelTerminating | ModelState::ModelTerminated | ModelState::ModelTerminate => {
                Readiness::Deleted
            }
            _ => Readiness::Progressing,
        }
    }

    pub(crate) fn state_name(&self) -> &'static str {
        self.state.as_str_name().trim_start_matches("Model")
    }

    pub(crate) fn server_column(&self) -> String {
        self.server.clone().unwrap_or_else(|| PLACEHOLDER.to_owned())
    }

    /// `1/2`: available of desired replicas.
    pub(crate) fn replicas_column(&self) -> String {
        format!("{}/{}", self.available, self.desired)
    }

    /// The scheduler's reason, else a description of the state.
    pub(crate) fn message(&self) -> String {
        if !self.reason.is_empty() {
            return self.reason.clone();
        }
        let on = self.server.as_ref().map(|s| format!(" on {s}")).unwrap_or_default();
        let number = self.number;
        match self.state {
            ModelState::ModelAvailable => format!("serving version {number}{on}"),
            ModelState::ModelProgressing => format!("loading version {number}{on}"),
            ModelState::ModelTerminating => format!("unloading version {number}{on}"),
            ModelState::ModelTerminated => format!("version {number} unloaded"),
            _ => String::new(),
        }
    }

    /// The storage URI without secrets. An unparsable one may contain a password and is not shown.
    pub(crate) fn storage_uri(&self) -> String {
        let uri = self.definition.model_spec.as_ref().map(|s| s.uri.as_str()).unwrap_or_default();
        Uri::parse(uri).map_or_else(|_| "(invalid storageUri, hidden)".to_owned(), |u| u.to_string())
    }

    pub(crate) fn requirements(&self) -> &[String] {
        self.definition.model_spec.as_ref().map(|s| s.requirements.as_slice()).unwrap_or_default()
    }

    fn status(&self, generation: Option<i64>) -> Map<String, Value> {
        let ready = match self.readiness() {
            Readiness::Ready => "True",
            Readiness::Progressing if self.state == ModelState::Unknown => "Unknown",
            _ => "False",
        };
        let condition = |kind: &str| {
            let mut condition = Map::new();
            condition.insert("type".into(), kind.into());
            condition.insert("status".into(), ready.into());
            condition.insert("reason".into(), self.state.as_str_name().into());
            condition.insert("message".into(), self.message().into());
            if let Some(at) = rfc3339(self.since) {
                condition.insert("lastTransitionTime".into(), at.into());
            }
            if let Some(generation) = generation {
                condition.insert("observedGeneration".into(), generation.into());
            }
            Value::Object(condition)
        };
        let mut status = Map::new();
        status.insert("availableReplicas".into(), self.available.into());
        status.insert("conditions".into(), vec![condition("ModelReady"), condition("Ready")].into());
        if let Some(generation) = generation {
            status.insert("observedGeneration".into(), generation.into());
        }
        status.insert("replicas".into(), self.desired.into());
        if let Some(server) = &self.server {
            status.insert("selector".into(), format!("server={server}").into());
            status.insert("server".into(), server.as_str().into());
        }
        status.insert("state".into(), self.state.as_str_name().into());
        status.insert("version".into(), self.number.into());
        status
    }

    fn summary(&self) -> Value {
        let mut status = self.status(None);
        status.remove("conditions");
        status.remove("selector");
        status.insert("reason".into(), self.message().into());
        status.insert("storageUri".into(), self.storage_uri().into());
        Value::Object(status)
    }
}

impl ReplicaView {
    pub(crate) fn state_name(&self) -> &'static str {
        self.state.as_str_name()
    }
}
