//! Programs that run for a limited time, with their output line by line.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(50);
const LAST_LINES: usize = 20;
const MAX_LINE: u64 = 16 << 10;

pub(crate) struct Limits {
    pub(crate) time: Duration,
}

impl Limits {
    pub(crate) const fn within(time: Duration) -> Self {
        Self { time }
    }
}

/// Why a program did not do its work, with the end of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) reason: String,
    pub(crate) last_lines: Vec<String>,
}

/// Kills and reaps the process when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end; `line` gets each line of both streams.
pub(crate) fn run(mut command: Command, limits: &Limits, line: &mut dyn FnMut(&str)) -> Result<(), Failed> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |reason: String| Failed { reason, last_lines: Vec::new() };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guard(command.spawn().map_err(|e| failed(format!("{program} cannot be started: {e}")))?);
    let (sender, lines) = mpsc::sync_channel(64);
    if let Some(out) = child.0.stdout.take() {
        forward(out, sender.clone());
    }
    if let Some(err) = child.0.stderr.take() {
        forward(err, sender);
    }
    let give_up = Instant::now() + limits.time;
    let mut last_lines = VecDeque::with_capacity(LAST_LINES);
    loop {
        match lines.recv_timeout(POLL) {
            Ok(text) => {
                line(&text);
                if last_lines.len() == LAST_LINES {
                    last_lines.pop_front();
                }
                last_lines.push_back(text);
                continue;
            }
            // Its output may be held open by a process that it left behind.
            Err(mpsc::RecvTimeoutError::Timeout | mpsc::RecvTimeoutError::Disconnected) => {}
        }
        let reason = match child.0.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => format!("{program} failed ({status})"),
            Ok(None) if Instant::now() < give_up => {
                std::thread::sleep(POLL);
                continue;
            }
            Ok(None) => format!("{program} did not end within {} s", limits.time.as_secs()),
            Err(error) => format!("{program}: {error}"),
        };
        return Err(Failed { reason, last_lines: last_lines.into() });
    }
}

fn forward(stream: impl Read + Send + 'static, lines: mpsc::SyncSender<String>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut stream).take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if lines.send(text).is_err() {
                        return;
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, time: Duration) -> (Result<(), Failed>, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let done = run(command, &Limits::within(time), &mut |line| lines.push(line.to_owned()));
        (done, lines)
    }

    #[test]
    fn output_is_given_and_failures_have_its_end() {
        let minute = Duration::from_mins(1);
        assert_eq!(sh("echo a; echo b", minute), (Ok(()), vec!["a".into(), "b".into()]));
        let (failed, _) = sh("echo no such package >&2; exit 3", minute);
        let failed = failed.unwrap_err();
        assert!(failed.reason.contains("exit status: 3"), "{failed:?}");
        assert_eq!(failed.last_lines, ["no such package"]);
        let (slow, _) = sh("exec sleep 600", Duration::ZERO);
        assert!(slow.unwrap_err().reason.contains("did not end within"));
    }
}
