//! State directory of a cluster: processes, logs, configuration.

use super::process::Process;
use crate::Failure;
use serde_json::Value;
use std::{
    fs::{self, DirEntry, File},
    io::ErrorKind,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Stop order: clients before servers.
const LAST_TO_STOP: &[&str] = &[
    "kwok",
    "kube-proxy",
    "kubelet",
    "containerd",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
];

/// Marks a cluster directory, which may be emptied.
const MARKER: &str = ".gantry-cluster";

/// Kept after a stop, for diagnosis.
const KEPT: &[&str] = &[MARKER, "log", "audit.log"];

#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Made absolute, because it is passed to programs with other working directories.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        Ok(Self { path: std::path::absolute(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Fails if the directory has a running cluster or foreign files.
    pub(crate) fn ensure_vacant(&self) -> Result<(), Failure> {
        if let Some((name, process)) = self.processes()?.into_iter().find(|(_, p)| p.runs()) {
            return Err(format!(
                "a cluster runs in {} ({name} is process {}): `cargo xtask k8s down --dir {0}` stops it; another \
                 --dir has room for one more",
                self.path.display(),
                process.pid,
            )
            .into());
        }
        self.entries().map(drop)
    }

    /// Empties it for a new cluster.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        self.ensure_vacant()?;
        self.clear(&[MARKER])?;
        fs::create_dir_all(self.join("log"))?;
        fs::write(self.join(MARKER), "")?;
        fs::create_dir_all(self.join("pids"))?;
        Ok(())
    }

    /// Entries of a cluster directory; fails for other directories, which must not be emptied.
    fn entries(&self) -> Result<Vec<DirEntry>, Failure> {
        let entries = match fs::read_dir(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?.collect::<Result<Vec<_>, _>>()?,
        };
        if entries.is_empty() || self.join(MARKER).exists() {
            return Ok(entries);
        }
        let path = self.path.display();
        Err(format!("{path} is not empty and not a cluster directory: choose another --dir").into())
    }

    /// Deletes all entries except these.
    fn clear(&self, keep: &[&str]) -> Result<(), Failure> {
        for entry in self.entries()? {
            if keep.iter().any(|k| entry.file_name() == *k) {
                continue;
            }
            let path = entry.path();
            let gone =
                if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone.map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }

    /// Starts a process that outlives this one, and records it.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> Result<(), Failure> {
        let log = File::create(self.log(name))?;
        // Own process group: not interrupted by Ctrl-C.
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|e| format!("{name} does not start: {e}"))?;
        let process = Process::of(child.id()).ok_or_else(|| self.died(name))?;
        let unfinished = self.join(&format!("pids/.{name}"));
        fs::write(&unfinished, format!("{process}\n"))?;
        fs::rename(unfinished, self.join("pids").join(name))?;
        Ok(())
    }

    /// Recorded processes, in stop order.
    pub(crate) fn processes(&self) -> Result<Vec<(String, Process)>, Failure> {
        let entries = match fs::read_dir(self.join("pids")) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(process) = Process::read(&fs::read_to_string(entry.path())?) {
                found.push((name, process));
            }
        }
        // Processes of a second node have a number suffix.
        let program = |name: &str| name.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()).to_owned();
        let rank = |name: &str| LAST_TO_STOP.iter().position(|n| *n == program(name)).unwrap_or(0);
        found.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
        Ok(found)
    }

    /// Polls until a condition holds, the process exits or the timeout ends.
    pub(crate) fn wait(
        &self,
        name: &str,
        seconds: u64,
        mut holds: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        let process = fs::read_to_string(self.join("pids").join(name)).ok().and_then(|t| Process::read(&t));
        let until = Instant::now() + Duration::from_secs(seconds);
        while !holds() {
            if !process.as_ref().is_some_and(Process::runs) {
                return Err(self.died(name));
            }
            if Instant::now() > until {
                let tail = self.tail(name);
                return Err(format!("{name} is not ready after {seconds} s. Last output:\n{tail}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn died(&self, name: &str) -> Failure {
        format!("{name} exited at start. Last output:\n{}", self.tail(name)).into()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.join("log").join(format!("{name}.log"))
    }

    fn tail(&self, name: &str) -> String {
        let text = fs::read(self.log(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n");
        format!("{last}\n(all of it: {})", self.log(name).display())
    }

    /// Stops all recorded processes; returns how many were running.
    pub(crate) fn stop(&self) -> Result<usize, Failure> {
        let mut stopped = 0;
        for (name, process) in self.processes()? {
            if process.runs() {
                process.stop()?;
                stopped += 1;
            }
            fs::remove_file(self.join("pids").join(&name))?;
        }
        Ok(stopped)
    }

    /// Deletes everything except the logs.
    pub(crate) fn clean(&self) -> Result<(), Failure> {
        self.clear(KEPT)
    }

    /// Records facts about the cluster for later commands.
    pub(crate) fn write_facts(&self, facts: &Value) -> Result<(), Failure> {
        fs::write(self.join("cluster.json"), format!("{facts:#}\n"))?;
        Ok(())
    }

    /// The facts of [`Self::write_facts`].
    pub(crate) fn facts(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.join("cluster.json")).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(Directory);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gantry-{name}-{}", std::process::id()));
            Self(Directory::at(&path).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn stop_and_clean_leave_only_logs() {
        let scratch = Scratch::new("stopped");
        let directory = &scratch.0;
        directory.prepare().unwrap();
        for name in ["etcd", "kwok", "kube-apiserver"] {
            directory.start(name, Command::new("tail").args(["-v", "-f", "/dev/null"])).unwrap();
        }
        let log = directory.log("etcd");
        directory
            .wait("etcd", 10, || fs::read_to_string(&log).is_ok_and(|t| t.contains("/dev/null")))
            .unwrap();
        let order: Vec<String> = directory.processes().unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(order, ["kwok", "kube-apiserver", "etcd"]);
        assert!(directory.prepare().unwrap_err().to_string().contains("a cluster runs in"));
        fs::write(directory.join("secret.key"), "x").unwrap();

        let running = directory.processes().unwrap();
        assert_eq!(directory.stop().unwrap(), 3);
        assert!(running.iter().all(|(_, p)| !p.runs()));
        directory.clean().unwrap();
        assert!(log.exists() && !directory.join("secret.key").exists());
        directory.prepare().unwrap();
        assert!(!log.exists(), "new cluster has empty logs");
    }

    #[test]
    fn wait_fails_when_process_exits() {
        let scratch = Scratch::new("ended");
        let directory = &scratch.0;
        directory.prepare().unwrap();
        directory.start("etcd", Command::new("sh").args(["-c", "read line; echo no disk"])).ok();
        let failure = directory.wait("etcd", 60, || false).unwrap_err().to_string();
        assert!(failure.contains("etcd exited") && failure.contains("no disk"), "{failure}");
    }

    #[test]
    fn foreign_directory_is_not_emptied() {
        let scratch = Scratch::new("foreign");
        let directory = &scratch.0;
        fs::create_dir_all(directory.path()).unwrap();
        fs::write(directory.join("thesis.tex"), "x").unwrap();
        assert!(directory.prepare().is_err());
        assert!(directory.join("thesis.tex").exists());
    }
}
