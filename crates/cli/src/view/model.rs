//! A model as the scheduler reports it.

use crate::output::{NOTHING, Tone, stamp};
use gantry_api::Model;
use gantry_artifacts::Uri;
use gantry_proto::scheduler::{
    self as pb, model_replica_status::ModelReplicaState, model_status::ModelState,
};
use serde_json::{Map, Value, json};

/// Whether something serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// It may become ready without anybody's help.
    Coming,
    /// It stays as it is until somebody changes something.
    Failed,
    /// It is going, or gone.
    Gone,
}

impl Readiness {
    pub(crate) const fn tone(self) -> Tone {
        match self {
            Self::Ready => Tone::Good,
            Self::Coming => Tone::Busy,
            Self::Failed => Tone::Bad,
            Self::Gone => Tone::Faint,
        }
    }
}

/// A model and its versions, the latest first.
#[derive(Clone, Debug)]
pub(crate) struct ModelView {
    pub(crate) name: String,
    pub(crate) deleted: bool,
    pub(crate) versions: Vec<VersionView>,
}

/// A version of a model.
#[derive(Clone, Debug)]
pub(crate) struct VersionView {
    pub(crate) number: u32,
    pub(crate) server: Option<String>,
    pub(crate) state: ModelState,
    pub(crate) reason: String,
    /// The reason as a word to match.
    pub(crate) code: String,
    pub(crate) available: u32,
    pub(crate) wanted: u32,
    pub(crate) since: Option<prost_types::Timestamp>,
    pub(crate) replicas: Vec<ReplicaView>,
    pub(crate) definition: pb::Model,
}

/// A replica of a version.
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
            wanted: state.available_replicas.saturating_add(state.unavailable_replicas),
            since: state.last_change_timestamp,
            reason: state.reason,
            code: state.reason_code,
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
    /// What was asked for last.
    pub(crate) fn latest(&self) -> Option<&VersionView> {
        self.versions.first()
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.deleted && self.latest().is_none_or(|v| v.state == ModelState::ModelTerminated)
    }

    /// The manifest and what became of it.
    pub(crate) fn document(&self, all_versions: bool) -> Value {
        let Some(latest) = self.latest() else {
            return json!({ "kind": "Model", "metadata": { "name": self.name } });
        };
        let manifest = Model::from_proto(&latest.definition);
        let mut document = serde_json::to_value(&manifest).unwrap_or_default();
        let mut status = latest.status(manifest.metadata.generation);
        if all_versions {
            let versions: Value = self.versions.iter().map(VersionView::short).collect();
            status.insert("versions".into(), versions);
        }
        if let Value::Object(map) = &mut document {
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
                Readiness::Gone
            }
            _ => Readiness::Coming,
        }
    }

    /// The state in one word.
    pub(crate) fn state_word(&self) -> &'static str {
        self.state.as_str_name().trim_start_matches("Model")
    }

    /// The server, or a dash.
    pub(crate) fn server_word(&self) -> String {
        self.server.clone().unwrap_or_else(|| NOTHING.to_owned())
    }

    /// `1/2`: replicas that serve, of those that are wanted.
    pub(crate) fn replicas_word(&self) -> String {
        format!("{}/{}", self.available, self.wanted)
    }

    /// Why it is in its state; what it does when there is nothing to explain.
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
            ModelState::ModelTerminated => format!("version {number} is unloaded"),
            _ => String::new(),
        }
    }

    /// Where its files are, without what may be a secret.
    pub(crate) fn place(&self) -> String {
        let uri = self.definition.model_spec.as_ref().map(|s| s.uri.as_str()).unwrap_or_default();
        // A place that cannot be read may still hold a password.
        Uri::parse(uri)
            .map_or_else(|_| "(cannot be shown: it is not a valid storageUri)".to_owned(), |u| u.to_string())
    }

    /// Capabilities that it needs.
    pub(crate) fn requirements(&self) -> &[String] {
        self.definition.model_spec.as_ref().map(|s| s.requirements.as_slice()).unwrap_or_default()
    }

    fn status(&self, generation: Option<i64>) -> Map<String, Value> {
        let ready = match self.readiness() {
            Readiness::Ready => "True",
            Readiness::Coming if self.state == ModelState::Unknown => "Unknown",
            _ => "False",
        };
        let condition = |kind: &str| {
            let mut condition = Map::new();
            condition.insert("type".into(), kind.into());
            condition.insert("status".into(), ready.into());
            condition.insert("reason".into(), self.state.as_str_name().into());
            condition.insert("message".into(), self.message().into());
            if let Some(at) = stamp(self.since) {
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
        status.insert("replicas".into(), self.wanted.into());
        if let Some(server) = &self.server {
            status.insert("selector".into(), format!("server={server}").into());
            status.insert("server".into(), server.as_str().into());
        }
        status.insert("state".into(), self.state.as_str_name().into());
        status.insert("version".into(), self.number.into());
        status
    }

    fn short(&self) -> Value {
        let mut status = self.status(None);
        status.remove("conditions");
        status.remove("selector");
        status.insert("reason".into(), self.message().into());
        status.insert("storageUri".into(), self.place().into());
        Value::Object(status)
    }
}

impl ReplicaView {
    /// The state in one word.
    pub(crate) fn state_word(&self) -> &'static str {
        self.state.as_str_name()
    }
}
