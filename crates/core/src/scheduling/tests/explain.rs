//! `explain` on a table of failures.

use super::*;
use crate::scheduling::explain;

const GB: u64 = 1_000_000_000;

fn harness(servers: &[(&str, u32, &[&str], u64)]) -> Harness {
    let mut harness = Harness::new();
    for (server, replicas, capabilities, memory) in servers {
        for index in 0..*replicas {
            let id = id(server, index);
            harness.agents.insert(id.clone(), Agent { memory: *memory, connected: true, ..Agent::default() });
            let replica = Replica {
                capabilities: capabilities.iter().map(|c| (*c).to_owned()).collect(),
                memory_total: *memory,
                memory_free: *memory,
                ..Replica::default()
            };
            harness.apply(Command::ReplicaJoined { id, replica, shared: true, loaded: vec![] }).unwrap();
        }
    }
    harness
}

fn needing(change: impl Fn(&mut Definition)) -> Definition {
    let mut definition = definition("demand", 1, 1);
    definition.needs.memory = 0;
    change(&mut definition);
    definition
}

struct Failure {
    harness: Harness,
    reason: Reason,
    headline: &'static str,
    next: &'static str,
}

fn failure(harness: Harness, reason: Reason, headline: &'static str, next: &'static str) -> Failure {
    Failure { harness, reason, headline, next }
}

fn unschedulable() -> Vec<Failure> {
    let two: &[(&str, u32, &[&str], u64)] =
        &[("mlserver-a", 2, &["sklearn", "xgboost"], 5 * GB), ("triton-a", 1, &["onnx", "tensorrt"], 4 * GB)];
    let on = |servers, change: fn(&mut Definition)| {
        let mut harness = harness(servers);
        harness.load(needing(change)).unwrap();
        harness
    };
    let mut leaving = harness(two);
    leaving.apply(expect("triton-a", 0, 0, 0)).unwrap();
    leaving.load(needing(|_| ())).unwrap();
    let mut dedicated = Harness::new();
    dedicated.agents.insert(id("own", 0), Agent { memory: GB, connected: true, ..Agent::default() });
    let own =
        Command::ReplicaJoined { id: id("own", 0), replica: replica(GB), shared: false, loaded: vec![] };
    dedicated.apply(own).unwrap();
    dedicated.load(needing(|_| ())).unwrap();
    let mut silent = harness(&[("s", 1, &["onnx"], GB)]);
    silent.disconnect(&id("s", 0));
    silent.load(needing(|_| ())).unwrap();
    silent.now += 4_000;
    let mut draining = harness(&[("s", 1, &["onnx"], GB)]);
    draining.apply(Command::DrainReplica { id: id("s", 0) }).unwrap();
    draining.load(needing(|_| ())).unwrap();
    vec![
        failure(
            on(two, |d| d.needs.requirements = vec!["lightgbm".into()]),
            Reason::NoCapability,
            "demand is not ready: no server offers lightgbm; mlserver-a offers sklearn, xgboost.",
            "add lightgbm to a server's capabilities, or remove the requirement",
        ),
        failure(
            on(two, |d| d.needs.requirements = vec!["onnx".into(), "sklearn".into()]),
            Reason::NoCapability,
            "demand is not ready: no server offers onnx; mlserver-a offers sklearn, xgboost.",
            "add onnx to a server's capabilities, or remove the requirement",
        ),
        failure(
            on(two, |d| d.needs.explainer = true),
            Reason::NoCapability,
            "demand is not ready: no server offers alibi-explain; triton-a offers onnx, tensorrt.",
            "add alibi-explain to a server's capabilities, or remove the requirement",
        ),
        failure(
            on(two, |d| d.needs.memory = 6 * GB),
            Reason::NoMemory,
            "demand is not ready: needs 6.0 GB, most free is 4.0 GB on triton-a-0.",
            "free 2.0 GB on a server, add a replica with more memory, or lower spec.memory",
        ),
        failure(
            on(two, |d| d.needs.server = Some("gpu".into())),
            Reason::UnknownServer,
            "demand is not ready: server gpu in spec.server has not joined.",
            "start server gpu, or set spec.server to one of: mlserver-a, triton-a",
        ),
        failure(
            on(&[], |d| d.needs.server = Some("gpu".into())),
            Reason::UnknownServer,
            "demand is not ready: server gpu in spec.server has not joined.",
            "start server gpu",
        ),
        failure(
            on(&[], |_| ()),
            Reason::NoServer,
            "demand is not ready: no server has joined yet.",
            "start a server, or check that its agent can reach the scheduler",
        ),
        failure(
            on(two, |d| d.scaling.replicas = 3),
            Reason::TooFewReplicas,
            "demand is not ready: 3 replicas desired, server triton-a can take 1.",
            "add 2 replicas to server triton-a, or set spec.replicas to 1, or set spec.minReplicas",
        ),
        failure(
            leaving,
            Reason::NoCapability,
            "demand is not ready: no server offers onnx; mlserver-a offers sklearn, xgboost.",
            "add onnx to a server's capabilities, or remove the requirement",
        ),
        failure(
            dedicated,
            Reason::NotShared,
            "demand is not ready: server own is not shared, and no other server has joined.",
            "set spec.server: own, or start a shared server",
        ),
        failure(
            silent,
            Reason::Silent,
            "demand is not ready: s-0, which could take it, has been disconnected for 4 s.",
            "check that the agent of s-0 runs and can reach the scheduler",
        ),
        failure(
            draining,
            Reason::Draining,
            "demand is not ready: s-0 is draining.",
            "wait, or add a server replica",
        ),
    ]
}

