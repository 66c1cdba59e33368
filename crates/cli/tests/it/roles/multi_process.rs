//! Scheduler, gateway, agent and runtime as four processes over mutual TLS, with kills.

use super::{
    certificates::Certificates,
    process::{Process, http, infer, wait_until},
    single_role,
};
use crate::harness::{command, finish};
use gantry_trace::collector::Collector;
use std::{
    net::TcpListener,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Processes of the control and data plane; `None` if killed.
struct Deployment {
    dir: TempDir,
    certificates: Certificates,
    /// Scheduler ports for clients and agents, stable across restarts.
    ports: (u16, u16),
    environment: Vec<(String, String)>,
    scheduler: Option<Process>,
    server: Option<(Process, Process)>,
    gateway: Process,
}

impl Deployment {
    /// Starts everything and serves iris.
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(environment: &[(&str, &str)]) -> Self {
        let environment: Vec<(String, String)> =
            environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(dir.path());
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        // Bound at the same time, so that the ports differ.
        let (one, two) = (free(), free());
        let ports = (one.local_addr().unwrap().port(), two.local_addr().unwrap().port());
        drop((one, two));
        let gateway = start_gateway(dir.path(), ports.0, &certificates, &environment);
        let mut deployment =
            Self { dir, certificates, ports, environment, scheduler: None, server: None, gateway };
        deployment.start_scheduler();
        deployment.start_server();
        deployment.gateway.wait_for_line("Ready.");
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris.yaml");
        deployment.gantry(&["apply", "--wait", "-f", &models.display().to_string()]);
        deployment
    }

    fn start_scheduler(&mut self) {
        let mut flags = self.certificates.server();
        flags.push(format!("--scheduler-mtls-port={}", self.ports.0));
        flags.push(format!("--agent-mtls-port={}", self.ports.1));
        flags.push("--allow-plaintext=false".into());
        let args: Vec<String> = single_role::scheduler(&self.dir.path().join("state"), &flags)
            .into_iter()
            .filter(|a| !a.ends_with("-mtls-port=0"))
            .collect();
        let role = start(&args, &self.environment);
        role.wait_for_line("Ready.");
        self.scheduler = Some(role);
    }

    /// The built-in runtime as an external server with an agent.
    fn start_server(&mut self) {
        let models = self.dir.path().join("models");
        std::fs::create_dir_all(&models).unwrap();
        let models = models.display().to_string();
        let runtime = start(&["runtime", &models, "--explicit", "--port=0"], &self.environment);
        runtime.wait_for_line("serving on http://");
        let output = runtime.output();
        let port = output.split("http://127.0.0.1:").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let mut args: Vec<String> =
            ["agent", "--server=builtin", "--server-type=builtin"].map(str::to_owned).into();
        args.push(format!("--models-dir={models}"));
        args.push(format!("--state-dir={}", self.dir.path().join("agent").display()));
        args.push(format!("--server-http-port={port}"));
        args.push(format!("--server-grpc-port={port}"));
        args.push(format!("--scheduler-tls-port={}", self.ports.1));
        args.push("--health-check-interval=1".into());
        args.push("--local-root=/".into());
        for port in ["proxy-http", "proxy-grpc", "debug", "metrics", "drainer", "readiness"] {
            args.push(format!("--{port}-port=0"));
        }
        args.extend(self.certificates.of("agent"));
        let agent = start(&args, &self.environment);
        agent.wait_for_line("Ready.");
        self.server = Some((runtime, agent));
    }

    /// Runs a command over mutual TLS; panics on failure.
    fn gantry(&self, args: &[&str]) -> String {
        let scheduler = format!("--scheduler=127.0.0.1:{}", self.ports.0);
        let mut all = args.to_vec();
        let flags = self.certificates.client();
        all.push(&scheduler);
        all.extend(flags.iter().map(String::as_str));
        finish(&mut command(&all)).ok()
    }

    fn inference(&self) -> String {
        self.gateway.addresses()["inference"].clone()
    }
}

fn start_gateway(
    dir: &Path,
    scheduler: u16,
    certificates: &Certificates,
    environment: &[(String, String)],
) -> Process {
    let mut args = single_role::gateway(&format!("127.0.0.1:{scheduler}"), &certificates.of("gateway"));
    args.push(format!("--state-dir={}", dir.join("gateway").display()));
    start(&args, environment)
}

fn start<S: AsRef<str>>(args: &[S], environment: &[(String, String)]) -> Process {
    let environment: Vec<(&str, &str)> = environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    Process::start_with(args, &environment)
}

/// About 100 requests per second, counted.
struct Load {
    stop: Arc<AtomicBool>,
    succeeded: Arc<AtomicUsize>,
    thread: thread::JoinHandle<Vec<String>>,
}

impl Load {
    fn start(address: String) -> Self {
        let (stop, succeeded) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), succeeded.clone());
        let thread = thread::spawn(move || {
            let mut failed = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match infer(&address, "") {
                    Ok((200, _)) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    other => failed.push(format!("{other:?}")),
                }
                thread::sleep(Duration::from_millis(10));
            }
            failed
        });
        Self { stop, succeeded, thread }
    }

    /// Waits for this many more successful requests.
    fn wait_for_successes(&self, more: usize) {
        let target = self.succeeded.load(Ordering::Relaxed) + more;
        wait_until("requests are answered", || {
            self.succeeded.load(Ordering::Relaxed) >= target || self.thread.is_finished()
        });
    }

    fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn killed_scheduler_fails_no_request() {
    let mut deployment = Deployment::start();
    let load = Load::start(deployment.inference());
    load.wait_for_successes(50);
    deployment.scheduler.take().unwrap().kill();
    load.wait_for_successes(150);
    // The agent stays ready: otherwise all pods of a server could be evicted while the scheduler is down.
    let agent = &deployment.server.as_ref().unwrap().1;
    wait_until("the agent has noticed", || agent.output().contains("not connected to the scheduler"));
    assert_eq!(http(&agent.addresses()["ready"], "GET", "/ready", "", "").unwrap().0, 200);
    deployment.start_scheduler();
    // Agent and gateway reconnect, and the model becomes ready.
    deployment.gantry(&["wait", "model/iris", "--for=ready"]);
    load.wait_for_successes(150);
    assert_eq!(load.stop(), Vec::<String>::new());
}

