//! etcd, API server, controller manager and scheduler, started in order of readiness.

use super::{directory::Directory, node::Node, pki::Pki, programs::Programs};
use crate::{Failure, ports};
use serde_json::json;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Service CIDR.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The Service `kubernetes`: the first address of the CIDR.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
/// Service of the cluster DNS.
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";
/// Pod CIDR.
pub(crate) const PODS: &str = "10.244.0.0/16";

pub(crate) struct ControlPlaneOptions<'a> {
    /// Listen address of the API server.
    pub(crate) address: Ipv4Addr,
    /// Reachable for pods on a real node.
    pub(crate) reachable: bool,
    /// Possible real nodes, for their certificates.
    pub(crate) nodes: &'a [Node],
    /// Reads in the audit log.
    pub(crate) audit_reads: bool,
}

pub(crate) struct ControlPlane {
    pub(crate) server: String,
    pub(crate) pki: Pki,
    /// kubectl's discovery cache, separate because an earlier API server may have used the same port.
    pub(crate) kubectl_cache: PathBuf,
}

impl ControlPlane {
    /// Starts it and waits until the controllers work.
    pub(crate) fn start(
        directory: &Directory,
        programs: &Programs,
        wanted: &ControlPlaneOptions<'_>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, Failure> {
        let [etcd, peers, api, controllers, scheduler] = ports::free()?;
        let address = wanted.address.to_string();
        let server = format!("https://{address}:{api}");
        let pki = Pki::at(directory.join("pki"));
        pki.write(&server, &["127.0.0.1", API_SERVICE, &address], wanted.nodes)?;
        let started = Self { server, pki, kubectl_cache: directory.join("kubectl-cache") };
        start_etcd(directory, programs, etcd, peers)?;
        say("etcd");
        started.start_api_server(directory, programs, wanted, etcd, api)?;
        say("API server");
        started.start_controllers(directory, programs, controllers)?;
        started.start_scheduler(directory, programs, scheduler)?;
        started.wait_for_controllers(directory, programs, controllers, scheduler)?;
        say("controllers");
        Ok(started)
    }

    /// `kubectl` as administrator, with a request timeout.
    pub(crate) fn kubectl(&self, programs: &Programs) -> Command {
        let mut command = Command::new(programs.path("kubectl"));
        command.arg("--kubeconfig").arg(self.pki.kubeconfig("admin")).arg("--request-timeout=20s");
        command.env("KUBECACHEDIR", &self.kubectl_cache).stdin(Stdio::null());
        command
    }

