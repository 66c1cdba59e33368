//! Desired objects of a `SeldonRuntime`.

use super::{
    components::{self, Counts},
    rbac, services, settings,
};
use crate::{
    cluster::{Desired, Key, KindId, ResourceKind, SeldonRuntime},
    workload::{Inherited, Owner, certificates::Ports, desired_configmap_digest},
};
use gantry_api::{OverrideSpec, SeldonConfigSpec, SeldonConfiguration, SeldonRuntimeSpec};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The label of every object of a component.
pub(super) const NAME: &str = "app.kubernetes.io/name";

#[derive(Clone, Debug)]
pub struct Build<'a> {
    pub key: &'a Key,
    pub uid: &'a str,
    pub spec: &'a SeldonRuntimeSpec,
    pub config: &'a SeldonConfigSpec,
    /// The image of containers without one.
    pub image: &'a str,
    /// Whether that image has a Kafka client.
    pub has_kafka_client: bool,
    /// Models and Pipelines of the namespace; `None` where they are not known.
    pub counts: Option<Counts>,
    /// Kind and name of the workloads with an HPA.
    pub autoscaled: &'a BTreeSet<(String, String)>,
    /// Secrets that agents may read, by name; `*` is all of the namespace.
    pub agent_secrets: &'a [String],
    /// Issued certificates; `None` where the operator issues none.
    pub certificates: Option<Certificates>,
    /// Metadata of the runtime over that of its configuration.
    pub inherited: Inherited,
    /// Annotations of every object.
    pub annotations: BTreeMap<String, String>,
}

/// Issued certificates of a runtime's components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificates {
    pub scheduler: Ports,
    /// Whether the gateway has them.
    pub gateway: bool,
}

impl Build<'_> {
    pub(super) fn owner(&self) -> Owner<'_> {
        Owner { kind: KindId::of::<SeldonRuntime>(), name: &self.key.name, uid: self.uid }
    }

    pub(super) fn at(&self, name: &str) -> Key {
        Key::new(self.key.namespace.clone(), name)
    }

    /// The override of a component.
    pub(super) fn over(&self, component: &str) -> Option<&OverrideSpec> {
        self.spec.overrides.iter().find(|o| o.name == component)
    }

    pub(super) fn has(&self, component: &str) -> bool {
        self.config.components.iter().any(|c| c.name == component)
            && !self.over(component).is_some_and(|o| o.disable)
    }

    pub(super) fn object(&self, kind: ResourceKind, name: &str, fields: Value) -> Desired {
        self.labelled_object(kind, name, name, fields)
    }

    pub(super) fn labelled_object(
        &self,
        kind: ResourceKind,
        name: &str,
        label: &str,
        fields: Value,
    ) -> Desired {
        let mut body = json!({
            "metadata": { "labels": { NAME: label }, "ownerReferences": self.owner().references() },
        });
        if !self.annotations.is_empty()
            && let Some(metadata) = body.pointer_mut("/metadata").and_then(Value::as_object_mut)
        {
            metadata.insert("annotations".into(), json!(self.annotations));
        }
        if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
            body.extend(fields);
        }
        Desired::new(kind, self.at(name), body)
    }

    pub(super) fn settings(&self) -> SeldonConfiguration {
        settings::merged(&self.config.config, &self.spec.config)
    }
}

/// The objects in the order of creation; an error names the component that is incomplete.
pub fn objects(build: &Build<'_>) -> Result<Vec<Desired>, String> {
    let settings = build.settings();
    let maps: Vec<Desired> = settings::config_maps(&settings)
        .into_iter()
        .map(|(name, data)| build.object(ResourceKind::CONFIG_MAP, name, json!({ "data": data })))
        .collect();
    let digests = maps.iter().map(|map| (map.key.name.clone(), desired_configmap_digest(map))).collect();
    let mut objects = maps;
    objects.extend(rbac::accounts(build));
    objects.extend(rbac::roles(build, &settings));
    objects.extend(services::services(build, &settings));
    objects.extend(components::workloads(build, &settings, &digests)?);
    Ok(objects)
}
