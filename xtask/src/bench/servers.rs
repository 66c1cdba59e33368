//! Starts and stops the measured servers and finds their ports.

use super::{
    machine::{Core, Machine},
    wire::http,
};
use crate::{Failure, ports};
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        Self::below(&std::env::temp_dir(), name)
    }

    /// In memory if available, for measurements that must not wait for a disk.
    pub(crate) fn in_memory(name: &str) -> Result<Self, Failure> {
        let memory = PathBuf::from("/dev/shm");
        Self::below(&if memory.is_dir() { memory } else { std::env::temp_dir() }, name)
    }

    fn below(place: &Path, name: &str) -> Result<Self, Failure> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = place.join(format!("gantry-bench-{}-{number}-{name}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed on drop.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it with its output in a file, for error messages.
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> Result<Self, Failure> {
        let (out, err) = (File::create(&log)?, File::options().append(true).open(&log)?);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        Ok(Self { child: child.map_err(|e| format!("{command:?}: {e}"))?, log })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, for programs that wait before they exit.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its output so far.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Polls until there is a result; fails if the process exits.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            if let Some(response) = ask(self) {
                return Ok(response);
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let output = self.output();
                let tail = output.get(output.len().saturating_sub(3000)..).unwrap_or(&output);
                return Err(format!("waiting for {what} failed ({ended:?}); output:\n{tail}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // SIGINT, which MLServer forwards to its workers; SIGKILL would orphan them.
        let signalled = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while signalled.as_ref().is_ok_and(std::process::ExitStatus::success) && Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
    }
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

pub(crate) fn free_address() -> Result<SocketAddr, Failure> {
    let [port] = ports::free()?;
    Ok(local(port))
}

/// Waits for a response with status 200.
pub(crate) fn wait_for_response(
    process: &mut Process,
    address: SocketAddr,
    request: &[u8],
) -> Result<Vec<u8>, Failure> {
    process.until("a response", |_| {
        let mut connection = http::Connection::open(address).ok()?;
        connection.call(request).ok().map(<[u8]>::to_vec)
    })
}

/// `gantry up` and its addresses.
pub(crate) struct Gantry {
    pub(crate) process: Process,
    pub(crate) inference: SocketAddr,
    pub(crate) scheduler: SocketAddr,
    pub(crate) agents: SocketAddr,
    _state: Scratch,
}

/// Starts `gantry up` with an empty state directory on the server's core and waits until it prints its addresses.
pub(crate) fn gantry(machine: &Machine, program: &Path, paths: &[&Path]) -> Result<Gantry, Failure> {
    start_gantry(machine.command(Core::Server, program), paths)
}

/// The same with any command.
pub(crate) fn start_gantry(mut command: Command, paths: &[&Path]) -> Result<Gantry, Failure> {
    let state = Scratch::in_memory("gantry")?;
    // The agent port is not printed, so it is chosen here.
    let agents = free_address()?;
    command.arg("up").args(paths).arg("--state-dir").arg(state.0.join("state")).arg("--no-watch");
    for port in ["--inference-port", "--admin-port", "--scheduler-port"] {
        command.args([port, "0"]);
    }
    command.args(["--agent-port", &agents.port().to_string()]);
    let mut process = Process::start(&mut command, state.0.join("out"))?;
    let output =
        process.until("gantry's start", |p| Some(p.output()).filter(|s| s.contains("\nReady in ")))?;
    let address = |label: &str| -> Result<SocketAddr, Failure> {
        let line = output
            .lines()
            .find_map(|l| l.trim().strip_prefix(label))
            .ok_or_else(|| format!("no {label} in:\n{output}"))?;
        let word = line.split_whitespace().next().unwrap_or_default();
        Ok(word.trim_start_matches("http://").parse()?)
    };
    Ok(Gantry {
        inference: address("inference")?,
        scheduler: address("scheduler")?,
        agents,
        process,
        _state: state,
    })
}

/// MLServer with the iris model, and its addresses.
pub(crate) struct MlServer {
    pub(crate) process: Process,
    pub(crate) rest: SocketAddr,
    pub(crate) grpc: SocketAddr,
    _home: Scratch,
}

/// Writes MLServer's directory: the trained model, and its fastest settings on one core (no workers, no access log).
pub(crate) fn mlserver(machine: &Machine, programs: &Path, model: &Path) -> Result<MlServer, Failure> {
    let home = Scratch::new("mlserver")?;
    let [http_port, grpc_port, metrics_port] = ports::free()?;
    let settings = serde_json::json!({
        "host": "127.0.0.1", "http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port,
        "parallel_workers": 0, "debug": false,
    });
    fs::write(home.0.join("settings.json"), settings.to_string())?;
    let model_settings = serde_json::json!({
        "name": "iris", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": { "uri": model },
    });
    fs::write(home.0.join("model-settings.json"), model_settings.to_string())?;
    let mut command = machine.command(Core::Server, programs.join("mlserver"));
    command.arg("start").arg(&home.0).current_dir(&home.0);
    let process = Process::start(&mut command, home.0.join("out"))?;
    Ok(MlServer { process, rest: local(http_port), grpc: local(grpc_port), _home: home })
}

/// The upstream, on the core of the load generator.
pub(crate) fn upstream(machine: &Machine) -> Result<(Process, SocketAddr), Failure> {
    let scratch = std::env::temp_dir().join(format!("gantry-bench-upstream-{}", std::process::id()));
    let mut command = machine.command(Core::Load, std::env::current_exe()?);
    let mut process = Process::start(command.arg("bench-upstream"), scratch.clone())?;
    let address = process.until("the upstream's start", |p| p.output().lines().next()?.parse().ok())?;
    let _ = fs::remove_file(scratch);
    Ok((process, address))
}

/// Envoy in front of an upstream, with one route per model in a flat list.
pub(crate) struct Envoy {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    _home: Scratch,
}

pub(crate) fn envoy(
    machine: &Machine,
    program: &Path,
    upstream: SocketAddr,
    models: &[String],
) -> Result<Envoy, Failure> {
    use serde_json::json;
    let home = Scratch::new("envoy")?;
    let address = free_address()?;
    let socket = |a: SocketAddr| json!({ "socket_address": { "address": a.ip().to_string(), "port_value": a.port() } });
    let routes: Vec<_> = models
        .iter()
        .map(|model| {
            let header = json!([{ "name": "seldon-model", "string_match": { "exact": model } }]);
            json!({ "match": { "prefix": "/", "headers": header }, "route": { "cluster": "upstream" } })
        })
        .collect();
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let hosts = json!([{ "name": "all", "domains": ["*"], "routes": routes }]);
    let filter = json!({
        "@type": manager, "stat_prefix": "bench", "route_config": { "name": "models", "virtual_hosts": hosts },
        "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": { "@type": router } }],
    });
    let chain = json!([{ "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": filter }] }]);
    let endpoint = json!([{ "lb_endpoints": [{ "endpoint": { "address": socket(upstream) } }] }]);
    let config = json!({ "static_resources": {
        "listeners": [{ "name": "models", "address": socket(address), "filter_chains": chain }],
        "clusters": [{ "name": "upstream", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": { "cluster_name": "upstream", "endpoints": endpoint } }],
    } });
    let file = home.0.join("envoy.json");
    fs::write(&file, config.to_string())?;
    let mut command = machine.command(Core::Server, program);
    command.arg("-c").arg(&file).args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
    let process = Process::start(&mut command, home.0.join("out"))?;
    Ok(Envoy { process, address, _home: home })
}

/// A Python process that responds to lines of JSON.
pub(crate) struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    pub(crate) fn start(machine: &Machine, programs: &Path, script: &Path) -> Result<Self, Failure> {
        let mut command = machine.command(Core::Server, programs.join("python"));
        let mut child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Self { child, lines: BufReader::new(output) })
    }

    pub(crate) fn call(&mut self, request: &serde_json::Value) -> Result<serde_json::Value, Failure> {
        use std::io::Write as _;
        let input = self.child.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{request}")?;
        input.flush()?;
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        serde_json::from_str(&line)
            .map_err(|e| format!("unexpected response of the peer script to {request}: {line:?}: {e}").into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The script exits at the end of its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
