//! Durability of acknowledged commands, and errors of invalid records.

use crate::harness::{
    Agent, Client, Gateway, all, by, client, model, scheduler, serve, status, subscribe, unload, until,
    with_kubernetes_meta,
};
use gantry_proto::{
    agent::{model_event_message::Event, model_operation_message::Operation},
    gantry::{StoredModel, StoredServer, stored_model},
    scheduler::{
        ModelStatusRequest, ServerNotify, ServerNotifyRequest, ServerStatusRequest, model_status::ModelState,
    },
};
use gantry_scheduler::{Config, StartError, build};
use gantry_store::{
    Change, Store, Table,
    faulty_disk::{Disk, Fault},
};
use prost::Message as _;
use tonic::Code;

fn notify(name: &str, replicas: u32) -> ServerNotifyRequest {
    let server = ServerNotify { name: name.into(), expected_replicas: replicas, ..Default::default() };
    ServerNotifyRequest { servers: vec![server], is_first_sync: false }
}

/// The desired state as clients see it.
async fn observed(client: &mut Client) -> Vec<String> {
    let models = client.model_status(ModelStatusRequest { all_versions: true, ..Default::default() });
    let models = all(models.await.unwrap()).await.into_iter().map(|m| {
        let latest = &m.versions[0];
        let spec = latest.model_defn.as_ref().unwrap().model_spec.as_ref().unwrap();
        format!("{} {} {} {} {}", m.model_name, latest.version, spec.uri, m.deleted, m.manager)
    });
    let mut observed: Vec<String> = models.collect();
    let servers = client.server_status(ServerStatusRequest::default()).await.unwrap();
    observed.extend(
        all(servers)
            .await
            .into_iter()
            .map(|s| format!("{} {} {}", s.server_name, s.expected_replicas, s.manager)),
    );
    observed
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_commands_survive_restart() {
    let dir = tempfile::tempdir().unwrap();
    let steps: [(&str, &[&str]); 7] = [
        ("load", &["iris 1 /a false file:/x.yaml"]),
        ("again", &["iris 2 /b false file:/x.yaml"]),
        ("kubernetes", &["iris 2 /b false file:/x.yaml", "kube 7 /c false operator:ml"]),
        ("unload", &["iris 2 /b true ", "kube 7 /c false operator:ml"]),
        ("server", &["iris 2 /b true ", "kube 7 /c false operator:ml", "big 3 cli"]),
        ("server again", &["iris 2 /b true ", "kube 7 /c false operator:ml", "big 5 cli"]),
        ("server gone", &["iris 2 /b true ", "kube 7 /c false operator:ml"]),
    ];
    for (step, expected) in steps {
        let running = scheduler(dir.path()).await;
        let mut c = client(&running).await;
        match step {
            "load" => drop(c.load_model(by("file:/x.yaml", model("iris", "/a"))).await.unwrap()),
            "again" => drop(c.load_model(by("file:/x.yaml", model("iris", "/b"))).await.unwrap()),
            "kubernetes" => drop(c.load_model(with_kubernetes_meta(model("kube", "/c"), 7)).await.unwrap()),
            "unload" => drop(c.unload_model(by("file:/x.yaml", unload("iris"))).await.unwrap()),
            "server" => drop(c.server_notify(notify("big", 3)).await.unwrap()),
            "server again" => drop(c.server_notify(notify("big", 5)).await.unwrap()),
            _ => drop(c.server_notify(notify("big", 0)).await.unwrap()),
        }
        running.stop().await;
        let running = scheduler(dir.path()).await;
        assert_eq!(observed(&mut client(&running).await).await, expected, "after {step}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_are_restored_at_once_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut statuses = subscribe(&mut c).await;
    let mut agent = Agent::join(&running).await;
    c.load_model(model("iris", "/a")).await.unwrap();
    agent.execute(None).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let (_gateway, routes) = Gateway::join(&running).await;
    assert_eq!(routes[0].versions[0].endpoints[0].http_port, 8080, "{routes:?}");
    // Routed, but not available before its agent rejoins.
    let mut c = client(&running).await;
    let waiting = status(&mut c, "iris").await;
    assert_ne!(waiting.versions[0].state.as_ref().unwrap().state(), ModelState::ModelAvailable);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loaded_models_are_not_reloaded_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut agent = Agent::join(&running).await;
    c.load_model(model("iris", "/a")).await.unwrap();
    agent.execute(None).await;
    c.load_model(model("rose", "/a")).await.unwrap();
    drop(agent);
    running.stop().await;
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    let mut statuses = subscribe(&mut c).await;
    let mut agent = Agent::join_as(&running, 0, &[("iris", 1)]).await;
    assert_eq!(agent.execute(None).await, ("rose".into(), 1, Operation::LoadModel));
    for name in ["iris", "rose"] {
        loop {
            let state = status(&mut c, name).await.versions[0].state.clone().unwrap();
            if state.state() == ModelState::ModelAvailable {
                break;
            }
            crate::harness::within(statuses.message()).await.unwrap().unwrap();
        }
    }
    running.stop().await;
}

fn form_0_records() -> Vec<Change> {
    let version = |number: u32, uri: &str| stored_model::Version {
        number,
        definition: model("iris", uri).model.unwrap().encode_to_vec(),
        ..Default::default()
    };
    let iris = StoredModel { versions: vec![version(1, "/a"), version(2, "/b")], ..Default::default() };
    let gone = StoredModel { deleted: true, versions: vec![version(1, "/a")], ..Default::default() };
    let big = ServerNotify { name: "big".into(), expected_replicas: 3, shared: true, ..Default::default() };
    let big = StoredServer { announced: Some(big), ..Default::default() };
    vec![
        Change { table: Table::Models, key: "iris".into(), value: Some(iris.encode_to_vec()) },
        Change { table: Table::Servers, key: "big".into(), value: Some(big.encode_to_vec()) },
        Change { table: Table::Models, key: "gone".into(), value: Some(gone.encode_to_vec()) },
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_form_0_are_read() {
    let dir = tempfile::tempdir().unwrap();
    Store::open(dir.path()).unwrap().commit(&form_0_records()[..2]).unwrap();
    let running = scheduler(dir.path()).await;
    let mut c = client(&running).await;
    assert_eq!(observed(&mut c).await, ["iris 2 /b false ", "big 3 "]);
    // Without an owner: the first named one takes it.
    c.load_model(by("file:/x.yaml", model("iris", "/b"))).await.unwrap();
    assert_eq!(observed(&mut c).await, ["iris 2 /b false file:/x.yaml", "big 3 "]);
    // The older version served and the newer one did not: both are loaded until the newer one serves.
    let mut agent = Agent::join(&running).await;
    let mut loaded = [agent.order().await.1, agent.order().await.1];
    loaded.sort_unstable();
    assert_eq!(loaded, [1, 2]);
    running.stop().await;
}

#[test]
fn invalid_record_is_named_and_prevents_start() {
    let newer = StoredModel { form: 9, ..Default::default() };
    let bad_name = model("a.b", "/a").model.unwrap().encode_to_vec();
    let version = stored_model::Version { number: 1, definition: bad_name, ..Default::default() };
    let renamed = StoredModel { versions: vec![version], form: 1, ..Default::default() };
    for (table, kind, bytes, expected) in [
        (Table::Models, "model", vec![0xff, 0xff, 0xff], "is invalid"),
        (Table::Models, "model", newer.encode_to_vec(), "unknown record form 9"),
        (Table::Models, "model", renamed.encode_to_vec(), "contains '.'"),
        (Table::Servers, "server", vec![0x0a, 0x7f], "is invalid"),
        (Table::Servers, "server", vec![], "empty record"),
        (Table::Pipelines, "pipeline", vec![0xff, 0xff, 0xff], "is invalid"),
        (Table::Pipelines, "pipeline", newer.encode_to_vec(), "unknown record form 9"),
        (Table::Experiments, "experiment", vec![0xff, 0xff, 0xff], "is invalid"),
        (Table::Experiments, "experiment", vec![], "empty record"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.commit(&[Change { table, key: "broken".into(), value: Some(bytes) }]).unwrap();
        let error = build(Config::new(store)).unwrap_err();
        assert!(matches!(error, StartError::Record(_)), "{error}");
        let message = error.to_string();
        assert!(
            message.contains(&format!("stored record of {kind} broken")) && message.contains(expected),
            "{message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_write_rejects_commands_and_keeps_serving() {
    for (fault, code, expected) in [
        (Fault::Full, Code::ResourceExhausted, "the disk is full"),
        (Fault::Broken, Code::Unavailable, "input/output error"),
    ] {
        let disk = Disk::new();
        let running = serve(Config::new(disk.open().unwrap())).await;
        let mut c = client(&running).await;
        let mut statuses = subscribe(&mut c).await;
        let mut agent = Agent::join(&running).await;
        c.load_model(model("iris", "/a")).await.unwrap();
        agent.execute(None).await;
        until(&mut statuses, "iris", ModelState::ModelAvailable).await;
        c.load_model(model("slow", "/a")).await.unwrap();
        assert_eq!(agent.order().await.0, "slow");

        disk.fail_writes(fault);
        for refused in [
            c.load_model(model("rose", "/a")).await.map(drop),
            c.load_model(model("iris", "/b")).await.map(drop),
            c.unload_model(unload("iris")).await.map(drop),
            c.server_notify(notify("big", 3)).await.map(drop),
        ] {
            let status = refused.unwrap_err();
            assert_eq!(status.code(), code, "{status}");
            assert!(
                status.message().contains(expected) && status.message().contains("change rejected"),
                "{status}"
            );
        }
        assert_eq!(
            observed(&mut c).await[..2],
            ["iris 1 /a false cli", "slow 1 /a false cli"],
            "nothing changed"
        );
        // Reports apply even when they cannot be stored.
        agent.client.agent_event(agent.report("slow", 1, Event::Loaded, "")).await.unwrap();
        until(&mut statuses, "slow", ModelState::ModelAvailable).await;
        assert!(running.scheduler().liveness().is_live());

        disk.heal();
        c.load_model(model("rose", "/a")).await.unwrap();
        assert_eq!(agent.execute(None).await, ("rose".into(), 1, Operation::LoadModel));
        until(&mut statuses, "rose", ModelState::ModelAvailable).await;
        running.stop().await;
        let running = serve(Config::new(disk.open().unwrap())).await;
        let there = observed(&mut client(&running).await).await;
        assert_eq!(there[..3], ["iris 1 /a false cli", "rose 1 /a false cli", "slow 1 /a false cli"]);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_commands_survive_power_failure() {
    for seed in 0..20 {
        let disk = Disk::new();
        let running = serve(Config::new(disk.open().unwrap())).await;
        let mut c = client(&running).await;
        c.load_model(model("iris", "/a")).await.unwrap();
        c.load_model(model("iris", "/b")).await.unwrap();
        disk.crash(seed);
        let after = disk.open().unwrap();
        let again = serve(Config::new(after)).await;
        assert_eq!(observed(&mut client(&again).await).await, ["iris 2 /b false cli"], "seed {seed}");
        again.stop().await;
        running.stop().await;
    }
}
