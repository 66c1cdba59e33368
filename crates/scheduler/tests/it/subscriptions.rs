//! Status streams: current state, then changes.

use crate::harness::{all, client, model, scheduler, status, subscribe, until, within};
use gantry_proto::scheduler::{
    ControlPlaneSubscriptionRequest, ModelStatusRequest, ServerNotify, ServerNotifyRequest,
    ServerSubscriptionRequest, control_plane_response::Event, model_status::ModelState,
    server_status_response::Type,
};

#[tokio::test(flavor = "multi_thread")]
async fn subscriber_that_does_not_read_blocks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let _silent = subscribe(&mut client).await;
    let loads = (0..500).map(|i| {
        let mut client = client.clone();
        async move { client.load_model(model(&format!("m{i}"), "/a")).await.unwrap() }
    });
    futures::future::join_all(loads).await;
    let mut statuses = subscribe(&mut client).await;
    until(&mut statuses, "m499", ModelState::ScheduleFailed).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscription_starts_with_current_state() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    for name in ["a", "b"] {
        client.load_model(model(name, "/a")).await.unwrap();
    }
    let mut statuses = subscribe(&mut client).await;
    for name in ["a", "b"] {
        assert_eq!(within(statuses.message()).await.unwrap().unwrap().model_name, name);
    }
    client.load_model(model("c", "/a")).await.unwrap();
    assert_eq!(within(statuses.message()).await.unwrap().unwrap().model_name, "c");
    let snapshot = all(client.model_status(ModelStatusRequest::default()).await.unwrap()).await;
    assert_eq!(snapshot.iter().map(|s| s.model_name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(status(&mut client, "c").await.versions[0].version, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_status_follows_server_notify() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let subscription = client.subscribe_server_status(ServerSubscriptionRequest::default()).await.unwrap();
    let mut servers = subscription.into_inner();
    let server = ServerNotify { name: "big".into(), expected_replicas: 3, ..Default::default() };
    let notify = ServerNotifyRequest { servers: vec![server], is_first_sync: false };
    client.server_notify(notify).await.unwrap();
    let status = within(servers.message()).await.unwrap().unwrap();
    assert_eq!(
        (status.server_name.as_str(), status.expected_replicas, status.available_replicas),
        ("big", 3, 0)
    );
    assert_eq!((status.r#type(), status.manager.as_str()), (Type::StatusUpdate, "cli"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_sends_servers_first() {
    let dir = tempfile::tempdir().unwrap();
    let running = scheduler(dir.path()).await;
    let mut client = client(&running).await;
    let request = ControlPlaneSubscriptionRequest { subscriber_name: "operator".into() };
    let mut events = client.subscribe_control_plane(request).await.unwrap().into_inner();
    assert_eq!(within(events.message()).await.unwrap().unwrap().event(), Event::SendServers);
    let notify = ServerNotifyRequest { servers: vec![], is_first_sync: true };
    client.server_notify(notify).await.unwrap();
    for expected in [Event::SendExperiments, Event::SendModels, Event::SendPipelines] {
        assert_eq!(within(events.message()).await.unwrap().unwrap().event(), expected);
    }
    running.stop().await;
}
