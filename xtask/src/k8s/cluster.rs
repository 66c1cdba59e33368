//! Lifecycle of a cluster: up, status, down.

use super::{
    control_plane::{ControlPlane, ControlPlaneOptions},
    directory::Directory,
    kwok, node,
    pki::Pki,
    programs::{self, Programs},
};
use crate::Failure;
use serde_json::{Value, json};
use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) directory: PathBuf,
    /// With a real node.
    pub(crate) node: bool,
    /// Number of simulated nodes.
    pub(crate) kwok: u32,
    /// Reads in the audit log.
    pub(crate) audit_reads: bool,
}

/// A running cluster.
pub(crate) struct Cluster {
    directory: Directory,
    programs: Programs,
    plane: ControlPlane,
}

impl Cluster {
    /// Builds missing programs, starts the cluster and waits until it is ready. On failure nothing is left running.
    pub(crate) fn up(options: &Options) -> Result<Self, Failure> {
        let directory = Directory::at(&options.directory)?;
        let programs = Programs::locate()?;
        // Checked before minutes of building.
        directory.ensure_vacant()?;
        if options.node {
            node::requirements()?;
        }
        let mut needed = programs::CONTROL_PLANE.to_vec();
        needed.extend(options.node.then_some(programs::NODE).into_iter().flatten());
        needed.extend((options.kwok > 0).then_some(programs::KWOK));
        programs.ensure(&needed)?;
        directory.prepare()?;
        Self::start(&directory, &programs, options).inspect_err(|_| {
            if let Err(failure) = down(&directory) {
                eprintln!("stopping the cluster failed: {failure}");
            }
        })
    }

    fn start(directory: &Directory, programs: &Programs, options: &Options) -> Result<Self, Failure> {
        let begun = Instant::now();
        let mut last = begun;
        let mut say = move |what: &str| {
            eprintln!("  {what:<14} {:>6.2} s", last.elapsed().as_secs_f64());
            last = Instant::now();
        };
        if options.node {
            node::claim(directory)?;
        }
        let wanted = ControlPlaneOptions {
            address: if options.node { node::FIRST.address() } else { Ipv4Addr::LOCALHOST },
            reachable: options.node,
            nodes: &node::ALL,
            audit_reads: options.audit_reads,
        };
        let plane = ControlPlane::start(directory, programs, &wanted, &mut say)?;
        let cluster = Self { directory: directory.clone(), programs: programs.clone(), plane };
        cluster.write_facts(options)?;
        if options.node {
            node::start(&cluster, &mut say)?;
        }
        if options.kwok > 0 {
            kwok::start(&cluster, options.kwok)?;
            say("simulated nodes");
        }
        eprintln!("  {:<14} {:>6.2} s", "all", begun.elapsed().as_secs_f64());
        Ok(cluster)
    }

    /// Adds a second real node, for drains.
    pub(crate) fn add_node(&self) -> Result<(), Failure> {
        node::add(self, node::SECOND)
    }

    /// Imports an image on every real node.
    pub(crate) fn import(&self, archive: &Path) -> Result<(), Failure> {
        for node in node::ALL {
            node::import(&self.directory, node, archive)?;
        }
        Ok(())
    }

