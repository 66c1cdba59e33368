//! Recorded processes of a cluster, identified exactly.

use crate::Failure;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fmt, fs,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Time between SIGTERM and SIGKILL.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// A recorded process. Pids are reused, so start time and executable are recorded too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot.
    started: u64,
    program: PathBuf,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.started, self.program.display())
    }
}

impl Process {
    /// The current process with this pid.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { pid, started: started(pid)?, program: program(pid)? })
    }

    /// Parses the output of [`fmt::Display`].
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut words = text.trim_end().splitn(3, ' ');
        let (pid, started, program) = (words.next()?, words.next()?, words.next()?);
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()?, program: program.into() })
    }

    /// Whether it still runs. A zombie has no executable and counts as exited.
    pub(crate) fn runs(&self) -> bool {
        program(self.pid).is_some_and(|p| p == self.program) && started(self.pid) == Some(self.started)
    }

    /// Resident memory in bytes.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
    }

    /// SIGTERM, then SIGKILL.
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        for (signal, timeout) in [(Signal::SIGTERM, SHUTDOWN_TIMEOUT), (Signal::SIGKILL, SHUTDOWN_TIMEOUT)] {
            if !self.runs() {
                return Ok(());
            }
            // It may exit between the check and the signal.
            let _ = kill(Pid::from_raw(self.pid), signal);
            let until = Instant::now() + timeout;
            while self.runs() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if self.runs() { Err(format!("process {} cannot be killed", self.pid).into()) } else { Ok(()) }
    }
}

/// Start time: the 22nd field of `stat`. The second, the name, is in brackets and may contain anything.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The executable of a process, also if it was replaced since.
fn program(pid: i32) -> Option<PathBuf> {
    let link = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let named = link.to_string_lossy().strip_suffix(" (deleted)").map(PathBuf::from);
    Some(named.unwrap_or(link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn process_record_round_trips() {
        let process = Process { pid: 7, started: 123_456, program: "/a directory/etcd".into() };
        assert_eq!(process.to_string(), "7 123456 /a directory/etcd");
        assert_eq!(Process::read(&format!("{process}\n")), Some(process));
        for broken in ["", "7", "7 1", "x 1 /a", "7 x /a"] {
            assert_eq!(Process::read(broken), None, "{broken}");
        }
    }

    #[test]
    fn only_the_recorded_process_is_stopped() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.runs() && process.memory().is_some_and(|m| m > 0));
        let earlier = Process { started: process.started - 1, ..process.clone() };
        let other = Process { program: "/bin/other".into(), ..process.clone() };
        for stranger in [earlier, other] {
            assert!(!stranger.runs());
            stranger.stop().unwrap();
        }
        assert!(process.runs(), "a stranger's record stopped it");
        process.stop().unwrap();
        // A zombie counts as exited.
        assert!(!process.runs());
        child.wait().unwrap();
        assert_eq!(Process::of(child.id()), None);
    }
}
