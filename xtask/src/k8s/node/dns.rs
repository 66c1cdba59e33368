//! Cluster DNS: `CoreDNS` in a pod, without upstream servers.

use super::{
    super::{
        cluster::Cluster,
        control_plane::{API_SERVICE, DNS_SERVICE},
    },
    images,
};
use crate::Failure;
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

const NAME: &str = "coredns";
const NAMESPACE: &str = "kube-system";
/// Unprivileged port, for a non-root process.
const PORT: u16 = 1053;
const HEALTH: u16 = 8080;
const READY: u16 = 8181;

/// Starts it and waits until it responds through its Service.
pub(super) fn start(cluster: &Cluster) -> Result<(), Failure> {
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects() }))?;
    cluster.directory().wait("kube-proxy", 120, || {
        resolve("kubernetes.default.svc.cluster.local")
            == Some(API_SERVICE.parse().unwrap_or(Ipv4Addr::UNSPECIFIED))
    })
}

fn objects() -> Vec<Value> {
    let labels = json!({ "app.kubernetes.io/name": NAME });
    let meta = json!({ "name": NAME, "namespace": NAMESPACE, "labels": labels });
    let corefile = format!(
        ".:{PORT} {{\n  errors\n  health :{HEALTH}\n  ready :{READY}\n  kubernetes cluster.local in-addr.arpa {{\n    \
         ttl 5\n  }}\n  cache 5\n}}\n"
    );
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME });
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": NAME },
            "rules": [
                { "apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"] },
                { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": NAME },
            "roleRef": role,
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
        }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": { "Corefile": corefile } }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": pod() },
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "kube-dns", "namespace": NAMESPACE },
            "spec": {
                "clusterIP": DNS_SERVICE,
                "selector": labels,
                "ports": [
                    { "name": "dns", "port": 53, "targetPort": PORT, "protocol": "UDP" },
                    { "name": "dns-tcp", "port": 53, "targetPort": PORT, "protocol": "TCP" },
                ],
            },
        }),
    ]
}

fn pod() -> Value {
    json!({
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "tolerations": [{ "operator": "Exists" }],
        "containers": [{
            "name": NAME,
            "image": images::DNS,
            "imagePullPolicy": "IfNotPresent",
            "args": ["-conf", "/etc/coredns/Corefile"],
            "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns" }],
            "readinessProbe": { "httpGet": { "path": "/ready", "port": READY }, "periodSeconds": 1 },
            "livenessProbe": { "httpGet": { "path": "/health", "port": HEALTH } },
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65532,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
        }],
        "volumes": [{ "name": "config", "configMap": { "name": NAME } }],
    })
}

/// Resolves a name with the cluster DNS.
fn resolve(name: &str) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    socket.send_to(&query(name), (DNS_SERVICE, 53)).ok()?;
    let mut response = [0; 512];
    let length = socket.recv(&mut response).ok()?;
    address(response.get(..length)?)
}

/// A DNS query for an A record.
fn query(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x67, 0x61, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

/// The address in a response with one record: its last four bytes.
fn address(response: &[u8]) -> Option<Ipv4Addr> {
    let is_valid =
        response.get(3)? % 16 == 0 && response.get(6..8)? == [0, 1] && response.get(8..12)? == [0; 4];
    let last: [u8; 4] = response.get(response.len().checked_sub(4)?..)?.try_into().ok()?;
    is_valid.then(|| last.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_encoded_and_response_parsed() {
        let encoded = query("a.bc");
        assert_eq!(&encoded[12..], b"\x01a\x02bc\x00\x00\x01\x00\x01");
        let mut response = encoded.clone();
        response[2] = 0x85;
        response[7] = 1;
        response.extend_from_slice(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x60\x00\x01");
        assert_eq!(address(&response), Some(Ipv4Addr::new(10, 96, 0, 1)));
        response[3] = 3;
        assert_eq!(address(&response), None, "no such name");
        assert_eq!(address(&encoded), None, "a query is not a response");
        assert_eq!(address(b"short"), None);
    }
}
