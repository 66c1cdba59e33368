//! Configuration of the node's programs.

use super::{
    super::{
        control_plane::{DNS_SERVICE, PODS},
        directory::Directory,
        pki::Pki,
    },
    images,
    node_id::{FIRST, Node},
};
use serde_json::{Value, json};
use std::path::Path;

/// Name of the CNI network.
pub(super) const NETWORK: &str = "gantry";

/// CNI configuration: a veth pair per pod, routed by the host. (On a shared bridge, replies between pods would bypass the
/// host's Service NAT and come from the wrong address.)
pub(super) fn network(directory: &Directory, node: Node) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": NETWORK,
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": node.join(directory, "cni-ipam"),
                "ranges": [[{ "subnet": node.pods() }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

/// containerd with its own root, state and socket.
pub(super) fn containerd(directory: &Directory, node: Node, socket: &Path, plugins: &Path) -> String {
    // JSON strings are valid TOML strings.
    let quoted = |path: &Path| json!(path).to_string();
    let inside = |name: &str| quoted(&node.join(directory, name));
    let (socket, plugins, pause) = (quoted(socket), quoted(plugins), json!(images::PAUSE));
    format!(
        r#"version = 2
root = {root}
state = {state}
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = {socket}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {pause}
  # Where CAP_SYS_RESOURCE is missing, runc cannot lower a score and fails.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins}
    conf_dir = {cni}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}
"#,
        root = inside("containerd/root"),
        state = inside("containerd/state"),
        cni = inside("cni"),
        opt = inside("containerd/opt"),
    )
}

/// A kubelet with few requirements: no systemd, no swap rules, late eviction.
pub(super) fn kubelet(
    directory: &Directory,
    node: Node,
    pki: &Pki,
    socket: &Path,
    [port, health]: [u16; 2],
) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "port": port,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": health,
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "cgroupsPerQOS": true,
        "cgroupRoot": node.cgroup().map(|name| format!("/{name}")).unwrap_or_default(),
        "enforceNodeAllocatable": ["pods"],
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": pki.certificate("ca") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": pki.certificate(&format!("{}-serving", node.name())),
        "tlsPrivateKeyFile": pki.key(&format!("{}-serving", node.name())),
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE],
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        // Imported images cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 110,
        "syncFrequency": "10s",
        "makeIPTablesUtilChains": false,
        "volumePluginDir": node.join(directory, "kubelet/volumeplugins"),
        "podLogsDir": node.join(directory, "pod-logs"),
    })
}

/// kube-proxy; it exits when its configuration changes.
pub(super) fn proxy(pki: &Pki, health: u16, metrics: u16) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "bindAddress": FIRST.address(),
        "healthzBindAddress": format!("127.0.0.1:{health}"),
        "metricsBindAddress": format!("127.0.0.1:{metrics}"),
        "hostnameOverride": FIRST.name(),
        "nodePortAddresses": [format!("{}/32", FIRST.address())],
        "clientConnection": { "kubeconfig": pki.kubeconfig("kube-proxy") },
        "conntrack": { "maxPerCore": 0, "min": 0 },
        "oomScoreAdj": 0,
    })
}
