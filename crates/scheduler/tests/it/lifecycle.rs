//! Lifecycle of a model: loaded, routed, updated, moved, unloaded.

use crate::harness::{Agent, Gateway, client, model, scheduler, status, subscribe, unload, until, within};
use gantry_proto::{
    agent::{model_event_message::Event, model_operation_message::Operation},
    gantry::route_event,
    scheduler::{ServerStatusRequest, model_status::ModelState},
};
use tonic::Request;

#[tokio::test(flavor = "multi_thread")]
async fn model_is_loaded_updated_and_unloaded() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    let waiting = until(&mut statuses, "iris", ModelState::ScheduleFailed).await;
    assert_eq!(waiting.state.unwrap().reason, "no server has joined yet");
    let mut agent = Agent::join(&running).await;
    assert_eq!(agent.execute(None).await, ("iris".into(), 1, Operation::LoadModel));
    let ready = until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    assert_eq!((ready.version, ready.server_name.as_str()), (1, "builtin"));
    client.load_model(model("iris", "/b")).await.unwrap();
    assert_eq!(agent.execute(None).await, ("iris".into(), 2, Operation::LoadModel));
    assert_eq!(agent.execute(None).await, ("iris".into(), 1, Operation::UnloadModel));
    client.unload_model(unload("iris")).await.unwrap();
    assert_eq!(agent.execute(None).await, ("iris".into(), 2, Operation::UnloadModel));
    until(&mut statuses, "iris", ModelState::ModelTerminated).await;
    let gone = status(&mut client, "iris").await;
    assert_eq!((gone.versions.len(), gone.deleted), (1, true));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_model_reports_reason() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    let mut agent = Agent::join(&running).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    agent.execute(Some("/a does not exist")).await;
    let failed = until(&mut statuses, "iris", ModelState::ModelFailed).await;
    assert!(failed.state.unwrap().reason.contains("/a does not exist"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_waits_for_gateway_acknowledgement_and_drain() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let (mut gateway, routes) = Gateway::join(&running).await;
    assert_eq!(routes, []);
    let mut agent = Agent::join(&running).await;
    let mut statuses = subscribe(&mut client).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    agent.execute(None).await;
    let loaded = loop {
        let event = gateway.next().await;
        if let Some(route_event::Event::Upsert(route)) = &event.event
            && !route.versions.is_empty()
        {
            assert_eq!(route.versions[0].endpoints[0].http_port, 8080);
            break event;
        }
    };
    let mut latest = within(statuses.message()).await.unwrap().unwrap();
    while latest.versions[0].model_replica_state.get(&0).is_none_or(|r| r.state != 3) {
        latest = within(statuses.message()).await.unwrap().unwrap();
    }
    assert_eq!(latest.versions[0].state.as_ref().unwrap().state(), ModelState::ModelProgressing);
    gateway.acknowledge(loaded.epoch, loaded.sequence, 0).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    client.unload_model(unload("iris")).await.unwrap();
    let deleted = loop {
        let event = gateway.next().await;
        if matches!(event.event, Some(route_event::Event::Delete(_))) {
            break event;
        }
    };
    assert_eq!(deleted.event, Some(route_event::Event::Delete("iris".into())));
    gateway.acknowledge(deleted.epoch, deleted.sequence, loaded.sequence).await;
    until(&mut statuses, "iris", ModelState::ModelTerminating).await;
    gateway.acknowledge(deleted.epoch, deleted.sequence, deleted.sequence).await;
    assert_eq!(agent.execute(None).await.2, Operation::UnloadModel);
    until(&mut statuses, "iris", ModelState::ModelTerminated).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn report_of_earlier_subscription_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    let mut earlier = Agent::join(&running).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    assert_eq!(earlier.order().await.0, "iris");
    let mut later = Agent::join(&running).await;
    assert_ne!(earlier.subscription, later.subscription);
    let mut late = Request::new(later.report("iris", 1, Event::LoadFailed, "of the past"));
    late.metadata_mut().insert("gantry-subscription", earlier.subscription.parse().unwrap());
    later.client.agent_event(late).await.unwrap();
    let (name, version, _) = later.order().await;
    let mut now = Request::new(later.report(&name, version, Event::Loaded, ""));
    now.metadata_mut().insert("gantry-subscription", later.subscription.parse().unwrap());
    later.client.agent_event(now).await.unwrap();
    // Had the late report applied, the model would have failed first.
    loop {
        let status = within(statuses.message()).await.unwrap().unwrap();
        let state = status.versions[0].state.clone().unwrap();
        assert_ne!(state.state(), ModelState::ModelFailed, "{}", state.reason);
        if state.state() == ModelState::ModelAvailable {
            break;
        }
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_replica_is_replaced_before_unload() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let mut statuses = subscribe(&mut client).await;
    let mut first = Agent::join_as(&running, 0, &[]).await;
    client.load_model(model("iris", "/a")).await.unwrap();
    first.execute(None).await;
    until(&mut statuses, "iris", ModelState::ModelAvailable).await;
    let mut second = Agent::join_as(&running, 1, &[]).await;
    let request = first.drain();
    let mut caller = first.client.clone();
    let draining = tokio::spawn(async move { caller.agent_drain(request).await });
    assert_eq!(second.execute(None).await, ("iris".into(), 1, Operation::LoadModel));
    assert_eq!(first.execute(None).await, ("iris".into(), 1, Operation::UnloadModel));
    assert!(within(draining).await.unwrap().unwrap().into_inner().success);
    drop(first);
    // A drained replica is removed without a grace period.
    loop {
        let request = ServerStatusRequest { name: Some("builtin".into()), ..Default::default() };
        let mut servers = client.server_status(request).await.unwrap().into_inner();
        let server = servers.message().await.unwrap().unwrap();
        if server.resources.iter().map(|r| r.replica_idx).eq([1]) {
            assert_eq!(server.num_loaded_model_replicas, 1);
            break;
        }
        tokio::task::yield_now().await;
    }
    running.stop().await;
}
