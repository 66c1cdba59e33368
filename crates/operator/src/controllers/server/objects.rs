//! The objects that a Server becomes.

use super::pod::{asked, finished, name_server};
use crate::{
    cluster::{Desired, Key, KindId, ResourceKind, Server},
    workload::{Owner, Workload, budget, config_maps},
};
use gantry_api::{ServerConfigSpec, ServerSpec};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The label that tells the pods of one Server from those of another.
pub const SELECTOR: &str = "seldon-server-name";
/// The label of everything that belongs to Servers, and its value.
const NAME: (&str, &str) = ("app.kubernetes.io/name", "seldon-server");
/// The ports of a replica, by the names of the reference.
const PORTS: [(&str, u16); 3] = [("http", 9000), ("grpc", 9500), ("agent", 9005)];

/// Everything that the objects are made from.
#[derive(Clone, Debug)]
pub struct Build<'a> {
    /// Which Server.
    pub key: &'a Key,
    /// Its identity.
    pub uid: &'a str,
    /// What is asked.
    pub spec: &'a ServerSpec,
    /// What it is made of.
    pub config: &'a ServerConfigSpec,
    /// The image of containers that name none.
    pub image: &'a str,
    /// The kind of its workload.
    pub workload: ResourceKind,
    /// Replicas that there are to be.
    pub replicas: u32,
    /// Whether an autoscaler says how many.
    pub is_autoscaled: bool,
    /// Annotations of the workload.
    pub annotations: BTreeMap<String, String>,
    /// What the `ConfigMaps` of the namespace hold, by name.
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

    /// A Service without an address of its own: its name leads to the pods.
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
        labels.insert("seldon-server-replica".into(), "true".into());
        labels.insert("seldon-server-replica-name".into(), self.key.name.clone());
        let selector = json!({ "statefulset.kubernetes.io/pod-name": name });
        self.service(name, &labels, &selector)
    }

    fn workload(&self) -> Result<Desired, String> {
        let bare = asked(self.spec, self.config, self.image)?;
        let mut pod = finished(bare.clone());
        let mut more = Map::new();
        if self.workload == ResourceKind::DEPLOYMENT {
            name_server(&mut pod, &self.key.name);
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
            labels: self.labels(),
            annotations: self.annotations.clone(),
            pod_annotations: config_maps(&pod, self.config_maps),
            replicas: (!self.is_autoscaled).then_some(self.replicas),
            pod,
            bare,
            claims: &self.config.volume_claim_templates,
            more,
        };
        Ok(workload.desired())
    }
}

/// The objects, in the order in which they are made; `Err` says what does not fit together.
pub fn objects(build: &Build<'_>) -> Result<Vec<Desired>, String> {
    let mut objects = vec![build.service(build.key.name.clone(), &build.labels(), &json!(build.selector()))];
    // Pods of a Deployment have no names that a Service could select them by.
    if build.workload == ResourceKind::STATEFUL_SET {
        objects.extend((0..build.replicas).map(|index| build.replica(index)));
    }
    objects.push(build.workload()?);
    if build.replicas > 1 {
        let labels = json!(build.labels());
        objects.push(budget(build.key.clone(), &build.owner(), &build.selector(), &labels));
    }
    Ok(objects)
}
