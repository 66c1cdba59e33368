//! Fifty requests a second through the gateways' Service while the parts of Gantry are ended, one after the other, in
//! the ways in which they end on a real cluster; then a node is drained. Every failure is counted.

use super::{
    install::{install, model, serve},
    kill::{by_force, pods, processes, whole},
    load::{Load, Phase, table},
    question::Question,
    world::World,
};
use crate::Failure;

const OPERATOR: &str = "app.kubernetes.io/component=operator";
const SCHEDULER: &str = "app.kubernetes.io/name=seldon-scheduler";
const GATEWAY: &str = "app.kubernetes.io/name=seldon-gateway";

/// Requests a second for a model on two replicas, and for one that has one only.
const IRIS: u32 = 50;
const FRAUD: u32 = 10;

/// What failures of a phase may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    /// Nobody notices.
    NotFail,
    /// What was under way, or came before the cluster knew, is lost: at most so many of a model on two replicas. A
    /// model that was on the dead one only fails until it is loaded elsewhere.
    Lose(u64),
}

/// Something that happens: its name, what it does, what may come of it.
struct Blow {
    name: &'static str,
    strike: fn(&World) -> Result<(), Failure>,
    may: May,
}

const BLOWS: &[Blow] = &[
    Blow {
        name: "operators deleted by force",
        strike: |world| by_force(world, &pods(world, OPERATOR)?),
        may: May::NotFail,
    },
    Blow {
        name: "operators killed (SIGKILL)",
        strike: |world| processes(world, &pods(world, OPERATOR)?),
        may: May::NotFail,
    },
    Blow {
        name: "scheduler deleted by force",
        strike: |world| by_force(world, &pods(world, SCHEDULER)?),
        may: May::NotFail,
    },
    Blow {
        name: "scheduler killed (SIGKILL)",
        strike: |world| processes(world, &pods(world, SCHEDULER)?),
        may: May::NotFail,
    },
    Blow {
        name: "a gateway deleted",
        strike: |world| delete(world, &any(world, GATEWAY)?),
        may: May::NotFail,
    },
    Blow {
        name: "the server pod with fraud deleted",
        strike: |world| delete(world, &holder(world)?),
        may: May::NotFail,
    },
    Blow {
        name: "again: the pod that fraud went to",
        strike: |world| delete(world, &holder(world)?),
        may: May::NotFail,
    },
    Blow { name: "a node drained", strike: drain, may: May::NotFail },
    Blow {
        name: "a gateway killed, with its network",
        strike: |world| whole(world, &any(world, GATEWAY)?),
        may: May::Lose(150),
    },
    Blow {
        name: "processes beside fraud killed (SIGKILL)",
        strike: |world| processes(world, &[holder(world)?]),
        may: May::Lose(20),
    },
    Blow {
        name: "the pod with fraud killed, with its network",
        strike: |world| whole(world, &holder(world)?),
        may: May::Lose(20),
    },
];

pub(super) fn run(world: &World) -> Result<(), Failure> {
    let installed = install(world, &[])?;
    serve(world)?;
    model(world, "iris", "iris", "onnx", 2)?;
    model(world, "fraud", "fraud", "xgboost", 1)?;
    let mesh = world.service("seldon-mesh", 80)?;
    let load = Load::start(mesh, &[(Question::iris(mesh)?, IRIS), (Question::fraud(mesh)?, FRAUD)]);
    let struck = load.settle(30).and_then(|()| strike_all(world, &load));
    let phases = load.end();
    println!("{}", table(&phases));
    struck?;
    judge(&phases)?;
    installed.uninstall(world)
}

fn strike_all(world: &World, load: &Load) -> Result<(), Failure> {
    for blow in BLOWS {
        load.phase(blow.name);
        let step = |what: &str, done: Result<(), Failure>| {
            done.map_err(|failure| Failure::from(format!("{}: {what}: {failure}", blow.name)))
        };
        let before = pods_now(world)?;
        step("doing it", (blow.strike)(world))?;
        step("everything comes back", recovered(world, &before))?;
        step("requests are answered", load.settle(60))?;
    }
    // Control planes that came back have to work, not only to be there.
    load.phase("another model loaded, and unloaded");
    model(world, "late", "iris", "onnx", 2)?;
    world.kubectl(&["delete", "model/late", "--timeout=60s"])?;
    load.settle(60)
}

