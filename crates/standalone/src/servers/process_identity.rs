//! Process identity: PIDs are reused, a PID with its start time and boot ID is not.

use serde::{Deserialize, Serialize};
use std::fs;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    /// Kernel ticks since boot.
    #[serde(rename = "started")]
    start_ticks: u64,
    #[serde(rename = "boot")]
    boot_id: String,
}

impl ProcessIdentity {
    /// The live process with a PID; `None` if there is none, or on a system without /proc.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let stat = Stat::of(pid)?;
        (!stat.is_dead).then_some(Self { pid, start_ticks: stat.start_ticks, boot_id })
    }

    /// Whether this very process still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    is_dead: bool,
    group: u32,
    start_ticks: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command name is in parentheses and may itself contain parentheses.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
            group: fields.get(2)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Processes of a group with an environment variable of this value: orphans of a server whose first process exited.
pub(crate) fn in_group(group: u32, variable: &str, value: &str) -> Vec<ProcessIdentity> {
    pids()
        .filter(|pid| Stat::of(*pid).is_some_and(|s| s.group == group && !s.is_dead))
        .filter_map(ProcessIdentity::of)
        .filter(|process| environment(process.pid, variable).as_deref() == Some(value))
        .collect()
}

/// Processes with an environment variable of this prefix, each with its group.
pub(crate) fn with_variable(variable: &str, prefix: &str) -> Vec<(ProcessIdentity, u32)> {
    pids()
        .filter(|pid| environment(*pid, variable).is_some_and(|m| m.starts_with(prefix)))
        .filter_map(|pid| Some((ProcessIdentity::of(pid)?, Stat::of(pid)?.group)))
        .collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// An environment variable of a process, if it is readable.
fn environment(pid: u32, variable: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|b| *b == 0).find_map(|entry| {
        let value = entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn reused_pid_is_another_process() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(!ProcessIdentity { start_ticks: own.start_ticks + 1, ..own.clone() }.is_alive());
        assert!(!ProcessIdentity { boot_id: "another".into(), ..own }.is_alive());
        assert_eq!(ProcessIdentity::of(u32::MAX), None);
    }
}
