//! Services of KServe's controller that Gantry takes over: what happens to their objects.

use super::{
    Credentials,
    plan::{ADOPT, plan},
    runtime::Runtime,
    snapshot::Snapshot,
};
use crate::{
    cluster::{Adoption, Custom, DeleteTarget, Desired, InferenceService, Key, OwnedObject, ResourceKind},
    plan::{Action, ClusterAction, Known},
    workload::{OwnedObjects, merge},
};
use gantry_api::kserve::ClusterStorageContainerSpec;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Autoscalers of KServe's controller that are not desired: it has one for each Deployment, also without a range, which would
/// undo every change of the replicas.
pub(super) fn autoscalers(snapshot: &Snapshot, desired: &[Desired]) -> Vec<DeleteTarget> {
    let kind = ResourceKind::HORIZONTAL_POD_AUTOSCALER;
    let target = |scaler: &Arc<OwnedObject>| {
        let key = Key::of(&scaler.metadata);
        let is_known = snapshot.owned.get(kind, &key.name).is_some();
        let is_desired = desired.iter().any(|d| d.kind == kind && d.key == key);
        let metadata = &scaler.metadata;
        let is_present = metadata.deletion_timestamp.is_none() && !is_known && !is_desired;
        let (uid, resource_version) = (metadata.uid.clone()?, metadata.resource_version.clone()?);
        is_present.then_some(DeleteTarget { kind, key, uid, resource_version })
    };
    snapshot.autoscalers.iter().filter_map(target).collect()
}

/// A service of KServe's controller and its surroundings, as the API server returns them.
#[derive(Clone, Debug, Default)]
pub struct AdoptionInput<'a> {
    pub service: &'a Value,
    /// Its Deployments.
    pub deployments: &'a [Value],
    /// `ServingRuntimes` of its namespace.
    pub runtimes: &'a [Value],
    pub cluster_runtimes: &'a [Value],
    pub storage_containers: &'a [Value],
    /// The `ConfigMap` `inferenceservice-config`.
    pub config: Option<&'a Value>,
    /// Gantry's image.
    pub image: &'a str,
}

/// What the pods of a service's Deployments go through when Gantry takes it over; why it would not be deployed. Credentials are
/// not compared: pods that download restart in any case.
pub fn preview(input: &AdoptionInput<'_>) -> Result<Vec<(String, Adoption)>, String> {
    let snapshot = input.snapshot()?;
    let planned = plan(&snapshot, Timestamp::UNIX_EPOCH);
    let mut previews = Vec::new();
    for action in &planned.actions {
        let Action::Cluster(ClusterAction::Apply(desired)) = action else { continue };
        let name = &desired.key.name;
        let is_of = |live: &&Value| {
            desired.kind == ResourceKind::DEPLOYMENT
                && live.pointer("/metadata/name").and_then(Value::as_str) == Some(name)
        };
        let Some(live) = input.deployments.iter().find(is_of) else { continue };
        let live: OwnedObject = serde_json::from_value(live.clone()).map_err(|e| e.to_string())?;
        previews.extend(desired.adoption(&live).map(|adoption| (name.clone(), adoption)));
    }
    if previews.is_empty() && !planned.actions.iter().any(|a| matches!(a, Action::Cluster(_))) {
        let conditions = planned.status.map(|status| status.conditions).unwrap_or_default();
        let failed = conditions.into_iter().find(|c| c.r#type == "PredictorReady" && c.status == "False");
        return failed.and_then(|c| c.message).map_or(Ok(previews), Err);
    }
    Ok(previews)
}

impl AdoptionInput<'_> {
    fn snapshot(&self) -> Result<Snapshot, String> {
        let mut service = self.service.clone();
        if let Some(metadata) = service.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert(Value::Null);
            *annotations = merge(annotations, &json!({ ADOPT: "true" }));
        }
        // Its Secret is not read here.
        let predictor = service.pointer_mut("/spec/predictor").and_then(Value::as_object_mut);
        for model in predictor.into_iter().flat_map(|predictor| predictor.values_mut()) {
            if let Some(fields) = model.as_object_mut()
                && fields.remove("storage").is_some()
            {
                fields.entry("storageUri").or_insert_with(|| "s3://storage".into());
            }
        }
        let object: Custom<InferenceService> = serde_json::from_value(service).map_err(|e| e.to_string())?;
        let runtimes = self.runtimes.iter().map(|value| runtime(value, false));
        let runtimes = runtimes.chain(self.cluster_runtimes.iter().map(|value| runtime(value, true)));
        let containers =
            self.storage_containers.iter().filter(|c| c.get("disabled") != Some(&Value::Bool(true)));
        let container = |value: &Value| {
            serde_json::from_value::<ClusterStorageContainerSpec>(value.get("spec")?.clone()).ok()
        };
        let config = self.config.map(|map| serde_json::from_value(map.clone()).map_err(|e| e.to_string()));
        Ok(Snapshot {
            key: object.key(),
            config: config.transpose()?.map_or(Known::Absent, |map| Known::Present(Arc::new(map))),
            config_error: None,
            config_namespace: "kserve".into(),
            credentials: Credentials::default(),
            runtimes: runtimes.flatten().collect(),
            storage_containers: containers.filter_map(container).collect(),
            image: self.image.to_owned(),
            owned: OwnedObjects::default(),
            autoscalers: Vec::new(),
            trained_models: Vec::new(),
            pods: Vec::new(),
            has_http_routes: true,
            scheduler: None,
            routed_by: Vec::new(),
            policy: None,
            rollout: None,
            served: vec![
                ResourceKind::VIRTUAL_SERVICE,
                ResourceKind::SCALED_OBJECT,
                ResourceKind::KNATIVE_SERVICE,
            ],
            failures: Vec::new(),
            status_age: None,
            object: Some(Arc::new(object)),
        })
    }
}