fn progressing_or_failed() -> Vec<Failure> {
    let s = id("s", 0);
    let started = |work: fn(&mut Harness)| {
        let mut harness = harness(&[("s", 1, &["onnx"], GB)]);
        harness.load(needing(|_| ())).unwrap();
        work(&mut harness);
        harness
    };
    let served = |work: &dyn Fn(&mut Harness)| {
        let mut harness = harness(&[("s", 1, &["onnx"], GB)]);
        harness.load(needing(|_| ())).unwrap();
        harness.quiesce();
        work(&mut harness);
        harness
    };
    vec![
        failure(
            started(|w| w.now += 90_000),
            Reason::Loading,
            "demand is not ready: s-0 has been loading version 1 for 90 s.",
            "wait; the agent's log of s-0 shows the progress",
        ),
        failure(
            started(|w| w.work(&id("s", 0), Outcome::Success)),
            Reason::Routing,
            "demand is not ready: s-0 has loaded it, but a gateway has not acknowledged its route for 0 ms.",
            "check that every gateway runs and is connected",
        ),
        failure(
            started(|w| w.work(&id("s", 0), Outcome::Failure)),
            Reason::LoadFailed,
            "demand is not ready: s-0 failed to load version 1: no such file.",
            "fix the cause and apply the model again; next retry in 1 s",
        ),
        failure(
            started(|w| {
                w.work(&id("s", 0), Outcome::Failure);
                w.wait(1_500);
                w.now += 2_000;
            }),
            Reason::LoadFailed,
            "demand is not ready: s-0: no such file; s-0 has been retrying version 1 for 2 s.",
            "fix the cause, or wait for the retry",
        ),
        failure(
            started(|w| w.work(&id("s", 0), Outcome::OutOfMemory)),
            Reason::LoadFailedMemory,
            "demand is not ready: s-0 ran out of memory loading version 1: no such file.",
            "set spec.memory to the model's actual use, or add memory to the server",
        ),
        failure(
            started(|w| {
                w.disconnect(&id("s", 0));
                w.now += 2_000;
            }),
            Reason::Silent,
            "demand is not ready: s-0 has to load it and has been disconnected for 2 s.",
            "check that the agent of s-0 runs and can reach the scheduler",
        ),
        failure(
            served(&|w| {
                w.disconnect(&id("s", 0));
                w.now += 3_000;
            }),
            Reason::Silent,
            "demand is not ready: s-0, which holds it, has been disconnected for 3 s.",
            "check that the agent of s-0 runs and can reach the scheduler",
        ),
        failure(
            served(&|w| {
                w.disconnect(&id("s", 0));
                w.wait(20_000);
            }),
            Reason::NoServer,
            "demand is not ready: no server has joined yet.",
            "start a server, or check that its agent can reach the scheduler",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| d.spec = Digest(2))).unwrap();
                w.work(&s, Outcome::Failure);
            }),
            Reason::LoadFailed,
            "demand version 2 is not ready: s-0 failed to load version 2: no such file; version 1 serves.",
            "fix the cause and apply the model again; next retry in 1 s",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| {
                    d.spec = Digest(2);
                    d.needs.requirements = vec!["lightgbm".into()];
                }))
                .unwrap();
            }),
            Reason::NoCapability,
            "demand version 2 is not ready: no server offers lightgbm; s offers onnx; version 1 serves.",
            "add lightgbm to a server's capabilities, or remove the requirement",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| d.scaling.replicas = 0)).unwrap();
                w.acknowledge_routes();
                w.load(needing(|_| ())).unwrap();
            }),
            Reason::Terminating,
            "demand is not ready: s-0 must unload it before loading it again.",
            "wait, or add a server replica",
        ),
        failure(
            served(&|w| {
                w.apply(unload("demand")).unwrap();
                w.now += 5_000;
            }),
            Reason::Terminating,
            "demand is being unloaded: a gateway has had requests in flight on s-0 for 5 s.",
            "wait until its last request completes",
        ),
        failure(
            served(&|w| {
                w.apply(unload("demand")).unwrap();
                w.acknowledge_routes();
                w.work(&s, Outcome::Failure);
            }),
            Reason::UnloadFailed,
            "demand is not unloaded: s-0 failed to unload it: no such file.",
            "check the log of the model server of s-0; unloading is retried automatically",
        ),
        failure(
            served(&|w| {
                w.apply(unload("demand")).unwrap();
                w.quiesce();
                w.now += 180_000;
            }),
            Reason::Deleted,
            "demand was deleted 3 min ago.",
            "apply its manifest again to recreate it",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| d.scaling.replicas = 0)).unwrap();
                w.quiesce();
            }),
            Reason::ScaledDown,
            "demand is not served: no replica is desired.",
            "set spec.replicas to 1 or more",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| d.scaling = Scaling { replicas: 0, min: 0, max: 3 })).unwrap();
                w.quiesce();
            }),
            Reason::Sleeping,
            "demand is scaled to zero: it has no requests.",
            "send a request to scale it up",
        ),
        failure(
            served(&|w| {
                w.load(needing(|d| d.scaling = Scaling { replicas: 3, min: 1, max: 0 })).unwrap();
                w.quiesce();
            }),
            Reason::TooFewReplicas,
            "demand is ready with 1 of 3 replicas: 3 replicas desired, server s can take 1.",
            "add 2 replicas to server s, or set spec.replicas to 1, or set spec.minReplicas",
        ),
        failure(served(&|_| ()), Reason::Ready, "demand is ready: version 1 serves in 1 replica on s.", ""),
    ]
}

