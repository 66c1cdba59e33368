//! The machine: cores, load, CPU affinity.

use crate::Failure;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// CPU share of other processes above which the machine counts as busy in the report.
const BUSY: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// The measured server.
    Server,
    /// The load generator and the upstream.
    Load,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) pinned: bool,
    /// Load average, including the build before.
    load_before: f64,
    /// CPU share of other processes before the bench.
    busy: f64,
    model: String,
    /// Idle-priority processes that keep the virtual cores awake: waking a core takes longer than a request, so a single
    /// connection would measure the host.
    awake: Vec<Child>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in &mut self.awake {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Spins at idle priority until the bench ends.
pub(crate) fn stay_awake() -> bool {
    let parent = parent_id();
    while parent_id() == parent {
        for _ in 0..1_000_000 {
            std::hint::spin_loop();
        }
    }
    true
}

fn parent_id() -> u32 {
    #[cfg(unix)]
    return std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    return 0;
}

fn keep_awake() -> Vec<Child> {
    let start = |core: &str| {
        let me = std::env::current_exe().ok()?;
        let mut command = Command::new("taskset");
        command.args(["-c", core, "chrt", "--idle", "0"]).arg(me).arg("bench-awake");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        std::thread::sleep(std::time::Duration::from_millis(50));
        // Exits at once without `chrt`.
        child.try_wait().ok()?.is_none().then_some(child)
    };
    ["0", "1"].into_iter().filter_map(start).collect()
}

impl Machine {
    /// Measures the machine and pins this process to the core of the load generator.
    pub(crate) fn detect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (load_before, busy) = (load_average(), busy_share());
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let model =
            named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());
        let pinned = cores > 1 && pin_to("1");
        let awake = if pinned { keep_awake() } else { Vec::new() };
        Self { cores, pinned, load_before, busy, model, awake }
    }

    /// A command pinned to one of the two cores, if pinning is supported.
    pub(crate) fn command(&self, core: Core, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !self.pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", if core == Core::Server { "0" } else { "1" }]).arg(program);
        command
    }

    /// Runs `measure` without pinning, for systems of several processes without a peer: pinned to the load generator's
    /// core they would compete.
    pub(crate) fn on_all_cores<T>(&self, measure: impl FnOnce() -> T) -> T {
        if self.pinned {
            pin_to(&format!("0-{}", self.cores - 1));
        }
        let measured = measure();
        if self.pinned {
            pin_to("1");
        }
        measured
    }

    /// CPU share of other processes after the bench; stops keeping the cores awake.
    pub(crate) fn busy_after(&mut self) -> f64 {
        for child in &mut self.awake {
            let _ = child.kill();
            let _ = child.wait();
        }
        busy_share()
    }

    /// Description for the report; `after` is the result of [`Self::busy_after`].
    pub(crate) fn describe(&self, after: f64) -> String {
        let Self { cores, model, load_before, busy, .. } = self;
        let pins = if self.pinned {
            if self.awake.len() == 2 {
                "servers on core 0, load on core 1, both kept awake"
            } else {
                "servers on core 0, load on core 1"
            }
        } else {
            "nothing is pinned: taskset is missing, or there is one core"
        };
        let mut text = format!(
            "{model}, {cores} cores; {pins}. Others took {:.0} % of the processors before and {:.0} % after; load average \
             {load_before:.2} before, {:.2} after.",
            busy * 100.0,
            after * 100.0,
            load_average()
        );
        if self.is_busy(after) {
            text += "\nThe machine was NOT idle: other work ran beside the bench, so times are longer and the spread is \
                     wider than they would be. The two sides of a ratio took turns, so ratios suffer less.";
        }
        text
    }

    pub(crate) fn json(&self, after: f64) -> Value {
        json!({
            "model": self.model, "cores": self.cores, "pinned": self.pinned, "load_before": self.load_before,
            "load_after": load_average(), "busy_before": self.busy, "busy_after": after, "idle": !self.is_busy(after), "kept_awake": self.awake.len() == 2,
        })
    }

    fn is_busy(&self, after: f64) -> bool {
        self.busy.max(after) > BUSY
    }
}

/// Pins this process and its future children; returns whether that worked.
fn pin_to(cores: &str) -> bool {
    let me = std::process::id().to_string();
    let mut command = Command::new("taskset");
    command.args(["-acp", cores, &me]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Used CPU share during an idle half second.
fn busy_share() -> f64 {
    let read = || -> Option<(f64, f64)> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let times: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        // Fields 4 and 5: idle and iowait.
        Some((times.iter().sum(), times.get(3)? + times.get(4)?))
    };
    let before = read();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let (Some((all, idle)), Some((all_after, idle_after))) = (before, read()) else { return 0.0 };
    1.0 - (idle_after - idle) / (all_after - all).max(1.0)
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// Resident memory of a process and its children, in bytes.
pub(crate) fn resident(process: u32) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    let mut bytes = kilobytes * 1024;
    let tasks =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    for child in tasks.split_whitespace().filter_map(|c| c.parse().ok()) {
        bytes += resident(child).unwrap_or(0);
    }
    Ok(bytes)
}
