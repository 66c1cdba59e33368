//! How the built-in kinds merge: their lists with keys and their values that are one unit.
//!
//! The recorded table of the real API server's own schema is compared with this (`tests/k8s/conformance/shapes.json`).

use super::shape::Shape;

/// Every object's metadata.
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

/// Volume sources that point at one other object.
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

fn pod_spec() -> Shape {
    let container = Shape::default().with_all(CONTAINER);
    let mut shape = Shape::default().with_all(POD);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        shape = shape.with(list, "keyed name").graft(&format!("{list}[]"), &container);
    }
    let claim = Shape::default().with_all(METADATA);
    shape = shape.graft("volumes[].ephemeral.volumeClaimTemplate.metadata", &claim);
    VOLUME_REFERENCES.iter().fold(shape, |shape, path| shape.with(&format!("volumes[].{path}"), "unit"))
}

fn template() -> Shape {
    Shape::default().graft("metadata", &Shape::default().with_all(METADATA)).graft("spec", &pod_spec())
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

/// The shape of a built-in kind.
pub(super) fn built_in(group: &str, kind: &str) -> Shape {
    let shape = Shape::default().graft("metadata", &Shape::default().with_all(METADATA));
    match kind {
        "Pod" => shape.graft("spec", &pod_spec()).with_all(POD_STATUS),
        "Deployment" | "ReplicaSet" | "StatefulSet" => {
            shape.graft("spec.template", &template()).with_all(WORKLOAD)
        }
        "Service" => shape.with_all(SERVICE),
        "ServiceAccount" => shape.with("secrets", "keyed name").with("secrets[]", "unit"),
        "PersistentVolumeClaim" => shape.with_all(CLAIM),
        "PodDisruptionBudget" => shape.with_all(WORKLOAD),
        "ControllerRevision" => shape.with("data", "unit"),
        "HorizontalPodAutoscaler" | "CustomResourceDefinition" | "Namespace" => {
            shape.with("status.conditions", "keyed type")
        }
        "Node" => shape.with_all(NODE),
        "RoleBinding" | "ClusterRoleBinding" => shape.with("roleRef", "unit"),
        "Event" => {
            let about = if group.is_empty() { "involvedObject" } else { "regarding" };
            shape.with(about, "unit").with("related", "unit")
        }
        _ => shape,
    }
}