#[test]
fn headline_names_root_cause() {
    let table: Vec<Failure> = unschedulable().into_iter().chain(progressing_or_failed()).collect();
    assert!(table.len() > 20);
    for Failure { harness, reason, headline, next } in table {
        let explanation = explain::model(&harness.state, "demand", harness.now).unwrap();
        assert_eq!(explanation.headline, headline);
        assert_eq!((explanation.reason, explanation.next.as_str()), (reason, next), "{headline}");
        assert!(explanation.facts.iter().any(|f| f.label == "desired"), "{headline}");
    }
}

#[test]
fn facts_list_desired_state_and_servers() {
    let mut harness = harness(&[("mlserver-a", 2, &["sklearn"], 5 * GB), ("triton-a", 1, &["onnx"], 4 * GB)]);
    harness
        .load(needing(|d| {
            d.needs.requirements = vec!["lightgbm".into()];
            d.needs.memory = 2 * GB;
            d.generation = Some(1);
        }))
        .unwrap();
    let explanation = explain::model(&harness.state, "demand", harness.now).unwrap();
    let facts: Vec<(&str, Vec<String>)> = explanation.facts.into_iter().map(|f| (f.label, f.lines)).collect();
    assert_eq!(
        facts,
        [
            (
                "desired",
                vec![
                    "version 1, 1 replica, requirements: lightgbm, 2.0 GB each".to_owned(),
                    "managed by cli, generation 1".to_owned()
                ]
            ),
            (
                "servers",
                vec![
                    "mlserver-a   2 replicas   sklearn   most free 5.0 GB   lacks lightgbm".to_owned(),
                    "triton-a   1 replica   onnx   most free 4.0 GB   lacks lightgbm".to_owned()
                ]
            ),
        ]
    );
}

#[test]
fn explain_server_reports_each_state() {
    let messages = |harness: &Harness| {
        let explanation = explain::server(&harness.state, "s", harness.now).unwrap();
        (explanation.reason, explanation.headline)
    };
    let mut harness = Harness::new();
    harness.apply(expect("s", 2, 1, 4)).unwrap();
    assert_eq!(
        messages(&harness),
        (Reason::ReplicasMissing, "s is not ready: none of 2 replicas has joined.".into())
    );
    harness.join(&id("s", 0), 100);
    assert_eq!(
        messages(&harness),
        (Reason::ReplicasMissing, "s is not ready: 1 of 2 replicas have joined, s-1 has not.".into())
    );
    let mut deployed = Harness::new();
    deployed.apply(expect("s", 2, 1, 4)).unwrap();
    deployed.join(&id("s", 1_234_567), 100);
    assert_eq!(
        messages(&deployed),
        (Reason::ReplicasMissing, "s is not ready: 1 of 2 replicas have joined.".into())
    );
    harness.join(&id("s", 1), 100);
    harness.load(definition("m", 1, 2)).unwrap();
    harness.quiesce();
    assert_eq!(
        messages(&harness),
        (Reason::Ready, "s is ready: 2 replicas with 2 model replicas loaded.".into())
    );
    harness.disconnect(&id("s", 1));
    harness.now += 2_000;
    assert_eq!(
        messages(&harness),
        (Reason::Silent, "s is not ready: s-1 has been disconnected for 2 s.".into())
    );
    harness.subscribe(&id("s", 1));
    harness.apply(Command::DrainReplica { id: id("s", 1) }).unwrap();
    assert_eq!(messages(&harness), (Reason::Draining, "s-1 is draining: 1 model still on it.".into()));
    harness.apply(expect("s", 0, 1, 4)).unwrap();
    assert_eq!(messages(&harness), (Reason::ServerLeaving, "s is terminating: 2 models still on it.".into()));
    assert_eq!(explain::server(&harness.state, "x", 0), None);
}

