//! A worker in a process of its own: `examples/worker.rs`.

use super::{Broker, wait_for};
use std::{
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// Of `std::process::abort`.
const SIGABRT: i32 = 6;

pub(crate) struct Worker {
    process: Child,
    directory: tempfile::TempDir,
}

/// A program of `examples`.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(program.exists(), "{} is missing: run these tests by `cargo xtask kafka`", program.display());
    program
}

impl Worker {
    /// A worker of these pipelines; `settings` are further sections of `kafka.json`.
    pub(crate) fn start(broker: &Broker, partitions: u32, settings: &str, pipelines: &[&str]) -> Self {
        Self::start_at(&broker.address(), partitions, settings, pipelines, &[])
    }

    /// A worker that ends as `kill -9` does when so many results of a request are written, and no more were sent.
    pub(crate) fn start_aborting(
        broker: &Broker,
        partitions: u32,
        pipelines: &[&str],
        (pipeline, request_id, writes): (&str, &str, usize),
    ) -> Self {
        let point = format!("{pipeline}/{request_id}/{writes}");
        let environment = [("GANTRY_WORKER_ABORT", point.as_str())];
        Self::start_at(&broker.address(), partitions, "", pipelines, &environment)
    }

    /// At this listener, with environment variables.
    pub(crate) fn start_at(
        address: &str,
        partitions: u32,
        settings: &str,
        pipelines: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kafka.json");
        let text = format!(
            r#"{{"bootstrap.servers":"{address}","topics":{{"numPartitions":{partitions}}},
                "consumer":{{"session.timeout.ms":1000}}{settings}}}"#
        );
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(example("worker"));
        command.envs(environment.iter().copied());
        command.arg(file).args(pipelines).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self { process: command.spawn().unwrap(), directory }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(&format!("{text:?} in the log of a worker"), || self.log().contains(text));
    }

    /// Waits for the end at the failpoint.
    pub(crate) fn wait_for_abort(&mut self) {
        let mut status = None;
        wait_for("a worker to reach its failpoint", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.signal()), Some(SIGABRT), "{status:?}");
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// As `kill`: the worker commits and leaves its group.
    pub(crate) fn stop(&mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
        wait_for("the end of a worker", || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("log of a worker:\n{}", self.log());
        }
    }
}
