//! Desired objects of a Server.

use super::pod::{add_secret_access, merged_pod, set_server_name, with_drain};
use crate::{
    cluster::{Desired, Key, KindId, ResourceKind, Server},
    workload::{
        Inherited, Owner, Workload,
        certificates::{self, Part},
        configmap_annotation, pod_disruption_budget,
    },
};
use gantry_api::{ServerConfigSpec, ServerSpec};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The label that selects the pods of one Server.
pub const SELECTOR: &str = "seldon-server-name";
const NAME: (&str, &str) = ("app.kubernetes.io/name", "seldon-server");
/// Ports of a replica, with Seldon's names.
const PORTS: [(&str, u16); 3] = [("http", 9000), ("grpc", 9500), ("agent", 9005)];

#[derive(Clone, Debug)]
pub struct Build<'a> {
    pub key: &'a Key,
    pub uid: &'a str,
    pub spec: &'a ServerSpec,
    pub config: &'a ServerConfigSpec,
    /// The image of containers without one.
    pub image: &'a str,
    pub workload: ResourceKind,
    pub replicas: u32,
    /// Whether an HPA sets the replicas.
    pub is_autoscaled: bool,
    /// Whether the agent reads Secrets of the namespace.
    pub reads_secrets: bool,
    /// Whether the agent gets an issued certificate.
    pub has_certificates: bool,
    /// Metadata of the Server over that of its configuration.
    pub inherited: Inherited,
    /// Annotations of the workload.
    pub annotations: BTreeMap<String, String>,
    /// Digests of the `ConfigMaps` of the namespace, by name.
    pub config_maps: &'a BTreeMap<String, String>,
}

impl Build<'_> {
    fn owner(&self) -> Owner<'_> {
        Owner { kind: KindId::of::<Server>(), name: &self.key.name, uid: self.uid }
    }

    fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(SELECTOR.to_owned(), self.key.name.clone())])
    }

    fn labels(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(NAME.0.to_owned(), NAME.1.to_owned()), (SELECTOR.to_owned(), self.key.name.clone())])
    }

    /// A headless Service.
    fn service(&self, name: String, labels: &BTreeMap<String, String>, selector: &Value) -> Desired {
        let ports: Vec<Value> = PORTS
            .iter()
            .map(|(name, port)| json!({ "name": name, "port": port, "protocol": "TCP" }))
            .collect();
        let body = json!({
            "metadata": { "labels": labels, "ownerReferences": self.owner().references() },
            "spec": { "clusterIP": "None", "ports": ports, "selector": selector },
        });
        Desired::new(ResourceKind::SERVICE, Key::new(self.key.namespace.clone(), name), body)
    }

    fn replica(&self, index: u32) -> Desired {
        let name = format!("{}-{index}", self.key.name);
        let mut labels = self.labels();
        labels.insert("seldon-server-replica".into(), self.key.name.clone());
        labels.insert("seldon-server-replica-name".into(), name.clone());
        let selector = json!({ "statefulset.kubernetes.io/pod-name": name });
        self.service(name, &labels, &selector)
    }

    fn workload(&self) -> Desired {
        let bare = merged_pod(self.spec, self.config, self.image);
        let mut pod = with_drain(bare.clone());
        if self.reads_secrets {
            add_secret_access(&mut pod);
        }
        if self.has_certificates {
            pod = certificates::mount(pod, Part::Agent(&self.key.name));
        }
        let mut more = Map::new();
        if self.workload == ResourceKind::DEPLOYMENT {
            set_server_name(&mut pod, &self.key.name);
        }
        if self.workload == ResourceKind::STATEFUL_SET {
            more.insert("serviceName".into(), json!(self.key.name));
            if let Some(policy) = &self.spec.stateful_set_persistent_volume_claim_retention_policy {
                more.insert("persistentVolumeClaimRetentionPolicy".into(), policy.clone());
            }
        } else if let Some(strategy) = &self.spec.deployment_strategy {
            more.insert("strategy".into(), strategy.clone());
        }
        let workload = Workload {
            kind: self.workload,
            key: self.key.clone(),
            owner: self.owner(),
            selector: self.selector(),
            inherited: self.inherited.clone(),
            labels: self.labels(),
            annotations: self.annotations.clone(),
            pod_annotations: configmap_annotation(&pod, self.config_maps),
            replicas: (!self.is_autoscaled).then_some(self.replicas),
            pod,
            bare,
            claims: &self.config.volume_claim_templates,
            more,
        };
        workload.desired()
    }
}

/// The objects in the order of creation.
pub fn objects(build: &Build<'_>) -> Vec<Desired> {
    let mut objects = Vec::new();
    // Only pods of a StatefulSet have stable names to select by.
    if build.workload == ResourceKind::STATEFUL_SET {
        objects.extend((0..build.replicas).map(|index| build.replica(index)));
    }
    objects.push(build.workload());
    if build.replicas > 1 {
        let labels = json!(build.labels());
        objects.push(pod_disruption_budget(build.key.clone(), &build.owner(), &build.selector(), &labels));
    }
    // Last, because nothing depends on it: Seldon creates none, and its name may be taken.
    objects.push(build.service(build.key.name.clone(), &build.labels(), &json!(build.selector())));
    objects
}

/// Whether an object is created on a best-effort basis.
pub(super) fn is_optional(kind: ResourceKind, object: &Key, server: &Key) -> bool {
    kind == ResourceKind::SERVICE && object == server
}
