//! Scheduler, gateway, agent and server as four processes over mutual TLS, and what happens when some are killed.

use super::{
    certificates::Certificates,
    process::{Role, http, infer, until},
    separate,
};
use crate::world::{command, finish};
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

/// The processes of a control plane and its data plane; what is gone is `None`.
struct Fleet {
    dir: TempDir,
    certificates: Certificates,
    /// Where the scheduler listens for clients and for agents, the same after each start.
    ports: (u16, u16),
    environment: Vec<(String, String)>,
    scheduler: Option<Role>,
    server: Option<(Role, Role)>,
    gateway: Role,
}

impl Fleet {
    /// Everything runs, and iris is served.
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with variables for every process.
    fn start_with(environment: &[(&str, &str)]) -> Self {
        let environment: Vec<(String, String)> =
            environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let dir = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(dir.path());
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        // Two at once, so that they are not the same.
        let (one, two) = (free(), free());
        let ports = (one.local_addr().unwrap().port(), two.local_addr().unwrap().port());
        drop((one, two));
        let args = separate::gateway(&format!("127.0.0.1:{}", ports.0), &certificates.client());
        let gateway = start(&args, &environment);
        let mut fleet =
            Self { dir, certificates, ports, environment, scheduler: None, server: None, gateway };
        fleet.start_scheduler();
        fleet.start_server();
        fleet.gateway.says("Ready.");
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/iris.yaml");
        fleet.gantry(&["apply", "--wait", "-f", &models.display().to_string()]);
        fleet
    }

    fn start_scheduler(&mut self) {
        let mut flags = self.certificates.server();
        flags.push(format!("--scheduler-mtls-port={}", self.ports.0));
        flags.push(format!("--agent-mtls-port={}", self.ports.1));
        flags.push("--allow-plaintext=false".into());
        let args: Vec<String> = separate::scheduler(&self.dir.path().join("state"), &flags)
            .into_iter()
            .filter(|a| !a.ends_with("-mtls-port=0"))
            .collect();
        let role = start(&args, &self.environment);
        role.says("Ready.");
        self.scheduler = Some(role);
    }

    /// The built-in runtime as a server like any other, and the agent beside it.
    fn start_server(&mut self) {
        let models = self.dir.path().join("models");
        std::fs::create_dir_all(&models).unwrap();
        let models = models.display().to_string();
        let runtime = start(&["runtime", &models, "--explicit", "--port=0"], &self.environment);
        runtime.says("serving on http://");
        let said = runtime.said();
        let port = said.split("http://127.0.0.1:").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let mut args: Vec<String> =
            ["agent", "--server=builtin", "--server-type=builtin"].map(str::to_owned).into();
        args.push(format!("--models-dir={models}"));
        args.push(format!("--state-dir={}", self.dir.path().join("agent").display()));
        args.push(format!("--server-http-port={port}"));
        args.push(format!("--server-grpc-port={port}"));
        args.push(format!("--scheduler-tls-port={}", self.ports.1));
        args.push("--check-period=1".into());
        for port in ["proxy-http", "proxy-grpc", "debug", "metrics", "drainer", "readiness"] {
            args.push(format!("--{port}-port=0"));
        }
        args.extend(self.certificates.client());
        let agent = start(&args, &self.environment);
        agent.says("Ready.");
        self.server = Some((runtime, agent));
    }

    /// A verb, over mutual TLS; it must succeed.
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

fn start<S: AsRef<str>>(args: &[S], environment: &[(String, String)]) -> Role {
    let environment: Vec<(&str, &str)> = environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    Role::start_with(args, &environment)
}

/// Somebody who asks about a hundred times a second, and counts.
struct Load {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicUsize>,
    thread: thread::JoinHandle<Vec<String>>,
}

impl Load {
    fn start(address: String) -> Self {
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), good.clone());
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
        Self { stop, good, thread }
    }

    /// Waits until so many more were answered, or it is hopeless.
    fn goes_on(&self, more: usize) {
        let wanted = self.good.load(Ordering::Relaxed) + more;
        until("requests are answered", || {
            self.good.load(Ordering::Relaxed) >= wanted || self.thread.is_finished()
        });
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

#[test]
fn a_killed_scheduler_fails_no_request() {
    let mut fleet = Fleet::start();
    let load = Load::start(fleet.inference());
    load.goes_on(50);
    fleet.scheduler.take().unwrap().kill();
    load.goes_on(150);
    // Who serves is ready, or all of a server's pods could be evicted at once while the scheduler is away.
    let agent = &fleet.server.as_ref().unwrap().1;
    until("the agent has noticed", || agent.said().contains("not connected to the scheduler"));
    assert_eq!(http(&agent.addresses()["ready"], "GET", "/ready", "", "").unwrap().0, 200);
    fleet.start_scheduler();
    // Agent and gateway come back by themselves, and the model counts as ready again.
    fleet.gantry(&["wait", "model/iris", "--for=ready"]);
    load.goes_on(150);
    assert_eq!(load.end(), Vec::<String>::new());
}

#[test]
fn scheduler_and_server_killed_together_come_back_by_themselves() {
    let mut fleet = Fleet::start();
    fleet.scheduler.take().unwrap().kill();
    let (runtime, agent) = fleet.server.take().unwrap();
    runtime.kill();
    agent.kill();
    fleet.start_scheduler();
    until("Ready is false", || !is_ready(&fleet));
    fleet.start_server();
    fleet.gantry(&["wait", "model/iris", "--for=ready"]);
    until("requests are answered", || matches!(infer(&fleet.inference(), ""), Ok((200, _))));
    let said = fleet.gantry(&["get", "model", "iris", "-o", "json"]);
    assert!(said.contains("ModelAvailable"), "{said}");
}

fn is_ready(fleet: &Fleet) -> bool {
    fleet.gantry(&["get", "model", "iris", "-o", "json"]).contains("ModelAvailable")
}

#[test]
fn a_trace_goes_through_every_process() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let collector = runtime.block_on(Collector::start()).unwrap();
    let endpoint = format!("http://{}", collector.address);
    let fleet = Fleet::start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    let parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    assert_eq!(infer(&fleet.inference(), parent).unwrap().0, 200);
    let spans = || -> Vec<_> { collector.told().into_iter().filter(|t| t.trace == trace).collect() };
    until("four spans are told", || spans().len() >= 4);
    let spans = spans();
    let find = |service: &str, kind: i32| {
        spans.iter().find(|s| s.service == service && s.kind == kind).unwrap_or_else(|| panic!("{spans:#?}"))
    };
    let (request, target) = (find("gantry-gateway", 2), find("gantry-gateway", 3));
    let (agent, server) = (find("gantry-agent", 2), find("gantry-runtime", 2));
    assert_eq!((&target.parent, &agent.parent, &server.parent), (&request.span, &target.span, &agent.span));
    // What the scheduler was asked is told as well.
    let load = "seldon.mlops.scheduler.Scheduler/LoadModel";
    until("the scheduler's call is told", || {
        collector.told().iter().any(|t| t.service == "gantry-scheduler" && t.name == load)
    });
}