/// A line for each pod: what it is, whether it goes, whether it is ready, and its containers.
fn pods_now(world: &World) -> Result<String, Failure> {
    world.kubectl(&["get", "pods", PODS])
}

const PODS: &str = "--output=jsonpath={range .items[*]}{.metadata.uid} {.metadata.deletionTimestamp} \
    {.status.conditions[?(@.type==\"Ready\")].status} {.status.containerStatuses[*].containerID}{\"\\n\"}{end}";

/// Whether there are so many pods, none of which goes, and all of which are ready.
fn all_is_well(pods: &str, count: usize) -> bool {
    let well = |pod: &str| matches!(pod.split(' ').collect::<Vec<_>>().as_slice(), [_, "", "True", _, ..]);
    pods.lines().count() == count && pods.lines().all(well)
}

/// Waits, without helping, until what was struck is another, and all is ready.
fn recovered(world: &World, before: &str) -> Result<(), Failure> {
    let count = before.lines().count();
    world.until("the return of every pod", 180, &["get", "pods", PODS], |now| {
        now != before && all_is_well(now, count)
    })?;
    let all = ["seldonruntime/seldon", "server/gantry", "model/iris", "model/fraud"];
    world.wait_for("condition=Ready", &all, 120)
}

/// One of the pods with these labels.
fn any(world: &World, labels: &str) -> Result<String, Failure> {
    Ok(pods(world, labels)?.swap_remove(0))
}

/// The pod that has the model of which there is one copy only, as the scheduler explains it.
fn holder(world: &World) -> Result<String, Failure> {
    let scheduler = format!("--scheduler={}", world.service("seldon-scheduler", 9004)?);
    let said = world.gantry(&["explain", "model/fraud", &scheduler])?;
    let pod = said.split_whitespace().find(|word| word.starts_with("gantry-"));
    Ok(pod.ok_or_else(|| format!("gantry explain names no replica of fraud:\n{said}"))?.to_owned())
}

/// Deletes a pod as people do, and waits until it is gone.
fn delete(world: &World, pod: &str) -> Result<(), Failure> {
    world.kubectl(&["delete", "pod", pod, "--timeout=150s"]).map(drop)
}

/// Empties the second node as people do before they switch it off, then takes it back.
fn drain(world: &World) -> Result<(), Failure> {
    let words = ["drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"];
    world.kubectl(&words)?;
    world.kubectl(&["uncordon", "node-2"]).map(drop)
}

/// Whether failures were where they may be.
fn judge(phases: &[Phase]) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for phase in phases {
        let may = BLOWS.iter().find(|blow| blow.name == phase.name).map_or(May::NotFail, |blow| blow.may);
        for (model, tally) in &phase.tallies {
            let failed = tally.failed();
            let allowed = match may {
                May::NotFail => 0,
                May::Lose(most) if *model == "iris" => most,
                May::Lose(_) => u64::MAX,
            };
            if failed > allowed {
                wrong.push(format!(
                    "{}: {failed} of {} requests for {model} failed",
                    phase.name, tally.requests
                ));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::e2e::load::Tally;

    #[test]
    fn pods_that_go_or_are_not_ready_are_not_well() {
        let well = "u1  True containerd://a containerd://b\nu2  True containerd://c\n";
        assert!(all_is_well(well, 2));
        assert!(!all_is_well(well, 3));
        assert!(!all_is_well("u1 2026-01-01T00:00:00Z True containerd://a\n", 1));
        assert!(!all_is_well("u1  False containerd://a\n", 1));
        assert!(!all_is_well("u1   \n", 1), "not started yet");
    }

    #[test]
    fn a_failure_is_judged_by_what_happened() {
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
            assert_eq!(judge(&[phase(name, model, failed)]).is_ok(), fine, "{name} {model} {failed}");
        }
    }
}
