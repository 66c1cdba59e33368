//! The scheduler process, with its CPU time and memory.

use gantry_scheduler::{Config, start};
use gantry_store::Store;
use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Serves on free ports until standard input ends.
pub(crate) fn serve(arguments: &[String]) {
    let store = Store::open(Path::new(&arguments[0])).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let any = "127.0.0.1:0".parse().unwrap();
        let running = start(Config::new(store), any, any).await.unwrap();
        println!("{} {}", running.clients, running.agents);
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        ended.await.unwrap().unwrap();
        running.stop().await;
    });
}

pub(crate) struct Scheduler {
    child: Child,
    pub(crate) clients: String,
    pub(crate) agents: String,
}

impl Scheduler {
    pub(crate) fn start(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("serve")
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (clients, agents) = line.trim().split_once(' ').expect("the scheduler prints its addresses");
        Self { clients: format!("http://{clients}"), agents: format!("http://{agents}"), child }
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks / 100.0
    }

    pub(crate) fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
