//! Replica processes of a server in `explain` and `status`: crash loops, exit reasons, last log lines.

use crate::duration;
use gantry_proto::gantry::{Explanation, Fact};
use gantry_standalone::servers::ReplicaReport;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Log lines shown for a crashed process.
const MAX_LOG_LINES: usize = 5;

/// Milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// One sentence about crashed replicas; `None` if none crashed.
pub(super) fn crash_summary(server: &str, processes: &[ReplicaReport], now: u64) -> Option<String> {
    let crashed = processes.iter().filter(|p| p.server == server && p.state == "crashed");
    let worst = crashed.clone().max_by_key(|p| p.failures)?;
    let others = crashed.count() - 1;
    let also = match others {
        0 => String::new(),
        1 => "; 1 other replica crashed too".into(),
        n => format!("; {n} other replicas crashed too"),
    };
    Some(format!(
        "replica {} {}{}{also}; {}",
        worst.replica,
        worst.last_end,
        failures(worst),
        next_start(worst, now)
    ))
}

fn failures(process: &ReplicaReport) -> String {
    match process.failures {
        0 | 1 => String::new(),
        n => format!(", {n} times in a row"),
    }
}

fn next_start(process: &ReplicaReport, now: u64) -> String {
    match process.again_at_ms {
        Some(at) if at > now => {
            let left = Duration::from_secs((at - now).div_ceil(1000));
            format!("next start in {}", duration::format(left))
        }
        _ => "restarting".into(),
    }
}

/// Adds replica processes to the explanation of their server; a crash loop becomes the root cause.
pub(super) fn amend(explanation: &mut Explanation, server: &str, processes: &[ReplicaReport], now: u64) {
    let replicas: Vec<&ReplicaReport> = processes.iter().filter(|p| p.server == server).collect();
    if replicas.is_empty() {
        return;
    }
    let line = |p: &&ReplicaReport| {
        let pid = p.pid.map(|pid| format!(" pid {pid}, ports {} and {}", p.http_port, p.grpc_port));
        let end = match p.state.as_str() {
            "crashed" => format!(": {}{}; {}", p.last_end, failures(p), next_start(p, now)),
            _ if p.last_end.is_empty() => String::new(),
            _ => format!("; previously {}", p.last_end),
        };
        format!("replica {}   {}{}{end}", p.replica, p.state, pid.unwrap_or_default())
    };
    let fact = |label: &str, lines: Vec<String>| Fact { label: label.into(), lines };
    explanation.facts.push(fact("processes", replicas.iter().map(line).collect()));
    let Some(crashes) = crash_summary(server, processes, now) else { return };
    explanation.headline = format!("{server} is not ready: {crashes}.");
    explanation.reason = "CrashLoop".into();
    explanation.next = format!("see gantry logs server/{server}; a changed manifest restarts it immediately");
    let Some(worst) = replicas.iter().filter(|p| p.state == "crashed").max_by_key(|p| p.failures) else {
        return;
    };
    explanation.facts.push(fact("command", vec![worst.command.clone()]));
    let log = worst
        .last_lines
        .iter()
        .skip(worst.last_lines.len().saturating_sub(MAX_LOG_LINES))
        .cloned()
        .collect::<Vec<_>>();
    if !log.is_empty() {
        explanation.facts.push(fact("log", log));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crashed(replica: u32, failures: u32) -> ReplicaReport {
        ReplicaReport {
            server: "ml".into(),
            replica,
            state: "crashed".into(),
            command: "mlserver start".into(),
            failures,
            last_end: "ended with exit code 1".into(),
            again_at_ms: Some(10_000),
            last_lines: (0..9).map(|i| format!("line {i}")).collect(),
            ..ReplicaReport::default()
        }
    }

    #[test]
    fn amend_makes_a_crash_loop_the_root_cause() {
        let ready = ReplicaReport {
            server: "ml".into(),
            replica: 1,
            state: "ready".into(),
            pid: Some(7),
            ..Default::default()
        };
        let mut explanation = Explanation { headline: "ml: 1 of 2 joined".into(), ..Default::default() };
        amend(&mut explanation, "ml", &[crashed(0, 4), ready.clone()], 2_500);
        assert_eq!(
            explanation.headline,
            "ml is not ready: replica 0 ended with exit code 1, 4 times in a row; next start in 8s."
        );
        assert_eq!(explanation.reason, "CrashLoop");
        let labels: Vec<&str> = explanation.facts.iter().map(|f| f.label.as_str()).collect();
        assert_eq!(labels, ["processes", "command", "log"]);
        assert_eq!(explanation.facts[2].lines.first().unwrap(), "line 4");
        assert_eq!(explanation.facts[0].lines[1], "replica 1   ready pid 7, ports 0 and 0");
        let mut fine = Explanation { headline: "ml is ready".into(), ..Default::default() };
        amend(&mut fine, "ml", &[ready], 0);
        assert_eq!((fine.headline.as_str(), fine.facts.len()), ("ml is ready", 1));
        let mut other = Explanation::default();
        amend(&mut other, "builtin", &[crashed(0, 1)], 0);
        assert_eq!(other, Explanation::default());
    }

    #[test]
    fn crash_summary_counts_other_replicas() {
        let two = [crashed(0, 1), crashed(1, 2)];
        assert_eq!(
            crash_summary("ml", &two, 20_000).unwrap(),
            "replica 1 ended with exit code 1, 2 times in a row; 1 other replica crashed too; restarting"
        );
        assert_eq!(crash_summary("other", &two, 0), None);
    }
}
