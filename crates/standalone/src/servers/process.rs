//! Starts and stops the process group of a replica, with its output in a file.

use super::process_identity::{self, ProcessIdentity};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::process::{Child, Command};

/// Environment variable of supervised processes, with state directory and replica.
pub(crate) const MARKER: &str = "GANTRY_SUPERVISED";
/// Between SIGTERM and SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_secs(10);
/// For processes that are not our children.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a command; the error is a message for the author of the manifest.
pub(crate) fn start(
    command: &[String],
    env: &BTreeMap<String, String>,
    directory: &Path,
    log: &Path,
    marker: &str,
) -> Result<Child, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("the command is empty".into()) };
    if !directory.is_dir() {
        return Err(format!("the directory {} does not exist", directory.display()));
    }
    let open = || File::options().create(true).append(true).open(log);
    let not_writable = |e: std::io::Error| format!("{} is not writable: {e}", log.display());
    let (out, err) = (open().map_err(not_writable)?, open().map_err(not_writable)?);
    let mut child = Command::new(program);
    child
        .args(arguments)
        .envs(env)
        .env(MARKER, marker)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        // Ctrl-C on the terminal reaches the supervisor only, which stops the server gracefully.
        .process_group(0)
        // It survives a crash of the supervisor, and the next run adopts it.
        .kill_on_drop(false);
    child.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{program} not found: install it, or set its full path in gantry.dev/command")
        }
        std::io::ErrorKind::PermissionDenied => format!("{program} is not executable: {e}"),
        _ => format!("failed to start {program}: {e}"),
    })
}

/// How a process ended, as text.
pub(crate) fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => match Signal::try_from(signal) {
            Ok(Signal::SIGKILL) => "was killed by SIGKILL (out of memory, perhaps)".into(),
            Ok(name) => format!("was killed by {name}"),
            Err(_) => format!("was killed by signal {signal}"),
        },
        (None, None) => "ended".into(),
    }
}

/// Sends SIGTERM to the process group, and SIGKILL after a grace period. Returns when the first process has exited.
pub(crate) async fn terminate(identity: &ProcessIdentity) {
    // The PID may belong to another process by now.
    if !identity.is_alive() {
        return;
    }
    let _ = killpg(group(identity), Signal::SIGTERM);
    if tokio::time::timeout(TERMINATION_GRACE, exited(identity)).await.is_err() && identity.is_alive() {
        tracing::warn!(pid = identity.pid, "process did not exit within {TERMINATION_GRACE:?}; killed");
        let _ = killpg(group(identity), Signal::SIGKILL);
    }
}

/// Waits for the exit of a process that is not our child.
pub(crate) async fn exited(identity: &ProcessIdentity) {
    while identity.is_alive() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Kills workers that a server left behind.
pub(crate) fn kill_orphans(pid: u32, marker: &str) {
    process_identity::in_group(pid, MARKER, marker).iter().for_each(force_kill);
}

/// Kills supervised processes that are not in the registry: the previous run died before it could write them.
pub(crate) fn kill_unregistered(marker_prefix: &str, registered_groups: &[u32]) {
    for (process, group) in process_identity::with_variable(MARKER, marker_prefix) {
        if !registered_groups.contains(&group) {
            tracing::warn!(pid = process.pid, "killing unregistered process of an earlier run");
            force_kill(&process);
        }
    }
}

fn force_kill(process: &ProcessIdentity) {
    if process.is_alive() {
        let _ = kill(group(process), Signal::SIGKILL);
    }
}

fn group(identity: &ProcessIdentity) -> Pid {
    Pid::from_raw(identity.pid.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(dir: &Path, script: &str) -> Child {
        let command = ["sh", "-c", script].map(str::to_owned);
        start(&command, &BTreeMap::new(), dir, &dir.join("log"), "test").unwrap()
    }

    #[tokio::test]
    async fn terminate_stops_the_whole_group_and_no_other_process() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("worker");
        let mut child =
            sh(dir.path(), &format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display()));
        let identity = ProcessIdentity::of(child.id().unwrap()).unwrap();
        let worker = loop {
            if let Ok(text) = std::fs::read_to_string(&file) {
                break ProcessIdentity::of(text.trim().parse().unwrap()).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let mut other = sh(dir.path(), "exec sleep 600");
        let ((), status) = tokio::join!(terminate(&identity), child.wait());
        assert_eq!(describe_exit(status.unwrap()), "was killed by SIGTERM");
        exited(&worker).await;
        // The PID no longer belongs to the replica: no signal is sent.
        terminate(&identity).await;
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().await.unwrap();
    }

    #[tokio::test]
    async fn orphaned_workers_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sh(dir.path(), "sleep 600 & exit 3");
        let pid = child.id().unwrap();
        assert_eq!(describe_exit(child.wait().await.unwrap()), "ended with exit code 3");
        assert_eq!(process_identity::in_group(pid, MARKER, "other"), []);
        // The environment of a process is empty for a moment while it executes its program.
        let orphans = loop {
            let orphans = process_identity::in_group(pid, MARKER, "test");
            if !orphans.is_empty() {
                break orphans;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(orphans.len(), 1);
        kill_orphans(pid, "test");
        exited(&orphans[0]).await;
    }

    #[test]
    fn start_failures_name_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let start = |program: &str, at: &Path| {
            start(&[program.to_owned()], &BTreeMap::new(), at, &dir.path().join("log"), "t").unwrap_err()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        assert!(start("no-such-server", dir.path()).starts_with("no-such-server not found: install it"));
        assert!(start("sh", Path::new("/no/such/place")).contains("does not exist"));
        assert!(start(dir.path().to_str().unwrap(), dir.path()).contains("is not executable"));
    }
}
