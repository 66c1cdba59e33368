//! A scheduler with a simulated agent, and the binary run against it.

use gantry_proto::agent::{
    AgentSubscribeRequest, ModelEventMessage, ReplicaConfig, agent_service_client::AgentServiceClient,
    model_event_message::Event, model_operation_message::Operation,
};
use gantry_scheduler::{Config, Running, start};
use gantry_store::Store;
use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};
use tokio::{runtime::Runtime, task::JoinHandle};

#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl RunResult {
    /// Both streams and the exit code, for snapshots.
    pub(crate) fn transcript(&self) -> String {
        let part = |name: &str, text: &str| {
            if text.is_empty() { String::new() } else { format!("--- {name}\n{}\n", text.trim_end()) }
        };
        format!("{}{}--- exit {}", part("stdout", &self.stdout), part("stderr", &self.stderr), self.code)
    }

    /// Stdout; panics on failure.
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }
}

/// The binary with a clean environment.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(args);
    for variable in [
        "GANTRY_SCHEDULER",
        "GANTRY_INFERENCE",
        "GANTRY_ADMIN",
        "SELDON_SCHEDULE_HOST",
        "SELDON_INFER_HOST",
        "SELDON_FORCE_CONTROL_PLANE",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "CONTROL_PLANE_SECURITY_PROTOCOL",
        "GANTRY_TLS_CA",
        "NO_COLOR",
        "CLICOLOR_FORCE",
        "COLUMNS",
    ] {
        command.env_remove(variable);
    }
    // No user configuration or session.
    command.env("HOME", "/nonexistent");
    command.stdin(Stdio::null());
    command
}

pub(crate) fn gantry(args: &[&str]) -> RunResult {
    finish(&mut command(args))
}

pub(crate) fn finish(command: &mut Command) -> RunResult {
    let output = command.output().expect("the binary starts");
    RunResult {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("stdout is text"),
        stderr: String::from_utf8(output.stderr).expect("stderr is text"),
    }
}