#[test]
fn pipeline_is_explained_by_the_root_cause_of_its_first_missing_model() {
    let mut harness = Harness::new();
    harness.join(&id("builtin", 0), 100);
    harness.load(definition("a", 1, 1)).unwrap();
    harness.quiesce();
    harness.load_pipeline(pipeline("p", 1, &["a", "b"])).unwrap();
    let explain = |harness: &Harness| explain::pipeline(&harness.state, "p", harness.now).unwrap();
    let shown = explain(&harness);
    assert_eq!(shown.headline, "p is not ready: step b: model b does not exist.");
    assert_eq!(
        (shown.reason, &*shown.next),
        (Reason::UnknownModel, "apply a Model named b, or remove the step")
    );
    let steps = shown.facts.iter().find(|f| f.label == "steps").unwrap();
    assert_eq!(steps.lines, ["b   model b does not exist", "a   available"]);

    let mut b = definition("b", 1, 1);
    b.needs.requirements = vec!["lightgbm".into()];
    harness.load(b).unwrap();
    let shown = explain(&harness);
    assert_eq!(
        shown.headline,
        "p is not ready: step b: no server offers lightgbm; builtin offers onnx, xgboost."
    );
    assert_eq!(shown.reason, Reason::NoCapability);
    assert_eq!(shown.next, "add lightgbm to a server's capabilities, or remove the requirement");

    harness.load(definition("b", 1, 1)).unwrap();
    harness.work(&id("builtin", 0), Outcome::Success);
    let shown = explain(&harness);
    assert_eq!(shown.headline, "p is not ready: a gateway has not acknowledged the route.");
    assert_eq!(shown.reason, Reason::Routing);
    harness.quiesce();
    assert_eq!(explain(&harness).headline, "p is ready: version 1 serves, with 2 steps.");
    assert_eq!(explain(&harness).reason, Reason::Ready);

    harness.load_pipeline(pipeline("p", 2, &["a", "x"])).unwrap();
    assert_eq!(
        explain(&harness).headline,
        "p version 2 is not ready: step x: model x does not exist; version 1 serves."
    );
    harness.apply(unload_pipeline("p")).unwrap();
    assert_eq!(explain(&harness).reason, Reason::Terminating);
    harness.quiesce();
    assert_eq!(explain(&harness).reason, Reason::Deleted);
}

#[test]
fn experiment_is_explained_by_the_root_cause_of_its_first_missing_candidate() {
    let mut harness = Harness::new();
    harness.join(&id("builtin", 0), 100);
    harness.load(definition("a", 1, 1)).unwrap();
    harness.load_pipeline(pipeline("p", 1, &["a", "b"])).unwrap();
    harness.quiesce();
    harness.apply(start(experiment("e", Resource::Pipeline, &["p", "q"]))).unwrap();
    let explain = |harness: &Harness| explain::experiment(&harness.state, "e", harness.now).unwrap();
    assert_eq!(explain(&harness).headline, "e is not active: candidate p: step b: model b does not exist.");
    harness.load(definition("b", 1, 1)).unwrap();
    harness.quiesce();
    let shown = explain(&harness);
    assert_eq!(shown.headline, "e is not active: candidate q: pipeline q does not exist.");
    assert_eq!(shown.reason, Reason::UnknownPipeline);
    let mut changed = experiment("e", Resource::Pipeline, &["p"]);
    changed.mirror = Some(("q".into(), 10));
    changed.spec = Digest(9);
    harness.apply(start(changed)).unwrap();
    assert_eq!(explain(&harness).headline, "e is not active: mirror q: pipeline q does not exist.");
    harness.apply(start(experiment("e", Resource::Pipeline, &["p"]))).unwrap();
    assert_eq!(explain(&harness).reason, Reason::Routing);
    harness.quiesce();
    assert_eq!(explain(&harness).headline, "e is active: it splits p: 100 % p.");
    harness.apply(stop("e")).unwrap();
    assert!(explain(&harness).headline.starts_with("e was stopped"), "{}", explain(&harness).headline);
}
