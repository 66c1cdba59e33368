//! The machine: its cores, how busy it is, who runs where.

use crate::Failure;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// A share of the processor time that others took; above it the machine was not idle, and the table says so.
const BUSY: f64 = 0.1;

/// Where the servers and the load run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// The thing that is measured.
    Server,
    /// The load, and whatever the thing that is measured talks to.
    Load,
}

/// The machine as it was when the bench began.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) pinned: bool,
    /// The load average; what was built just before counts into it.
    load_before: f64,
    /// The share of the processor time that others took while nothing of ours ran.
    busy: f64,
    model: String,
    /// Processes of idle priority that keep the cores awake. A virtual core that has nothing to do is given back to
    /// the host, and waking it takes longer than a request does: without these, one connection measures the host.
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

/// Uses whatever time nobody else wants, until the bench ends.
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
        // It has ended when there is no `chrt`.
        child.try_wait().ok()?.is_none().then_some(child)
    };
    ["0", "1"].into_iter().filter_map(start).collect()
}

impl Machine {
    /// Looks around, and moves this process to the core of the load.
    pub(crate) fn look() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (load_before, busy) = (load_average(), busy_share());
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
        let model =
            named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());
        let pinned = cores > 1 && move_to("1");
        let awake = if pinned { keep_awake() } else { Vec::new() };
        Self { cores, pinned, load_before, busy, model, awake }
    }

    /// A command that runs on one of the two cores, where that can be said.
    pub(crate) fn command(&self, core: Core, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !self.pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", if core == Core::Server { "0" } else { "1" }]).arg(program);
        command
    }

    /// Measures something that has no peer and is made of several processes: they run wherever there is room, as they
    /// would without a bench. Left on the core of the load, where this process is, they would wait for each other.
    pub(crate) fn on_all_cores<T>(&self, measure: impl FnOnce() -> T) -> T {
        if self.pinned {
            move_to(&format!("0-{}", self.cores - 1));
        }
        let measured = measure();
        if self.pinned {
            move_to("1");
        }
        measured
    }

    /// The share of the processor time that others take now; the cores may sleep again.
    pub(crate) fn busy_after(&mut self) -> f64 {
        for child in &mut self.awake {
            let _ = child.kill();
            let _ = child.wait();
        }
        busy_share()
    }

    /// Words about the machine; `after` is what [`Self::busy_after`] said.
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
        let mut said = format!(
            "{model}, {cores} cores; {pins}. Others took {:.0} % of the processors before and {:.0} % after; load average \
             {load_before:.2} before, {:.2} after.",
            busy * 100.0,
            after * 100.0,
            load_average()
        );
        if self.is_busy(after) {
            said += "\nThe machine was NOT idle: other work ran beside the bench, so times are longer and the spread is \
                     wider than they would be. The two sides of a ratio took turns, so ratios suffer less.";
        }
        said
    }

    /// The same for machines.
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

/// Moves this process, and with it those that it starts from now on. Gives whether that worked.
fn move_to(cores: &str) -> bool {
    let me = std::process::id().to_string();
    let mut command = Command::new("taskset");
    command.args(["-acp", cores, &me]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The share of all processor time that was used within half a second, while we do nothing.
fn busy_share() -> f64 {
    let read = || -> Option<(f64, f64)> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let times: Vec<f64> =
            text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        // The fourth is idle time, the fifth is waiting for a disk.
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

/// The resident memory of a process and of its children, in bytes.
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