/// Runs the binary with text on stdin.
pub(crate) fn gantry_with(args: &[&str], stdin: &str) -> RunResult {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // The child may exit without reading stdin.
    let _ = child.stdin.take().expect("stdin is piped").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("the binary ends");
    RunResult {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A scheduler, simulated agents, and a directory for manifests.
pub(crate) struct Harness {
    pub(crate) runtime: Runtime,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) scheduler: SocketAddr,
    running: Option<Running>,
    agents: SocketAddr,
    agent_tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Harness {
    /// A scheduler with a server that offers `onnx`.
    pub(crate) fn new() -> Self {
        let harness = Self::without_server();
        harness.connect_agent("builtin");
        // `wait` fails for an unknown server, so retry until it is registered.
        let wait = || harness.gantry(&["wait", "server/builtin", "--for=ready"]);
        let deadline = std::time::Instant::now() + Duration::from_mins(1);
        let mut result = wait();
        while result.code == 3 && std::time::Instant::now() < deadline {
            result = wait();
        }
        result.ok();
        harness
    }

    /// A scheduler without servers.
    pub(crate) fn without_server() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let store = Store::open(&dir.path().join("state")).unwrap();
        let running = runtime.block_on(start(Config::new(store), any, any)).unwrap();
        let (scheduler, agents) = (running.clients, running.agents);
        Self { runtime, dir, scheduler, running: Some(running), agents, agent_tasks: Mutex::default() }
    }

    /// Connects an agent. Loading `broken` artifacts fails, loading `slow` ones never completes.
    pub(crate) fn connect_agent(&self, server: &str) {
        let (agents, server) = (self.agents, server.to_owned());
        let (connected, is_connected) = std::sync::mpsc::channel();
        let agent = self.runtime.spawn(async move {
            let mut client = AgentServiceClient::connect(format!("http://{agents}")).await.unwrap();
            let request = AgentSubscribeRequest {
                server_name: server.clone(),
                shared: true,
                replica_idx: 0,
                replica_config: Some(ReplicaConfig {
                    inference_svc: "127.0.0.1".into(),
                    inference_http_port: 8080,
                    inference_grpc_port: 9500,
                    memory_bytes: 1_000_000_000,
                    capabilities: vec!["onnx".into()],
                    over_commit_percentage: 0,
                }),
                loaded_models: vec![],
                available_memory_bytes: 1_000_000_000,
            };
            let mut orders = client.subscribe(request).await.unwrap().into_inner();
            connected.send(()).unwrap();
            while let Ok(Some(order)) = orders.message().await {
                let load = order.operation() == Operation::LoadModel;
                let version = order.model_version.unwrap();
                let model = version.model.unwrap();
                // An unload order has no spec.
                let uri = model.model_spec.unwrap_or_default().uri;
                let (event, message) = match load {
                    true if uri.contains("slow") => continue,
                    true if uri.contains("broken") => (Event::LoadFailed, "it is not a model"),
                    true => (Event::Loaded, ""),
                    false => (Event::Unloaded, ""),
                };
                let report = ModelEventMessage {
                    server_name: server.clone(),
                    replica_idx: 0,
                    model_name: model.meta.unwrap().name,
                    model_version: version.version,
                    event: event as i32,
                    message: message.into(),
                    available_memory_bytes: 1_000_000_000,
                    runtime_info: None,
                };
                client.agent_event(report).await.unwrap();
            }
        });
        is_connected.recv_timeout(Duration::from_secs(20)).expect("the agent connects");
        self.agent_tasks.lock().unwrap().push(agent);
    }

    /// The binary with this scheduler and without an admin endpoint.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("GANTRY_SCHEDULER", self.scheduler.to_string());
        command.env("GANTRY_ADMIN", "127.0.0.1:1");
        command.current_dir(self.dir.path());
        command
    }

    pub(crate) fn gantry(&self, args: &[&str]) -> RunResult {
        finish(&mut self.command(args))
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Applies a model and waits until it is ready.
    pub(crate) fn serve(&self, name: &str, spec: &str) {
        let file = format!("{name}.yaml");
        self.write(&file, &model(name, spec));
        self.gantry(&["apply", "-f", &file, "--wait"]).ok();
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // The scheduler waits for connected agents.
        self.agent_tasks.lock().unwrap().iter().for_each(JoinHandle::abort);
        if let Some(running) = self.running.take() {
            self.runtime.block_on(async {
                let _ = tokio::time::timeout(Duration::from_secs(5), running.stop()).await;
            });
        }
    }
}

/// A model's manifest; `spec` is indented lines.
pub(crate) fn model(name: &str, spec: &str) -> String {
    format!("apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

/// A server's manifest.
pub(crate) fn server(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Server\nmetadata:\n  name: {name}\nspec:\n  \
         serverConfig: {name}\n  replicas: {replicas}\n"
    )
}

/// Replaces timestamps, ages and temporary paths.
pub(crate) fn normalize(text: &str, dir: &Path) -> String {
    let text = text.replace(&dir.canonicalize().unwrap().display().to_string(), "DIR");
    let mut out = String::new();
    for line in text.lines() {
        let mut tokens: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for i in 0..tokens.len() {
            let trimmed = tokens[i].trim_matches(|c| "\",".contains(c)).to_owned();
            if trimmed.len() >= 20 && trimmed.starts_with("20") && trimmed.ends_with('Z') {
                tokens[i] = tokens[i].replace(&trimmed, "TIME");
            }
            if tokens.get(i + 1).is_some_and(|w| w.starts_with("ago")) {
                let open = if tokens[i].starts_with('(') { "(" } else { "" };
                // Keep the alignment of the following columns.
                let pad = " ".repeat(tokens[i].len().saturating_sub(open.len() + 2));
                tokens[i] = format!("{open}0s");
                tokens[i + 1] += &pad;
            }
        }
        out += tokens.join(" ").trim_end();
        out.push('\n');
    }
    out
}

/// A snapshot in `tests/snapshots`.
pub(crate) fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}
