//! Merge schemas of the built-in kinds: keyed lists and atomic values.
//!
//! Compared with the schemas of a real API server (`tests/k8s/conformance/shapes.json`).

use super::merge_schema::MergeSchema;

pub(super) const METADATA: &[(&str, &str)] =
    &[("finalizers", "set"), ("ownerReferences", "keyed uid"), ("ownerReferences[]", "unit")];

const CONTAINER: &[(&str, &str)] = &[
    ("ports", "keyed containerPort protocol=TCP"),
    ("env", "keyed name"),
    ("env[].valueFrom.fieldRef", "unit"),
    ("env[].valueFrom.resourceFieldRef", "unit"),
    ("env[].valueFrom.configMapKeyRef", "unit"),
    ("env[].valueFrom.secretKeyRef", "unit"),
    ("env[].valueFrom.fileKeyRef", "unit"),
    ("volumeMounts", "keyed mountPath"),
    ("volumeDevices", "keyed devicePath"),
    ("resources.claims", "keyed name"),
];

const POD: &[(&str, &str)] = &[
    ("volumes", "keyed name"),
    ("imagePullSecrets", "keyed name"),
    ("imagePullSecrets[]", "unit"),
    ("hostAliases", "keyed ip"),
    ("topologySpreadConstraints", "keyed topologyKey whenUnsatisfiable"),
    ("topologySpreadConstraints[].labelSelector", "unit"),
    ("schedulingGates", "keyed name"),
    ("resourceClaims", "keyed name"),
    ("resources.claims", "keyed name"),
    ("nodeSelector", "unit"),
    ("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", "unit"),
];

/// Volume sources that reference one object.
const VOLUME_REFERENCES: &[&str] = &[
    "cephfs.secretRef",
    "cinder.secretRef",
    "csi.nodePublishSecretRef",
    "flexVolume.secretRef",
    "iscsi.secretRef",
    "rbd.secretRef",
    "scaleIO.secretRef",
    "storageos.secretRef",
    "ephemeral.volumeClaimTemplate.spec.dataSource",
    "ephemeral.volumeClaimTemplate.spec.selector",
];

fn pod_spec() -> MergeSchema {
    let container = MergeSchema::default().with_all(CONTAINER);
    let mut schema = MergeSchema::default().with_all(POD);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        schema = schema.with(list, "keyed name").graft(&format!("{list}[]"), &container);
    }
    let claim = MergeSchema::default().with_all(METADATA);
    schema = schema.graft("volumes[].ephemeral.volumeClaimTemplate.metadata", &claim);
    VOLUME_REFERENCES.iter().fold(schema, |schema, path| schema.with(&format!("volumes[].{path}"), "unit"))
}

fn template() -> MergeSchema {
    MergeSchema::default()
        .graft("metadata", &MergeSchema::default().with_all(METADATA))
        .graft("spec", &pod_spec())
}

const SERVICE: &[(&str, &str)] = &[
    ("spec.ports", "keyed port protocol=TCP"),
    ("spec.selector", "unit"),
    ("status.conditions", "keyed type"),
];

const WORKLOAD: &[(&str, &str)] = &[("spec.selector", "unit"), ("status.conditions", "keyed type")];

const CLAIM: &[(&str, &str)] =
    &[("spec.selector", "unit"), ("spec.dataSource", "unit"), ("status.conditions", "keyed type")];

const POD_STATUS: &[(&str, &str)] = &[
    ("status.conditions", "keyed type"),
    ("status.podIPs", "keyed ip"),
    ("status.resourceClaimStatuses", "keyed name"),
    ("status.resources.claims", "keyed name"),
];

const NODE: &[(&str, &str)] =
    &[("spec.podCIDRs", "set"), ("status.conditions", "keyed type"), ("status.addresses", "keyed type")];

pub(super) fn built_in(group: &str, kind: &str) -> MergeSchema {
    let schema = MergeSchema::default().graft("metadata", &MergeSchema::default().with_all(METADATA));
    match kind {
        "Pod" => schema.graft("spec", &pod_spec()).with_all(POD_STATUS),
        "Deployment" | "ReplicaSet" | "StatefulSet" => {
            schema.graft("spec.template", &template()).with_all(WORKLOAD)
        }
        "Service" => schema.with_all(SERVICE),
        "ServiceAccount" => schema.with("secrets", "keyed name").with("secrets[]", "unit"),
        "PersistentVolumeClaim" => schema.with_all(CLAIM),
        "PodDisruptionBudget" => schema.with_all(WORKLOAD),
        "ControllerRevision" => schema.with("data", "unit"),
        "HorizontalPodAutoscaler" | "CustomResourceDefinition" | "Namespace" => {
            schema.with("status.conditions", "keyed type")
        }
        "Node" => schema.with_all(NODE),
        "RoleBinding" | "ClusterRoleBinding" => schema.with("roleRef", "unit"),
        "Event" => {
            let about = if group.is_empty() { "involvedObject" } else { "regarding" };
            schema.with(about, "unit").with("related", "unit")
        }
        _ => schema,
    }
}
