//! The state directory, and the memory available for models.

use crate::error::CommandError;
use std::path::{Path, PathBuf};

/// The requested state directory, or the default of the platform.
pub fn state_dir(requested: Option<&Path>) -> Result<PathBuf, CommandError> {
    if let Some(dir) = requested {
        return Ok(dir.to_owned());
    }
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = variable("HOME");
    let base = if cfg!(target_os = "macos") {
        home.map(|h| h.join("Library/Application Support"))
    } else {
        variable("XDG_DATA_HOME").or_else(|| home.map(|h| h.join(".local/share")))
    };
    base.map(|b| b.join("gantry"))
        .ok_or_else(|| CommandError::usage("no home directory for the state directory: set --state-dir"))
}

/// A path with the home directory shortened to `~`.
pub fn display(path: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home.as_deref().and_then(|h| path.strip_prefix(h).ok()) {
        Some(rest) => Path::new("~").join(rest).display().to_string(),
        None => path.display().to_string(),
    }
}

/// Three quarters of the memory of the machine or of the container.
pub fn default_model_memory() -> u64 {
    total_memory() / 4 * 3
}

/// A quarter of the memory of the machine or of the container, at least 256 MiB.
pub fn default_request_memory() -> u64 {
    (total_memory() / 4).max(256 << 20)
}

fn total_memory() -> u64 {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|t| t.trim().parse::<u64>().ok());
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => 4 << 30,
    }
}