    fn write_facts(&self, options: &Options) -> Result<(), Failure> {
        let kubectl = self.kubectl_path();
        let programs = self.programs.built().display().to_string();
        self.directory.write_facts(&json!({
            "server": self.plane.server,
            "kubectl": kubectl,
            "programs": programs,
            "node": options.node,
            "kwok": options.kwok,
        }))?;
        let bin = kubectl.parent().map(|p| p.display().to_string()).unwrap_or_default();
        fs::write(
            self.directory.join("env"),
            format!(
                "export KUBECONFIG={}\nexport KUBECACHEDIR={}\nexport PATH={bin}:$PATH\n",
                self.kubeconfig().display(),
                self.plane.kubectl_cache.display(),
            ),
        )?;
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    pub(crate) fn pki(&self) -> &Pki {
        &self.plane.pki
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.plane.pki.kubeconfig("admin")
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.directory.join("audit.log")
    }

    pub(crate) fn kubectl_path(&self) -> PathBuf {
        self.programs.path("kubectl")
    }

    /// `kubectl`, as the cluster's administrator.
    pub(crate) fn kubectl(&self) -> Command {
        self.plane.kubectl(&self.programs)
    }

    /// kubectl's discovery cache.
    pub(crate) fn kubectl_cache(&self) -> &Path {
        &self.plane.kubectl_cache
    }

    /// `kubectl apply` of a manifest.
    pub(crate) fn apply(&self, manifest: &Value) -> Result<(), Failure> {
        let file = self.directory.join("applied.json");
        fs::write(&file, format!("{manifest:#}\n"))?;
        let mut command = self.kubectl();
        let output = command.args(["apply", "--filename"]).arg(&file).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("applying {} failed: {}", file.display(), String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// Stops the cluster in a directory; returns the number of stopped processes.
pub(crate) fn down(directory: &Directory) -> Result<usize, Failure> {
    let stopped = directory.stop()?;
    node::release(directory)?;
    if directory.path().exists() {
        directory.clean()?;
    }
    Ok(stopped)
}

/// Stops a cluster when the process that started it exits for any reason, detected by the end of a pipe.
pub(crate) struct Guard {
    watcher: Child,
}

impl Guard {
    /// Starts the watcher process of a directory, before the cluster.
    pub(crate) fn new(options: &Options) -> Result<Self, Failure> {
        use std::os::unix::process::CommandExt as _;
        // Works even if cargo has replaced the file since.
        let mut command = Command::new("/proc/self/exe");
        command.arg("k8s-guard").arg(&options.directory).process_group(0);
        let watcher = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        Ok(Self { watcher })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

/// The watcher process: waits for the end of the pipe.
pub(crate) fn guard(directory: &str) -> Result<bool, Failure> {
    let directory = Directory::at(directory.as_ref())?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    down(&directory)?;
    Ok(true)
}

/// Status text of the cluster in a directory, and whether all processes run.
pub(crate) fn status(directory: &Directory) -> Result<(String, bool), Failure> {
    let processes = directory.processes()?;
    let place = directory.path().display();
    let Some(facts) = directory.facts().filter(|_| !processes.is_empty()) else {
        return Ok((format!("No cluster runs in {place}: `cargo xtask k8s up` starts one."), false));
    };
    let text = |key: &str| facts.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut command = Command::new(text("kubectl"));
    let config = Pki::at(directory.join("pki")).kubeconfig("admin");
    command.arg("--kubeconfig").arg(&config).args(["--request-timeout=5s", "get", "--raw", "/version"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let version = output.ok().filter(|o| o.status.success()).and_then(|o| {
        let version: Value = serde_json::from_slice(&o.stdout).ok()?;
        Some(version.get("gitVersion")?.as_str()?.to_owned())
    });
    let dead: Vec<&str> = processes.iter().filter(|(_, p)| !p.runs()).map(|(n, _)| n.as_str()).collect();
    let healthy = dead.is_empty() && version.is_some();
    let server = text("server");
    let mut lines = vec![match (&version, dead.as_slice()) {
        (Some(version), []) => format!("Kubernetes {version} runs at {server}."),
        (_, [_, ..]) => format!("The cluster in {place} is broken: {} ended.", dead.join(", ")),
        (None, []) => format!("The API server at {server} does not answer."),
    }];
    let mebibytes = |bytes: u64| bytes >> 20;
    let mut sum = 0;
    for (name, process) in processes.iter().rev() {
        let memory = process.memory().filter(|_| process.runs()).unwrap_or_default();
        sum += memory;
        lines.push(format!("  {name:<24} process {:<8} {:>5} MiB", process.pid, mebibytes(memory)));
    }
    lines.push(format!("  {:<24} {:16} {:>5} MiB", "all", "", mebibytes(sum)));
    lines.push(format!("  {:<24} {}", "kubeconfig", config.display()));
    lines.push(format!("  {:<24} {}", "writes", directory.join("audit.log").display()));
    Ok((lines.join("\n"), healthy))
}

/// Polls until a condition holds.
pub(crate) fn until(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) -> Result<(), Failure> {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        if Instant::now() > until {
            return Err(format!("{what} does not hold after {seconds} s").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
