//! Concurrent load. The large version is the example `load_test`.

use crate::harness::{Agent, Client, client, control, model, scheduler, subscribe, subscribe_request};
use gantry_proto::{
    agent::{agent_service_client::AgentServiceClient, model_event_message::Event},
    gantry::PlanRequest,
    scheduler::{ModelStatusRequest, model_status::ModelState},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const MODELS: usize = 300;

async fn load_all(client: &Client, in_flight: usize) {
    use futures::StreamExt as _;
    futures::stream::iter(0..MODELS)
        .map(|i| {
            let mut client = client.clone();
            async move { client.load_model(model(&format!("m{i}"), "/a")).await.unwrap() }
        })
        .buffer_unordered(in_flight)
        .for_each(|_| async {})
        .await;
}

async fn states(client: &mut Client) -> BTreeMap<String, ModelState> {
    let statuses = client.model_status(ModelStatusRequest::default()).await.unwrap();
    let statuses = crate::harness::all(statuses).await.into_iter();
    statuses.map(|s| (s.model_name, s.versions[0].state.as_ref().unwrap().state())).collect()
}

async fn until_all(client: &mut Client, wanted: ModelState) {
    crate::harness::within(async {
        loop {
            let states = states(client).await;
            if states.len() == MODELS && states.values().all(|s| *s == wanted) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_loads_all_become_available() {
    for in_flight in [1, 64] {
        let dir = tempfile::tempdir().unwrap();
        let running = scheduler(dir.path()).await;
        let mut client = client(&running).await;
        let _never_reads = subscribe(&mut client).await;
        let mut agent = Agent::join(&running).await;
        let answering = tokio::spawn(async move { while !agent.execute(None).await.0.is_empty() {} });
        load_all(&client, in_flight).await;
        until_all(&mut client, ModelState::ModelAvailable).await;
        answering.abort();
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_acknowledged_during_a_dry_run() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut control = control(&running).await;
    let models = (0..10_000).map(|i| model(&format!("planned{i}"), "/a").model.unwrap()).collect();
    let started = Instant::now();
    let dry_run =
        tokio::spawn(async move { control.plan(PlanRequest { models, ..Default::default() }).await });
    let mut longest = Duration::ZERO;
    while !dry_run.is_finished() {
        let sent = Instant::now();
        client.load_model(model("iris", "/a")).await.unwrap();
        longest = longest.max(sent.elapsed());
    }
    let whole = started.elapsed();
    assert_eq!(dry_run.await.unwrap().unwrap().into_inner().changes.len(), 10_000);
    // A share of the dry run's own time, so that a slow machine changes nothing.
    assert!(longest < whole / 3, "a change waited {longest:?} of the {whole:?} of the dry run");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_joining_with_loaded_models_makes_them_available() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    load_all(&client, 64).await;
    until_all(&mut client, ModelState::ScheduleFailed).await;
    let names: Vec<String> = (0..MODELS).map(|i| format!("m{i}")).collect();
    let loaded: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 1)).collect();
    let _agent = Agent::join_as(&running, 0, &loaded).await;
    until_all(&mut client, ModelState::ModelAvailable).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_subscribe_accepts_more_than_4_mib() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let uri = "x".repeat(20_000);
    client.load_model(model("m7", &uri)).await.unwrap();
    let mut request = subscribe_request(0, &[("m7", 1)]);
    request.loaded_models[0].model = model("m7", &uri).model;
    let loaded = request.loaded_models[0].clone();
    for i in 0..MODELS {
        let mut other = loaded.clone();
        other.model = model(&format!("other-{i}"), &uri).model;
        request.loaded_models.push(other);
    }
    assert!(prost::Message::encoded_len(&request) > 4 << 20);
    let mut agent = AgentServiceClient::connect(format!("http://{}", running.agents)).await.unwrap();
    let _orders = agent.subscribe(request).await.unwrap().into_inner();
    crate::harness::within(async {
        while states(&mut client).await["m7"] != ModelState::ModelAvailable {
            tokio::task::yield_now().await;
        }
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_that_does_not_read_orders_blocks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut lagging = AgentServiceClient::connect(format!("http://{}", running.agents)).await.unwrap();
    let _orders = lagging.subscribe(subscribe_request(0, &[])).await.unwrap().into_inner();
    load_all(&client, 64).await;
    until_all(&mut client, ModelState::ModelProgressing).await;
    let report = gantry_proto::agent::ModelEventMessage {
        server_name: "builtin".into(),
        model_name: "m7".into(),
        model_version: 1,
        event: Event::Loaded as i32,
        available_memory_bytes: 1 << 30,
        ..Default::default()
    };
    lagging.agent_event(report).await.unwrap();
    crate::harness::within(async {
        while states(&mut client).await["m7"] != ModelState::ModelAvailable {
            tokio::task::yield_now().await;
        }
    })
    .await;
    running.stop().await;
}