    fn start_api_server(
        &self,
        directory: &Directory,
        programs: &Programs,
        wanted: &ControlPlaneOptions<'_>,
        etcd: u16,
        port: u16,
    ) -> Result<(), Failure> {
        let policy = directory.join("audit-policy.json");
        fs::write(&policy, format!("{:#}\n", audit_policy(wanted.audit_reads)))?;
        let pki = &self.pki;
        let address = wanted.address;
        // Without pods, the Service `kubernetes` needs no endpoint.
        let endpoint = if wanted.reachable {
            format!("--advertise-address={address}")
        } else {
            "--endpoint-reconciler-type=none".to_owned()
        };
        let mut command = Command::new(programs.path("kube-apiserver"));
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--bind-address={address}"),
            format!("--secure-port={port}"),
            endpoint,
            format!("--service-cluster-ip-range={SERVICES}"),
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--client-ca-file={}", pki.certificate("ca")),
            format!("--tls-cert-file={}", pki.certificate("apiserver")),
            format!("--tls-private-key-file={}", pki.key("apiserver")),
            format!("--kubelet-client-certificate={}", pki.certificate("kubelet-client")),
            format!("--kubelet-client-key={}", pki.key("kubelet-client")),
            format!("--kubelet-certificate-authority={}", pki.certificate("ca")),
            // Otherwise logs and exec resolve the node's name by DNS first.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            format!("--service-account-key-file={}", pki.public_key("service-accounts")),
            format!("--service-account-signing-key-file={}", pki.key("service-accounts")),
            format!("--requestheader-client-ca-file={}", pki.certificate("front-proxy-ca")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            format!("--proxy-client-cert-file={}", pki.certificate("front-proxy-client")),
            format!("--proxy-client-key-file={}", pki.key("front-proxy-client")),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", directory.join("audit.log").display()),
            // One file, for counting writes.
            "--audit-log-maxsize=100000".to_owned(),
        ]);
        directory.start("kube-apiserver", &mut command)?;
        // Cheaper than starting kubectl.
        let socket = SocketAddr::from((address, port));
        directory.wait("kube-apiserver", 120, || {
            TcpStream::connect_timeout(&socket, Duration::from_secs(1)).is_ok()
        })?;
        directory.wait("kube-apiserver", 120, || {
            succeeds(self.kubectl(programs).args(["get", "--raw", "/readyz"]))
        })
    }

    fn start_controllers(
        &self,
        directory: &Directory,
        programs: &Programs,
        port: u16,
    ) -> Result<(), Failure> {
        let pki = &self.pki;
        let mut command = Command::new(programs.path("kube-controller-manager"));
        command.args(self.served("controller-manager", port)).args([
            "--use-service-account-credentials=true".to_owned(),
            format!("--service-account-private-key-file={}", pki.key("service-accounts")),
            format!("--root-ca-file={}", pki.certificate("ca")),
            format!("--cluster-signing-cert-file={}", pki.certificate("ca")),
            format!("--cluster-signing-key-file={}", pki.key("ca")),
            "--allocate-node-cidrs=true".to_owned(),
            format!("--cluster-cidr={PODS}"),
            format!("--service-cluster-ip-range={SERVICES}"),
            // Tests wait for autoscalers; the default is 15 s.
            "--horizontal-pod-autoscaler-sync-period=2s".to_owned(),
            "--concurrent-deployment-syncs=20".to_owned(),
            "--concurrent-replicaset-syncs=20".to_owned(),
        ]);
        directory.start("kube-controller-manager", &mut command)
    }

    fn start_scheduler(&self, directory: &Directory, programs: &Programs, port: u16) -> Result<(), Failure> {
        let mut command = Command::new(programs.path("kube-scheduler"));
        directory.start("kube-scheduler", command.args(self.served("scheduler", port)))
    }

    /// Common flags of controller manager and scheduler; without leader election.
    fn served(&self, party: &str, port: u16) -> Vec<String> {
        let config = self.pki.kubeconfig(party);
        let config = config.display();
        vec![
            format!("--kubeconfig={config}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", self.pki.certificate("apiserver")),
            format!("--tls-private-key-file={}", self.pki.key("apiserver")),
            "--leader-elect=false".to_owned(),
            // Benchmarks measure the operator, not the default limits of these.
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ]
    }

    /// Health is reported before the controllers run, so this waits for an effect of one.
    fn wait_for_controllers(
        &self,
        directory: &Directory,
        programs: &Programs,
        controllers: u16,
        scheduler: u16,
    ) -> Result<(), Failure> {
        for (name, port) in [("kube-controller-manager", controllers), ("kube-scheduler", scheduler)] {
            let server = format!("--server=https://127.0.0.1:{port}");
            directory.wait(name, 60, || {
                succeeds(self.kubectl(programs).args([&server, "get", "--raw", "/healthz"]))
            })?;
        }
        for made in ["serviceaccount/default", "configmap/kube-root-ca.crt"] {
            directory.wait("kube-controller-manager", 60, || {
                succeeds(self.kubectl(programs).args(["get", made, "--namespace=default"]))
            })?;
        }
        Ok(())
    }
}

fn start_etcd(directory: &Directory, programs: &Programs, port: u16, peers: u16) -> Result<(), Failure> {
    let clients = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{peers}");
    let mut command = Command::new(programs.path("etcd"));
    command.arg("--data-dir").arg(directory.join("etcd"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    // Test data need not survive a power failure.
    command.arg("--unsafe-no-fsync");
    directory.start("etcd", &mut command)?;
    directory.wait("etcd", 30, || is_healthy(port, "/health"))
}

/// Logs metadata of every write; reads only on demand.
fn audit_policy(reads: bool) -> serde_json::Value {
    let quiet = json!({ "level": "None", "verbs": ["get", "list", "watch"] });
    let all = json!({ "level": "Metadata" });
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": if reads { vec![all] } else { vec![quiet, all] },
    })
}

/// Whether a command succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Whether a local HTTP endpoint responds with 200.
pub(crate) fn is_healthy(port: u16, path: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let patience = Duration::from_secs(2);
        let until = Instant::now() + patience;
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), patience)?;
        stream.set_write_timeout(Some(patience))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let (mut head, mut part) = (Vec::new(), [0; 64]);
        while head.len() < "HTTP/1.1 200".len() && Instant::now() < until {
            stream.set_read_timeout(Some(patience))?;
            match stream.read(&mut part)? {
                0 => break,
                read => head.extend_from_slice(part.get(..read).unwrap_or_default()),
            }
        }
        Ok(head.starts_with(b"HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_status_200_is_healthy() {
        for (response, healthy) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
            ("HTTP/1.1", false),
        ] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let served = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 14];
                stream.read_exact(&mut request).unwrap();
                // A partial response is not enough.
                stream.write_all(&response.as_bytes()[..5]).unwrap();
                stream.write_all(&response.as_bytes()[5..]).unwrap();
                request
            });
            assert_eq!(is_healthy(port, "/health"), healthy, "{response}");
            assert_eq!(&served.join().unwrap(), b"GET /health HT");
        }
    }

    #[test]
    fn audit_policy_has_reads_on_demand() {
        let rules = |reads| audit_policy(reads).get("rules").unwrap().as_array().unwrap().clone();
        assert_eq!(rules(true), [json!({ "level": "Metadata" })]);
        assert_eq!(rules(false).len(), 2);
        assert_eq!(rules(false)[0].get("level").unwrap(), "None");
    }
}
