//! What the processes of a server say about it: a crash loop is told as one.

use crate::{duration, up::servers::ReplicaReport};
use gantry_proto::gantry::{Explanation, Fact};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines of a process's last words that are worth showing.
const LAST: usize = 5;

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// What is wrong with the processes of a server, in one sentence; `None` when all of them run.
pub(super) fn trouble(server: &str, processes: &[ReplicaReport], now: u64) -> Option<String> {
    let crashed = processes.iter().filter(|p| p.server == server && p.state == "crashed");
    // Whoever failed most often tells most.
    let worst = crashed.clone().max_by_key(|p| p.failures)?;
    let others = crashed.count() - 1;
    let also = match others {
        0 => String::new(),
        1 => ", and another replica too".into(),
        n => format!(", and {n} other replicas too"),
    };
    Some(format!("replica {} {}{}{also}; {}", worst.replica, worst.last_end, times(worst), again(worst, now)))
}

fn times(process: &ReplicaReport) -> String {
    match process.failures {
        0 | 1 => String::new(),
        n => format!(", {n} times in a row"),
    }
}

fn again(process: &ReplicaReport, now: u64) -> String {
    match process.again_at_ms {
        Some(at) if at > now => {
            let left = Duration::from_secs((at - now).div_ceil(1000));
            format!("next start in {}", duration::words(left))
        }
        _ => "it is about to be started again".into(),
    }
}

/// Puts what the processes say into an explanation of their server.
pub(super) fn amend(explanation: &mut Explanation, server: &str, processes: &[ReplicaReport], now: u64) {
    let ours: Vec<&ReplicaReport> = processes.iter().filter(|p| p.server == server).collect();
    if ours.is_empty() {
        return;
    }
    let line = |p: &&ReplicaReport| {
        let pid = p.pid.map(|pid| format!(" pid {pid}, ports {} and {}", p.http_port, p.grpc_port));
        let end = match p.state.as_str() {
            "crashed" => format!(": {}{}; {}", p.last_end, times(p), again(p, now)),
            _ if p.last_end.is_empty() => String::new(),
            _ => format!("; before that it {}", p.last_end),
        };
        format!("replica {}   {}{}{end}", p.replica, p.state, pid.unwrap_or_default())
    };
    let fact = |label: &str, lines: Vec<String>| Fact { label: label.into(), lines };
    explanation.facts.push(fact("processes", ours.iter().map(line).collect()));
    let Some(trouble) = trouble(server, processes, now) else { return };
    explanation.headline = format!("{server} is not ready: {trouble}.");
    explanation.reason = "CrashLoop".into();
    explanation.next =
        format!("gantry logs server/{server} has all that it said; a changed manifest is tried at once");
    let Some(worst) = ours.iter().filter(|p| p.state == "crashed").max_by_key(|p| p.failures) else { return };
    explanation.facts.push(fact("command", vec![worst.command.clone()]));
    let said = worst
        .last_lines
        .iter()
        .skip(worst.last_lines.len().saturating_sub(LAST))
        .cloned()
        .collect::<Vec<_>>();
    if !said.is_empty() {
        explanation.facts.push(fact("it said", said));
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
    fn a_crash_loop_is_the_root_cause() {
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
        assert_eq!(labels, ["processes", "command", "it said"]);
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
    fn trouble_in_one_line() {
        let two = [crashed(0, 1), crashed(1, 2)];
        assert_eq!(
            trouble("ml", &two, 20_000).unwrap(),
            "replica 1 ended with exit code 1, 2 times in a row, and another replica too; it is about to be started again"
        );
        assert_eq!(trouble("other", &two, 0), None);
    }
}
