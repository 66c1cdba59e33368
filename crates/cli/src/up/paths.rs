//! Where state is kept.

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// The state directory by the platform's convention.
pub(crate) fn state_dir(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(dir) = asked {
        return Ok(dir.to_owned());
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = variable("HOME");
    let base = if cfg!(target_os = "macos") {
        home.map(|h| h.join("Library/Application Support"))
    } else {
        variable("XDG_DATA_HOME").or_else(|| home.map(|h| h.join(".local/share")))
    };
    base.map(|b| b.join("gantry")).ok_or_else(|| {
        Failure::usage("there is no home directory to keep state in: choose a place with --state-dir")
    })
}

/// A path as people write it: the home directory as `~`.
pub(crate) fn shown(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home.as_deref().and_then(|h| path.strip_prefix(h).ok()) {
        Some(rest) => Path::new("~").join(rest).display().to_string(),
        None => path.display().to_string(),
    }
}

/// Three quarters of the machine's memory, or of what a container may use.
pub(crate) fn memory_for_models() -> u64 {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|t| t.trim().parse::<u64>().ok());
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let whole = match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => 4 << 30,
    };
    whole / 4 * 3
}