fn runtime(value: &Value, is_cluster_wide: bool) -> Option<Runtime> {
    let annotations = value.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({}));
    let created = value.pointer("/metadata/creationTimestamp").and_then(Value::as_str);
    let created = created.and_then(|text| text.parse::<Timestamp>().ok()).map_or(0, Timestamp::as_second);
    Some(Runtime {
        name: value.pointer("/metadata/name")?.as_str()?.to_owned(),
        is_cluster_wide,
        created,
        annotations: serde_json::from_value(annotations).ok()?,
        spec: serde_json::from_value(value.get("spec")?.clone()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    /// A service, a Deployment as KServe writes it, and the fields for which its pods restart.
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Case {
        name: String,
        #[serde(default)]
        annotations: Value,
        spec: Value,
        #[serde(default)]
        runtimes: Vec<Value>,
        /// Data of the `ConfigMap`.
        #[serde(default)]
        config: BTreeMap<String, Value>,
        /// The pod template of the predictor, without the defaults that KServe fills in.
        template: Value,
        #[serde(default)]
        restarts: Vec<String>,
        /// Part of the message of a service that would not be deployed.
        #[serde(default)]
        refused: Option<String>,
    }

    fn cases() -> Vec<Case> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kserve_deployments.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let documents = text.split("\n---\n");
        documents.map(|d| serde_saphyr::from_str(d).unwrap_or_else(|e| panic!("{e}\n{d}"))).collect()
    }

    /// What KServe's controller adds to every pod template, and the API server to every Deployment.
    fn deployment(case: &Case) -> Value {
        let mut template = case.template.clone();
        let labels = json!({
            "app": "isvc.iris-predictor", "component": "predictor", "serving.kserve.io/inferenceservice": "iris",
        });
        let merged = merge(&json!({ "metadata": { "labels": labels } }), &template);
        template = merged;
        template["metadata"]["name"] = json!("iris-predictor");
        template["metadata"]["namespace"] = json!("ml");
        let spec = template["spec"].as_object_mut().unwrap();
        for (field, value) in [
            ("dnsPolicy", json!("ClusterFirst")),
            ("restartPolicy", json!("Always")),
            ("terminationGracePeriodSeconds", json!(30)),
            ("securityContext", json!({})),
            ("schedulerName", json!("default-scheduler")),
        ] {
            spec.entry(field).or_insert(value);
        }
        for container in spec["containers"].as_array_mut().unwrap() {
            let port = container.pointer("/ports/0/containerPort").cloned().unwrap_or_else(|| json!(8080));
            let serves =
                ["kserve-container", "transformer-container"].contains(&container["name"].as_str().unwrap());
            let fields = container.as_object_mut().unwrap();
            fields.entry("terminationMessagePath").or_insert_with(|| json!("/dev/termination-log"));
            fields.entry("terminationMessagePolicy").or_insert_with(|| json!("File"));
            fields.entry("imagePullPolicy").or_insert_with(|| json!("IfNotPresent"));
            if serves {
                fields.entry("readinessProbe").or_insert_with(|| {
                    json!({
                        "tcpSocket": { "port": port }, "timeoutSeconds": 1, "periodSeconds": 10,
                        "successThreshold": 1, "failureThreshold": 3,
                    })
                });
            }
        }
        json!({
            "metadata": { "name": "iris-predictor", "namespace": "ml", "labels": labels },
            "spec": {
                "replicas": 3, "selector": { "matchLabels": { "app": "isvc.iris-predictor" } }, "template": template,
                "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
                "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } },
            },
        })
    }

    #[test]
    fn deployments_of_kserve_keep_their_pods_or_name_the_difference() {
        for case in cases() {
            let service = json!({
                "metadata": {
                    "name": "iris", "namespace": "ml", "uid": "u", "generation": 4,
                    "annotations": case.annotations, "finalizers": ["inferenceservice.finalizers"],
                },
                "spec": case.spec,
                "status": { "deploymentMode": "Standard" },
            });
            let data: BTreeMap<&String, String> =
                case.config.iter().map(|(key, value)| (key, value.to_string())).collect();
            let config = json!({ "data": data });
            let live = [deployment(&case)];
            let input = AdoptionInput {
                service: &service,
                deployments: &live,
                cluster_runtimes: &case.runtimes,
                config: Some(&config),
                image: "gantry:1",
                ..AdoptionInput::default()
            };
            let expected = match &case.refused {
                Some(_) => Vec::new(),
                None if case.restarts.is_empty() => vec![("iris-predictor".to_owned(), Adoption::Unchanged)],
                None => vec![("iris-predictor".to_owned(), Adoption::Changed(case.restarts.clone()))],
            };
            match (preview(&input), &case.refused) {
                (Ok(found), None) => assert_eq!(found, expected, "{}", case.name),
                (Err(message), Some(part)) => assert!(message.contains(part), "{}: {message}", case.name),
                (found, _) => panic!("{}: {found:?}", case.name),
            }
        }
    }
}
