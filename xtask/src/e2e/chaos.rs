//! Sixty requests per second through the gateways' Service while components are deleted and killed one after the other,
//! and a node is drained. Every failure is counted.

use super::{
    harness::Harness,
    inference_check::InferenceCheck,
    install::{install, model, serve},
    load::{Load, Phase, table},
    pod_kill::{force_delete, kill_containers, kill_pod, pods},
    port_forward::PortForward,
};
use crate::Failure;

const OPERATOR: &str = "app.kubernetes.io/component=operator";
const SCHEDULER: &str = "app.kubernetes.io/name=seldon-scheduler";
const GATEWAY: &str = "app.kubernetes.io/name=seldon-gateway";

/// Requests per second: iris has two replicas, fraud one.
const IRIS_RATE: u32 = 50;
const FRAUD_RATE: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedFailures {
    None,
    /// Requests in flight, and those sent before the cluster notices, may fail: at most so many of a model on two
    /// replicas. A model whose only replica is killed fails until it is loaded elsewhere.
    UpTo(u64),
}

struct ChaosAction {
    name: &'static str,
    run: fn(&Harness) -> Result<(), Failure>,
    allowed: AllowedFailures,
}

const ACTIONS: &[ChaosAction] = &[
    ChaosAction {
        name: "operators deleted by force",
        run: |harness| force_delete(harness, &pods(harness, OPERATOR)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "operators killed (SIGKILL)",
        run: |harness| kill_containers(harness, &pods(harness, OPERATOR)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "scheduler deleted by force",
        run: |harness| force_delete(harness, &pods(harness, SCHEDULER)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "scheduler killed (SIGKILL)",
        run: |harness| kill_containers(harness, &pods(harness, SCHEDULER)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "a gateway deleted",
        run: |harness| delete(harness, &any(harness, GATEWAY)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "the server pod with fraud deleted",
        run: |harness| delete(harness, &fraud_pod(harness)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction {
        name: "again: the pod that fraud went to",
        run: |harness| delete(harness, &fraud_pod(harness)?),
        allowed: AllowedFailures::None,
    },
    ChaosAction { name: "a node drained", run: drain, allowed: AllowedFailures::None },
    ChaosAction {
        name: "a gateway killed, with its network",
        run: |harness| kill_pod(harness, &any(harness, GATEWAY)?),
        allowed: AllowedFailures::UpTo(150),
    },
    ChaosAction {
        name: "processes beside fraud killed (SIGKILL)",
        run: |harness| kill_containers(harness, &[fraud_pod(harness)?]),
        allowed: AllowedFailures::UpTo(20),
    },
    ChaosAction {
        name: "the pod with fraud killed, with its network",
        run: |harness| kill_pod(harness, &fraud_pod(harness)?),
        allowed: AllowedFailures::UpTo(20),
    },
];

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    let installed = install(harness, &[])?;
    serve(harness)?;
    model(harness, "iris", "iris", "onnx", 2)?;
    model(harness, "fraud", "fraud", "xgboost", 1)?;
    let mesh = harness.service("seldon-mesh", 80)?;
    let load = Load::start(
        mesh,
        &[(InferenceCheck::iris(mesh)?, IRIS_RATE), (InferenceCheck::fraud(mesh)?, FRAUD_RATE)],
    );
    let outcome = load.wait_for_recovery(30).and_then(|()| run_actions(harness, &load));
    let phases = load.stop();
    println!("{}", table(&phases));
    outcome?;
    check_failures(&phases)?;
    installed.uninstall(harness)
}

fn run_actions(harness: &Harness, load: &Load) -> Result<(), Failure> {
    for action in ACTIONS {
        load.phase(action.name);
        let step = |what: &str, done: Result<(), Failure>| {
            done.map_err(|failure| Failure::from(format!("{}: {what}: {failure}", action.name)))
        };
        let before = pod_states(harness)?;
        step("action", (action.run)(harness))?;
        step("recovery", wait_for_pods(harness, &before))?;
        step("requests", load.wait_for_recovery(60))?;
    }
    // The restarted control plane must work, not only be ready.
    load.phase("another model loaded, and unloaded");
    model(harness, "late", "iris", "onnx", 2)?;
    harness.kubectl(&["delete", "model/late", "--timeout=60s"])?;
    load.wait_for_recovery(60)
}

/// One line per pod: uid, deletion timestamp, readiness and container ids.
fn pod_states(harness: &Harness) -> Result<String, Failure> {
    harness.kubectl(&["get", "pods", POD_STATES])
}

const POD_STATES: &str = "--output=jsonpath={range .items[*]}{.metadata.uid} {.metadata.deletionTimestamp} \
    {.status.conditions[?(@.type==\"Ready\")].status} {.status.containerStatuses[*].containerID}{\"\\n\"}{end}";

/// Whether there are `count` pods, all ready and none terminating.
fn all_ready(pods: &str, count: usize) -> bool {
    let ready = |pod: &str| matches!(pod.split(' ').collect::<Vec<_>>().as_slice(), [_, "", "True", _, ..]);
    pods.lines().count() == count && pods.lines().all(ready)
}

/// Waits until pods were replaced or restarted and all are ready.
fn wait_for_pods(harness: &Harness, before: &str) -> Result<(), Failure> {
    let count = before.lines().count();
    harness.until("all pods to be ready again", 180, &["get", "pods", POD_STATES], |now| {
        now != before && all_ready(now, count)
    })?;
    let all = ["seldonruntime/seldon", "server/gantry", "model/iris", "model/fraud"];
    harness.wait_for("condition=Ready", &all, 120)
}

fn any(harness: &Harness, labels: &str) -> Result<String, Failure> {
    Ok(pods(harness, labels)?.swap_remove(0))
}

/// The pod with the only replica of fraud, from `gantry explain`.
fn fraud_pod(harness: &Harness) -> Result<String, Failure> {
    // Without certificates a scheduler takes commands on the loopback of its pod only.
    let forward = PortForward::to(harness, "service/seldon-scheduler", 9004)?;
    let scheduler = format!("--scheduler=127.0.0.1:{}", forward.port);
    let output = harness.gantry(&["explain", "model/fraud", &scheduler])?;
    let pod = output.split_whitespace().find(|word| word.starts_with("gantry-"));
    Ok(pod.ok_or_else(|| format!("gantry explain names no replica of fraud:\n{output}"))?.to_owned())
}

fn delete(harness: &Harness, pod: &str) -> Result<(), Failure> {
    harness.kubectl(&["delete", "pod", pod, "--timeout=150s"]).map(drop)
}

/// Drains and uncordons the second node.
fn drain(harness: &Harness) -> Result<(), Failure> {
    let arguments = ["drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"];
    harness.kubectl(&arguments)?;
    harness.kubectl(&["uncordon", "node-2"]).map(drop)
}

/// Fails if a phase had more failures than allowed.
fn check_failures(phases: &[Phase]) -> Result<(), Failure> {
    let mut excess = Vec::new();
    for phase in phases {
        let action = ACTIONS.iter().find(|action| action.name == phase.name);
        for (model, tally) in &phase.tallies {
            let failed = tally.failed();
            let allowed = match action.map_or(AllowedFailures::None, |action| action.allowed) {
                AllowedFailures::None => 0,
                AllowedFailures::UpTo(most) if *model == "iris" => most,
                AllowedFailures::UpTo(_) => u64::MAX,
            };
            if failed > allowed {
                excess.push(format!(
                    "{}: {failed} of {} requests for {model} failed",
                    phase.name, tally.requests
                ));
            }
        }
    }
    if excess.is_empty() { Ok(()) } else { Err(excess.join("\n").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::load::Tally;

    #[test]
    fn terminating_and_unready_pods_are_not_ready() {
        let ready = "u1  True containerd://a containerd://b\nu2  True containerd://c\n";
        assert!(all_ready(ready, 2));
        assert!(!all_ready(ready, 3));
        assert!(!all_ready("u1 2026-01-01T00:00:00Z True containerd://a\n", 1));
        assert!(!all_ready("u1  False containerd://a\n", 1));
        assert!(!all_ready("u1   \n", 1), "not started yet");
    }

    #[test]
    fn allowed_failures_depend_on_the_action() {
        let phase = |name: &str, model: &'static str, failed: u64| Phase {
            name: name.into(),
            tallies: [(
                model,
                Tally { requests: 100, failures: [("503".to_owned(), failed)].into(), ..Tally::default() },
            )]
            .into(),
            ..Phase::default()
        };
        let hard = "the pod with fraud killed, with its network";
        for (name, model, failed, fine) in [
            ("scheduler killed (SIGKILL)", "iris", 0, true),
            ("scheduler killed (SIGKILL)", "iris", 1, false),
            ("scheduler killed (SIGKILL)", "fraud", 1, false),
            ("undisturbed", "iris", 1, false),
            (hard, "iris", 20, true),
            (hard, "iris", 21, false),
            (hard, "fraud", 99, true),
        ] {
            assert_eq!(
                check_failures(&[phase(name, model, failed)]).is_ok(),
                fine,
                "{name} {model} {failed}"
            );
        }
    }
}
