//! Starting and ending the processes of a replica: a group of their own, with a file for what they say.

use super::identity::{self, Identity};
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

/// The variable that marks a process as ours; its value names the replica and the state directory.
pub(crate) const MARK: &str = "GANTRY_SUPERVISED";
/// How long a process has to end in good order.
const GRACE: Duration = Duration::from_secs(10);
/// How often somebody else's child is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Starts a command. The error is a sentence for the person who wrote it.
pub(crate) fn start(
    words: &[String],
    env: &BTreeMap<String, String>,
    directory: &Path,
    log: &Path,
    mark: &str,
) -> Result<Child, String> {
    let Some((program, arguments)) = words.split_first() else { return Err("there is no command".into()) };
    if !directory.is_dir() {
        return Err(format!("its directory {} does not exist", directory.display()));
    }
    let open = || File::options().create(true).append(true).open(log);
    let said = |e: std::io::Error| format!("{} cannot be written: {e}", log.display());
    let (out, err) = (open().map_err(said)?, open().map_err(said)?);
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(env)
        .env(MARK, mark)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        // Ctrl-C on our terminal is for us: we end the server, in good order.
        .process_group(0)
        // It outlives us if we are killed, and the next start takes it over.
        .kill_on_drop(false);
    command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{program} is not found: install it, or write its whole path in gantry.dev/command")
        }
        std::io::ErrorKind::PermissionDenied => format!("{program} may not be run: {e}"),
        _ => format!("{program} cannot be started: {e}"),
    })
}

/// How a process ended, in words.
pub(crate) fn how(status: ExitStatus) -> String {
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

/// Ends a replica: asks its group, waits, and insists. Returns when the first process is gone.
pub(crate) async fn end(identity: &Identity) {
    // Whoever has the number now is asked only if it is the one we started.
    if !identity.is_alive() {
        return;
    }
    let _ = killpg(group(identity), Signal::SIGTERM);
    let gone = async {
        while identity.is_alive() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(GRACE, gone).await.is_err() && identity.is_alive() {
        tracing::warn!(pid = identity.pid, "did not end within {GRACE:?}; killed");
        let _ = killpg(group(identity), Signal::SIGKILL);
    }
}

/// Waits until a process that is not our child has ended.
pub(crate) async fn ended(identity: &Identity) {
    while identity.is_alive() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Ends what a server left behind: its workers, when it did not end them itself.
pub(crate) fn sweep(pid: u32, mark: &str) {
    identity::left_of(pid, MARK, mark).iter().for_each(insist);
}

/// Ends processes of ours that nobody knows of: started by a run that ended before it could note them. `known` are the
/// groups that are known.
pub(crate) fn sweep_unknown(beginning: &str, known: &[u32]) {
    for (lost, group) in identity::marked(MARK, beginning) {
        if !known.contains(&group) {
            tracing::warn!(pid = lost.pid, "a process of an earlier run that was not noted is ended");
            insist(&lost);
        }
    }
}

fn insist(process: &Identity) {
    if process.is_alive() {
        let _ = kill(group(process), Signal::SIGKILL);
    }
}

fn group(identity: &Identity) -> Pid {
    Pid::from_raw(identity.pid.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(dir: &Path, script: &str) -> Child {
        let words = ["sh", "-c", script].map(str::to_owned);
        start(&words, &BTreeMap::new(), dir, &dir.join("log"), "test").unwrap()
    }

    #[tokio::test]
    async fn the_whole_group_ends_and_a_stranger_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("worker");
        let mut child =
            sh(dir.path(), &format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display()));
        let identity = Identity::of(child.id().unwrap()).unwrap();
        let worker = loop {
            if let Ok(text) = std::fs::read_to_string(&file) {
                break Identity::of(text.trim().parse().unwrap()).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let mut stranger = sh(dir.path(), "exec sleep 600");
        let ((), status) = tokio::join!(end(&identity), child.wait());
        assert_eq!(how(status.unwrap()), "was killed by SIGTERM");
        ended(&worker).await;
        // The number is ours no more: whoever has it, or nobody, is left alone.
        end(&identity).await;
        assert_eq!(stranger.try_wait().unwrap(), None);
        stranger.kill().await.unwrap();
    }

    #[tokio::test]
    async fn what_a_server_leaves_behind_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sh(dir.path(), "sleep 600 & exit 3");
        let pid = child.id().unwrap();
        assert_eq!(how(child.wait().await.unwrap()), "ended with exit code 3");
        assert_eq!(identity::left_of(pid, MARK, "other"), []);
        let left = identity::left_of(pid, MARK, "test");
        assert_eq!(left.len(), 1);
        sweep(pid, "test");
        ended(&left[0]).await;
    }

    #[test]
    fn a_command_that_cannot_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let start = |program: &str, at: &Path| {
            start(&[program.to_owned()], &BTreeMap::new(), at, &dir.path().join("log"), "t").unwrap_err()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        assert!(start("no-such-server", dir.path()).starts_with("no-such-server is not found: install it"));
        assert!(start("sh", Path::new("/no/such/place")).contains("does not exist"));
        assert!(start(dir.path().to_str().unwrap(), dir.path()).contains("may not be run"));
    }
}
