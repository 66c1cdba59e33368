//! Who may do what: processes and commands with the certificate of another role.

use super::{
    certificates::Certificates,
    process::{Process, wait_until},
    single_role,
};
use crate::harness::{RunResult, gantry};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Scheduler {
    dir: TempDir,
    certificates: Certificates,
    process: Process,
}

impl Scheduler {
    fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(dir.path());
        let mut flags = certificates.server();
        flags.push("--allow-plaintext=false".into());
        flags.push(format!("--audit-log={}", dir.path().join("audit.jsonl").display()));
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let process = Process::start(&single_role::scheduler(&dir.path().join("state"), &flags));
        process.wait_for_line("Ready.");
        Self { dir, certificates, process }
    }

    fn address(&self, port: &str) -> String {
        self.process.addresses()[&format!("{port} tls")].clone()
    }

    /// A command with the certificate of a role.
    fn gantry(&self, role: &str, args: &[&str]) -> RunResult {
        let scheduler = format!("--scheduler={}", self.address("clients"));
        let flags = self.certificates.of(role);
        let mut all = args.to_vec();
        all.push(&scheduler);
        all.extend(flags.iter().map(String::as_str));
        gantry(&all)
    }

    fn gateway(&self, role: &str) -> Process {
        Process::start(&single_role::gateway(&self.address("clients"), &self.certificates.of(role)))
    }

    /// An agent of server `builtin`, replica 0.
    fn agent(&self, role: &str, server_port: &str) -> Process {
        let (_, port) =
            self.address("agents").rsplit_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).unwrap();
        let directory = self.dir.path().join(role);
        let mut args: Vec<String> =
            ["agent", "--server=builtin", "--server-type=builtin"].map(str::to_owned).into();
        args.push(format!("--models-dir={}", directory.join("models").display()));
        args.push(format!("--state-dir={}", directory.join("state").display()));
        args.push(format!("--scheduler-tls-port={port}"));
        args.push(format!("--server-http-port={server_port}"));
        args.push(format!("--server-grpc-port={server_port}"));
        for port in ["proxy-http", "proxy-grpc", "debug", "metrics", "drainer", "readiness"] {
            args.push(format!("--{port}-port=0"));
        }
        args.extend(self.certificates.of(role));
        Process::start(&args)
    }

    /// Stops the scheduler; returns the entries of its audit log.
    fn audit_log(self) -> Vec<Value> {
        let file = self.dir.path().join("audit.jsonl");
        assert_eq!(self.process.terminate(), Some(0));
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn iris() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris.yaml")
}

#[test]
fn command_with_the_certificate_of_another_role_is_denied_and_audited() {
    let scheduler = Scheduler::start(&[]);
    let manifest = iris().display().to_string();
    let apply = ["apply", "-f", manifest.as_str()];
    for role in ["viewer", "agent", "gateway", "operator"] {
        let denied = scheduler.gantry(role, &apply);
        assert_ne!(denied.code, 0, "{role}: {denied:?}");
        let identity = format!("spiffe://test/gantry/role/{role} (role {role}) may not");
        assert!(denied.stderr.contains(&identity), "{role}: {denied:?}");
    }
    scheduler.gantry("viewer", &["get", "models"]).ok();
    let denied = scheduler.gantry("agent", &["get", "models"]);
    assert!(denied.stderr.contains("which needs the role client, viewer"), "{denied:?}");
    scheduler.gantry("client", &apply).ok();
    // As before roles: the certificate of a deployment that was upgraded.
    scheduler.gantry("unmarked", &["delete", "model/iris"]).ok();

    let entries = scheduler.audit_log();
    let find = |code: &str, role: &str| {
        let found = entries.iter().find(|e| e["code"] == code && e["role"] == role);
        found.unwrap_or_else(|| panic!("{code} {role}: {entries:#?}"))
    };
    for role in ["viewer", "agent", "gateway", "operator"] {
        assert_eq!(find("PERMISSION_DENIED", role)["identity"], format!("spiffe://test/gantry/role/{role}"));
    }
    let loaded =
        entries.iter().find(|e| e["code"] == "OK" && e["rpc"].as_str().unwrap().ends_with("/LoadModel"));
    let loaded = loaded.unwrap_or_else(|| panic!("{entries:#?}"));
    assert_eq!((&loaded["kind"], &loaded["name"]), (&"model".into(), &"iris".into()));
    assert_eq!((&loaded["role"], &loaded["owner"]), (&"client".into(), &"cli".into()));
    let unloaded = entries.iter().find(|e| e["rpc"].as_str().unwrap().ends_with("/UnloadModel")).unwrap();
    assert_eq!((&unloaded["code"], &unloaded["role"]), (&"OK".into(), &"client".into()));
    assert!(!unloaded["identity"].as_str().unwrap().starts_with("spiffe:"), "{unloaded}");
}

#[test]
fn certificates_without_a_role_have_the_configured_rights() {
    let none = Scheduler::start(&["--role-of-unmarked-certificates=none"]);
    let denied = none.gantry("unmarked", &["get", "models"]);
    assert_ne!(denied.code, 0);
    assert!(denied.stderr.contains("--role-of-unmarked-certificates"), "{denied:?}");
    none.gantry("client", &["get", "models"]).ok();

    let client = Scheduler::start(&[]);
    client.gantry("unmarked", &["get", "models"]).ok();
    let gateway = client.gateway("unmarked");
    let scheduler = &client.process;
    wait_until("the gateway is denied", || {
        scheduler.output().contains("may not call gantry.v1.Routing/WatchRoutes")
    });
    assert!(!gateway.output().contains("Ready."));

    // As before roles, until each part has its own certificate.
    let any = Scheduler::start(&["--role-of-unmarked-certificates=any"]);
    any.gateway("unmarked").wait_for_line("Ready.");
    assert!(any.process.output().contains("certificates without a role have all rights"));
}

#[test]
fn gateway_and_agent_need_certificates_of_their_own_role() {
    let scheduler = Scheduler::start(&[]);
    scheduler.gateway("gateway").wait_for_line("Ready.");
    for role in ["client", "agent", "viewer"] {
        let gateway = scheduler.gateway(role);
        let identity =
            format!("spiffe://test/gantry/role/{role} (role {role}) may not call gantry.v1.Routing");
        wait_until("the gateway is denied", || scheduler.process.output().contains(&identity));
        assert!(!gateway.output().contains("Ready."), "{}", gateway.output());
    }
    // The scheduler logs one denied call per second: the audit log has all.
    let models = scheduler.dir.path().join("models");
    std::fs::create_dir_all(&models).unwrap();
    let runtime = Process::start(&["runtime", &models.display().to_string(), "--explicit", "--port=0"]);
    runtime.wait_for_line("serving on http://");
    let output = runtime.output();
    let port = output.split("http://127.0.0.1:").nth(1).unwrap().split(',').next().unwrap();
    let agents: Vec<_> =
        ["client", "gateway", "agent-of-another"].map(|role| scheduler.agent(role, port)).into();
    let log = scheduler.dir.path().join("audit.jsonl");
    for identity in ["role/client", "role/gateway", "role/agent/another/0"] {
        wait_until("the agent is denied", || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.lines().any(|line| {
                line.contains(identity)
                    && line.contains("AgentService/Subscribe")
                    && line.contains("PERMISSION_DENIED")
            })
        });
    }
    drop(agents);
    let entries = scheduler.audit_log();
    let other =
        entries.iter().find(|e| e["identity"] == "spiffe://test/gantry/role/agent/another/0").unwrap();
    assert_eq!((&other["kind"], &other["name"]), (&"replica".into(), &"builtin/0".into()));
}
