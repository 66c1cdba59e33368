//! Which process a process number means. Numbers are used again; a number with the moment of its start is not.

use serde::{Deserialize, Serialize};
use std::fs;

/// A process, told from any other that had or will have its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks since the machine did.
    started: u64,
    /// Which run of the machine that was.
    boot: String,
}

impl Identity {
    /// The process that has a number now; `None` when there is none, or nobody can tell.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let stat = Stat::of(pid)?;
        (!stat.is_dead).then_some(Self { pid, started: stat.started, boot })
    }

    /// Whether it still runs. A process that only has the same number is somebody else.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// What the kernel says of a process.
struct Stat {
    is_dead: bool,
    group: u32,
    started: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in brackets and may hold anything, also brackets.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
            group: fields.get(2)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

/// The processes of a group that carry a mark in their environment: what is left of a server whose first process ended.
pub(crate) fn left_of(group: u32, name: &str, mark: &str) -> Vec<Identity> {
    processes()
        .filter(|pid| Stat::of(*pid).is_some_and(|s| s.group == group && !s.is_dead))
        .filter_map(Identity::of)
        .filter(|one| mark_of(one.pid, name).as_deref() == Some(mark))
        .collect()
}

/// Every process with a mark that begins like this, and the group that it is in.
pub(crate) fn marked(name: &str, beginning: &str) -> Vec<(Identity, u32)> {
    processes()
        .filter(|pid| mark_of(*pid, name).is_some_and(|m| m.starts_with(beginning)))
        .filter_map(|pid| Some((Identity::of(pid)?, Stat::of(pid)?.group)))
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// The value of a variable in a process's environment, if we may look at it.
fn mark_of(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|b| *b == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn we_are_alive_and_a_stranger_with_our_number_is_not_us() {
        let us = Identity::of(std::process::id()).unwrap();
        assert!(us.is_alive());
        assert!(!Identity { started: us.started + 1, ..us.clone() }.is_alive());
        assert!(!Identity { boot: "another".into(), ..us }.is_alive());
        assert_eq!(Identity::of(u32::MAX), None);
    }
}
