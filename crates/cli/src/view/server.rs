//! A server as the scheduler reports it.

use super::Readiness;
use gantry_api::Server;
use gantry_proto::scheduler as pb;
use serde_json::{Value, json};

/// A server and its replicas.
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
            (0, _) => Readiness::Gone,
            (expected, available) if available >= expected => Readiness::Ready,
            _ => Readiness::Coming,
        }
    }

    /// Whether it is neither expected nor there.
    pub(crate) const fn is_gone(&self) -> bool {
        self.expected == 0 && self.available == 0
    }

    /// Whether models cannot be placed on it any more.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.expected == 0
    }

    /// `1/2`: replicas that joined, of those that are expected.
    pub(crate) fn replicas_word(&self) -> String {
        format!("{}/{}", self.available, self.expected)
    }

    /// What it does, in words.
    pub(crate) fn message(&self) -> String {
        match self.readiness() {
            Readiness::Gone if self.available == 0 => "deleted".into(),
            Readiness::Gone => "going away: no replica is expected".into(),
            Readiness::Ready => format!("{} joined", count(self.available, "replica")),
            _ => format!("{} of {} joined", self.available, count(self.expected, "replica")),
        }
    }

    /// Memory that is free and that there is, over all replicas.
    pub(crate) fn memory(&self) -> (u64, u64) {
        self.replicas.iter().fold((0u64, 0u64), |(free, total), r| {
            (free.saturating_add(r.available_memory_bytes), total.saturating_add(r.total_memory_bytes))
        })
    }

    /// The manifest as far as the scheduler knows it, and what became of it.
    pub(crate) fn document(&self) -> Value {
        let mut manifest = Server::named(&self.name, self.expected);
        // The scheduler does not keep the configuration's name; by convention it is the server's.
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

/// `1 replica`, `2 replicas`.
pub(crate) fn count(n: i32, what: &str) -> String {
    if n == 1 { format!("{n} {what}") } else { format!("{n} {what}s") }
}
