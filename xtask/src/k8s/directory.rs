//! The directory a cluster lives in: what runs, what it logs, what it was started with.

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

/// The order in which a cluster is stopped. Who asks goes before who answers.
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

/// Says that a directory is a cluster's, and may be emptied.
const MARK: &str = ".gantry-cluster";

/// What is kept when a cluster was stopped: to read what happened.
const KEPT: &[&str] = &[MARK, "log", "audit.log"];

/// A cluster's directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// This directory; its name is made absolute, because programs with other working directories get it.
    pub(crate) fn at(path: &Path) -> Result<Self, Failure> {
        Ok(Self { path: std::path::absolute(path)? })
    }

    /// The directory's name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Something in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a new cluster may live here: no other does, and nothing else of anybody's is here.
    pub(crate) fn vacant(&self) -> Result<(), Failure> {
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

    /// Makes it ready for a new cluster, without anything of the one before.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        self.vacant()?;
        self.clear(&[MARK])?;
        fs::create_dir_all(self.join("log"))?;
        fs::write(self.join(MARK), "")?;
        fs::create_dir_all(self.join("pids"))?;
        Ok(())
    }

    /// What lies here, when it is a cluster's. The directory was named by a person, who may have meant another.
    fn entries(&self) -> Result<Vec<DirEntry>, Failure> {
        let entries = match fs::read_dir(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?.collect::<Result<Vec<_>, _>>()?,
        };
        if entries.is_empty() || self.join(MARK).exists() {
            return Ok(entries);
        }
        let path = self.path.display();
        Err(format!("{path} is not empty, and what is there is no cluster's: name another --dir").into())
    }

    /// Deletes what a cluster wrote here, except for these.
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

    /// Starts a process that outlives us, and writes it down.
    pub(crate) fn start(&self, name: &str, command: &mut Command) -> Result<(), Failure> {
        let log = File::create(self.log(name))?;
        // A group of its own: an interrupt at our terminal is not meant for it.
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|e| format!("{name} does not start: {e}"))?;
        let process = Process::of(child.id()).ok_or_else(|| self.died(name))?;
        let unfinished = self.join(&format!("pids/.{name}"));
        fs::write(&unfinished, format!("{process}\n"))?;
        fs::rename(unfinished, self.join("pids").join(name))?;
        Ok(())
    }

    /// What was started, in the order in which it is to be stopped.
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
        // Those of a second node have its number at the end.
        let program = |name: &str| name.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()).to_owned();
        let rank = |name: &str| LAST_TO_STOP.iter().position(|n| *n == program(name)).unwrap_or(0);
        found.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then_with(|| a.cmp(b)));
        Ok(found)
    }

    /// Waits until something holds, for as long as this process runs and the time is not up.
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
                return Err(format!("{name} is not ready after {seconds} s. It said last:\n{tail}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn died(&self, name: &str) -> Failure {
        format!("{name} ended right after its start. It said last:\n{}", self.tail(name)).into()
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

    /// Stops every process that was started; says how many still ran.
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
    pub(crate) fn forget(&self) -> Result<(), Failure> {
        self.clear(KEPT)
    }

    /// Keeps facts about the cluster for those who come later.
    pub(crate) fn write_facts(&self, facts: &Value) -> Result<(), Failure> {
        fs::write(self.join("cluster.json"), format!("{facts:#}\n"))?;
        Ok(())
    }

    /// What [`Self::write_facts`] kept.
    pub(crate) fn facts(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.join("cluster.json")).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes away with its test.
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
    fn what_was_started_is_stopped_and_only_logs_stay() {
        let scratch = Scratch::new("stopped");
        let directory = &scratch.0;
        directory.prepare().unwrap();
        for name in ["etcd", "kwok", "kube-apiserver"] {
            directory.start(name, Command::new("tail").args(["-v", "-f", "/dev/null"])).unwrap();
        }
        let said = directory.log("etcd");
        directory
            .wait("etcd", 10, || fs::read_to_string(&said).is_ok_and(|t| t.contains("/dev/null")))
            .unwrap();
        let order: Vec<String> = directory.processes().unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(order, ["kwok", "kube-apiserver", "etcd"]);
        assert!(directory.prepare().unwrap_err().to_string().contains("a cluster runs in"));
        fs::write(directory.join("secret.key"), "x").unwrap();

        let running = directory.processes().unwrap();
        assert_eq!(directory.stop().unwrap(), 3);
        assert!(running.iter().all(|(_, p)| !p.runs()));
        directory.forget().unwrap();
        assert!(said.exists() && !directory.join("secret.key").exists());
        directory.prepare().unwrap();
        assert!(!said.exists(), "a new cluster begins with empty logs");
    }

    #[test]
    fn a_process_that_ends_is_not_waited_for() {
        let scratch = Scratch::new("ended");
        let directory = &scratch.0;
        directory.prepare().unwrap();
        directory.start("etcd", Command::new("sh").args(["-c", "read line; echo no disk"])).ok();
        let failure = directory.wait("etcd", 60, || false).unwrap_err().to_string();
        assert!(failure.contains("etcd ended") && failure.contains("no disk"), "{failure}");
    }

    #[test]
    fn a_directory_with_other_things_is_not_touched() {
        let scratch = Scratch::new("foreign");
        let directory = &scratch.0;
        fs::create_dir_all(directory.path()).unwrap();
        fs::write(directory.join("thesis.tex"), "x").unwrap();
        assert!(directory.prepare().is_err());
        assert!(directory.join("thesis.tex").exists());
    }
}