#[test]
fn gateway_that_restarts_without_a_scheduler_serves_from_stored_routes() {
    let mut deployment = Deployment::start();
    let stored = deployment.dir.path().join("gateway/routes.bin");
    wait_until("the route of iris is stored", || {
        std::fs::read(&stored).is_ok_and(|bytes| bytes.windows(4).any(|name| name == b"iris"))
    });
    deployment.scheduler.take().unwrap().kill();
    let Deployment { dir, ports, certificates, environment, .. } = &deployment;
    let restarted = start_gateway(dir.path(), ports.0, certificates, environment);
    std::mem::replace(&mut deployment.gateway, restarted).kill();
    deployment.gateway.wait_for_line("Serving 1 models from stored routes");
    let admin = deployment.gateway.addresses()["admin"].clone();
    assert_eq!(http(&admin, "GET", "/readyz", "", "").unwrap().0, 200);
    let load = Load::start(deployment.inference());
    load.wait_for_successes(50);
    // The scheduler's routes replace the stored ones without a failed request.
    deployment.start_scheduler();
    deployment.gantry(&["wait", "model/iris", "--for=ready"]);
    load.wait_for_successes(100);
    assert_eq!(load.stop(), Vec::<String>::new());
}

#[test]
fn scheduler_and_server_recover_from_a_joint_kill() {
    let mut deployment = Deployment::start();
    deployment.scheduler.take().unwrap().kill();
    let (runtime, agent) = deployment.server.take().unwrap();
    runtime.kill();
    agent.kill();
    deployment.start_scheduler();
    wait_until("Ready is false", || !is_ready(&deployment));
    deployment.start_server();
    deployment.gantry(&["wait", "model/iris", "--for=ready"]);
    wait_until("requests are answered", || matches!(infer(&deployment.inference(), ""), Ok((200, _))));
    let json = deployment.gantry(&["get", "model", "iris", "-o", "json"]);
    assert!(json.contains("ModelAvailable"), "{json}");
}

fn is_ready(deployment: &Deployment) -> bool {
    deployment.gantry(&["get", "model", "iris", "-o", "json"]).contains("ModelAvailable")
}

#[test]
fn trace_spans_all_processes() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let collector = runtime.block_on(Collector::start()).unwrap();
    let endpoint = format!("http://{}", collector.address);
    let deployment = Deployment::start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    assert_eq!(infer(&deployment.inference(), parent).unwrap().0, 200);
    let spans = || -> Vec<_> { collector.spans().into_iter().filter(|t| t.trace == trace).collect() };
    wait_until("four spans exported", || spans().len() >= 4);
    let spans = spans();
    let find = |service: &str, kind: i32| {
        spans.iter().find(|s| s.service == service && s.kind == kind).unwrap_or_else(|| panic!("{spans:#?}"))
    };
    let (request, target) = (find("gantry-gateway", 2), find("gantry-gateway", 3));
    let (agent, server) = (find("gantry-agent", 2), find("gantry-runtime", 2));
    assert_eq!((&target.parent, &agent.parent, &server.parent), (&request.span, &target.span, &agent.span));
    // Scheduler calls are traced too.
    let load = "seldon.mlops.scheduler.Scheduler/LoadModel";
    wait_until("scheduler span exported", || {
        collector.spans().iter().any(|t| t.service == "gantry-scheduler" && t.name == load)
    });
}
