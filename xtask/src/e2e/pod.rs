//! A pod of Gantry's image under the restricted Pod Security standard.

use serde_json::{Value, json};

/// Runs the binary once: as non-root, on a read-only root, without capabilities.
pub(super) fn pod(name: &str, image: &str, arguments: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": name,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": arguments,
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    })
}
