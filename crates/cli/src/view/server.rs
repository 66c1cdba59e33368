//! Server status.

use super::Readiness;
use crate::output::count;
use gantry_api::Server;
use gantry_proto::scheduler as pb;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(crate) struct ServerView {
    pub(crate) name: String,
    pub(crate) expected: i32,
    pub(crate) available: i32,
    pub(crate) models: i32,
    pub(crate) replicas: Vec<pb::ServerReplicaResources>,
    kubernetes: Option<pb::KubernetesMeta>,
}

impl From<pb::ServerStatusResponse> for ServerView {
    fn from(status: pb::ServerStatusResponse) -> Self {
        Self {
            name: status.server_name,
            expected: status.expected_replicas,
            available: status.available_replicas,
            models: status.num_loaded_model_replicas,
            replicas: status.resources,
            kubernetes: status.kubernetes_meta,
        }
    }
}

impl ServerView {
    pub(crate) const fn readiness(&self) -> Readiness {
        match (self.expected, self.available) {
            (0, _) => Readiness::Deleted,
            (expected, available) if available >= expected => Readiness::Ready,
            _ => Readiness::Progressing,
        }
    }

    /// No replica expected or joined.
    pub(crate) const fn is_terminated(&self) -> bool {
        self.expected == 0 && self.available == 0
    }

    /// Not expected any more: no model is placed on it.
    pub(crate) const fn is_draining(&self) -> bool {
        self.expected == 0
    }

    /// `1/2`: joined of expected replicas.
    pub(crate) fn replicas_column(&self) -> String {
        format!("{}/{}", self.available, self.expected)
    }

    pub(crate) fn message(&self) -> String {
        match self.readiness() {
            Readiness::Deleted if self.available == 0 => "deleted".into(),
            Readiness::Deleted => "draining: no replica is expected".into(),
            Readiness::Ready => format!("{} joined", count(self.available, "replica")),
            _ => format!("{} of {} joined", self.available, count(self.expected, "replica")),
        }
    }

    /// Free and total memory of all replicas.
    pub(crate) fn memory(&self) -> (u64, u64) {
        self.replicas.iter().fold((0u64, 0u64), |(free, total), r| {
            (free.saturating_add(r.available_memory_bytes), total.saturating_add(r.total_memory_bytes))
        })
    }

    /// The manifest as known to the scheduler, with its status.
    pub(crate) fn document(&self) -> Value {
        let mut manifest = Server::named(&self.name, self.expected);
        // The scheduler does not store serverConfig; by convention it has the server's name.
        manifest.spec.server_config.clone_from(&self.name);
        if let Some(kubernetes) = &self.kubernetes {
            manifest.metadata.namespace = Some(kubernetes.namespace.clone());
            manifest.metadata.generation = Some(kubernetes.generation);
        }
        let mut document = serde_json::to_value(&manifest).unwrap_or_default();
        let ready = self.readiness() == Readiness::Ready;
        let condition = |kind: &str| {
            json!({
                "type": kind,
                "status": if ready { "True" } else { "False" },
                "reason": if ready { "ReplicasJoined" } else { "ReplicasMissing" },
                "message": self.message(),
            })
        };
        let replicas: Vec<Value> = self
            .replicas
            .iter()
            .map(|r| {
                json!({
                    "replica": r.replica_idx,
                    "memoryBytes": r.total_memory_bytes,
                    "availableMemoryBytes": r.available_memory_bytes,
                    "overCommitPercentage": r.over_commit_percentage,
                    "loadedModels": r.num_loaded_models,
                })
            })
            .collect();
        if let Value::Object(map) = &mut document {
            let status = json!({
                "availableReplicas": self.available,
                "conditions": [condition("Ready")],
                "loadedModels": self.models,
                "replicas": self.expected,
                "replicaResources": replicas,
                "selector": format!("seldon-server-name={}", self.name),
            });
            map.insert("status".into(), status);
        }
        document
    }
}
