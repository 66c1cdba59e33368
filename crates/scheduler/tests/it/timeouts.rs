//! Timeouts, liveness and autoscaling, with paused time.

use crate::{
    harness::{model, status_of, subscribe_request, unload, within},
    in_memory::InMemoryScheduler,
};
use gantry_proto::{
    agent::{ModelEventMessage, ModelOperationMessage, model_event_message::Event},
    gantry::{
        DemandReport, ModelDemand, Removal, Route, RouteAcknowledgement, WatchRoutesRequest, route_event,
        routing_client::RoutingClient,
    },
    health::{HealthCheckRequest, health_check_service_client::HealthCheckServiceClient},
    scheduler::{
        DeploymentSpec, LoadModelRequest, ModelSubscriptionRequest, ServerNotify, ServerNotifyRequest,
        ServerSubscriptionRequest, model_status::ModelState, server_status_response::Type,
    },
};
use gantry_scheduler::{Engine, Liveness};
use gantry_store::faulty_disk::Fault;
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::{pin::pin, time::Duration};
use tokio::sync::watch;
use tonic::{Streaming, transport::Channel};

fn scaled(name: &str, replicas: u32, min_replicas: u32, max_replicas: u32) -> LoadModelRequest {
    let mut request = model(name, "/a");
    request.model.as_mut().unwrap().deployment_spec =
        Some(DeploymentSpec { replicas, min_replicas, max_replicas, log_payloads: false });
    request
}

/// Advances time in steps that the logical clock accepts.
async fn advance(time: Duration) {
    let end = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn counted(scheduler: &InMemoryScheduler, line: &str) -> bool {
    let mut registry = Registry::default();
    scheduler.inner.register_metrics(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text.lines().any(|l| l == line)
}

#[tokio::test(start_paused = true)]
async fn engine_runs_without_sockets_or_threads() {
    let (scheduler, engine) = InMemoryScheduler::stopped();
    let running = tokio::spawn(engine.run());
    let mut client = scheduler.client().await;
    client.load_model(model("iris", "/a")).await.unwrap();
    advance(Duration::from_mins(1)).await;
    client.load_model(model("iris", "/b")).await.unwrap();
    let mut statuses = client.model_status(status_of("iris")).await.unwrap().into_inner();
    let status = within(statuses.message()).await.unwrap().unwrap();
    assert_eq!(status.versions[0].version, 2);
    assert!(status.timestamp >= 1_800_000_060_000, "{}", status.timestamp);
    assert!(scheduler.inner.liveness().is_live());
    scheduler.inner.stop();
    within(running).await.unwrap();
    assert_eq!(scheduler.inner.liveness(), Liveness::Stopped);
    assert!(client.load_model(model("late", "/a")).await.is_err());
    scheduler.disk.open().expect("the store is closed with the engine");
}

#[tokio::test(start_paused = true)]
async fn steady_state_writes_nothing() {
    let scheduler = InMemoryScheduler::new();
    scheduler.client().await.load_model(model("iris", "/a")).await.unwrap();
    advance(Duration::from_mins(1)).await;
    let before = scheduler.disk.writes();
    advance(Duration::from_mins(10)).await;
    assert_eq!(scheduler.disk.writes(), before);
}

#[tokio::test(start_paused = true)]
async fn stuck_engine_is_reported() {
    let (scheduler, engine) = InMemoryScheduler::stopped();
    let mut client = scheduler.client().await;
    let waiting = tokio::spawn(async move { client.load_model(model("iris", "/a")).await });
    let mut health = HealthCheckServiceClient::new(scheduler.channel().await);
    assert!(health.health_check(HealthCheckRequest {}).await.unwrap().into_inner().ok);
    advance(Duration::from_secs(20)).await;
    assert!(matches!(scheduler.inner.liveness(), Liveness::Stuck { waiting: 1, .. }));
    assert!(!health.health_check(HealthCheckRequest {}).await.unwrap().into_inner().ok);
    assert!(counted(&scheduler, "gantry_scheduler_moving 0"));
    tokio::spawn(engine.run());
    within(waiting).await.unwrap().unwrap();
    assert!(scheduler.inner.liveness().is_live());
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_does_not_read_for_30_s_is_dropped() {
    let scheduler = InMemoryScheduler::new();
    let mut client = scheduler.client().await;
    for i in 0..300 {
        client.load_model(model(&format!("m{i}"), &"x".repeat(16_000))).await.unwrap();
    }
    let mut never = scheduler.client().await;
    let stream = never.subscribe_model_status(ModelSubscriptionRequest::default()).await.unwrap();
    advance(Duration::from_secs(20)).await;
    assert!(counted(&scheduler, "gantry_scheduler_subscribers{kind=\"model\"} 1"));
    advance(Duration::from_secs(20)).await;
    assert!(counted(&scheduler, "gantry_scheduler_subscribers{kind=\"model\"} 0"));
    drop(stream);
}

/// An agent that executes every order at once.
async fn instant_agent(
    scheduler: &InMemoryScheduler,
    loaded: &[(&str, u32)],
) -> tokio::sync::mpsc::UnboundedReceiver<ModelOperationMessage> {
    let mut client = scheduler.agent().await;
    let mut orders = client.subscribe(subscribe_request(0, loaded)).await.unwrap().into_inner();
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(order)) = orders.message().await {
            let version = order.model_version.clone().unwrap();
            let event = if order.operation == 1 { Event::Loaded } else { Event::Unloaded };
            let report = ModelEventMessage {
                server_name: "builtin".into(),
                model_name: version.model.unwrap().meta.unwrap().name,
                model_version: version.version,
                event: event as i32,
                available_memory_bytes: 1 << 30,
                ..Default::default()
            };
            if client.agent_event(report).await.is_err() || sender.send(order).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn state(scheduler: &InMemoryScheduler, name: &str) -> ModelState {
    let mut statuses = scheduler.client().await.model_status(status_of(name)).await.unwrap().into_inner();
    statuses.message().await.unwrap().unwrap().versions[0].state.as_ref().unwrap().state()
}

#[tokio::test(start_paused = true)]
async fn lagging_gateway_stream_is_closed() {
    let scheduler = InMemoryScheduler::new();
    let mut lagging = scheduler.gateway().await;
    let request = WatchRoutesRequest { subscriber: "deaf".into() };
    let mut events = lagging.watch_routes(request).await.unwrap().into_inner();
    let _orders = instant_agent(&scheduler, &[]).await;
    scheduler.client().await.load_model(model("iris", "/a")).await.unwrap();
    advance(Duration::from_secs(10)).await;
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelProgressing);
    advance(Duration::from_secs(30)).await;
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelAvailable);
    while within(events.message()).await.unwrap().is_some() {}
}

/// Runs the engine, except while it is stalled as by a slow write.
async fn run_stallable(engine: Engine, mut stalled: watch::Receiver<bool>) {
    let mut running = pin!(engine.run());
    loop {
        stalled.wait_for(|stalled| !stalled).await.unwrap();
        tokio::select! {
            biased;
            stalls = stalled.wait_for(|stalled| *stalled) => drop(stalls.unwrap()),
            () = &mut running => return,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_write_expires_no_gateway_whose_acknowledgement_is_queued() {
    let (scheduler, engine) = InMemoryScheduler::stopped();
    let (stall, stalled) = watch::channel(false);
    tokio::spawn(run_stallable(engine, stalled));
    let mut orders = instant_agent(&scheduler, &[]).await;
    let mut gateway = scheduler.gateway().await;
    let request = WatchRoutesRequest { subscriber: "g".into() };
    let mut events = gateway.watch_routes(request).await.unwrap().into_inner();
    let acknowledge = |epoch, applied, drained| {
        let mut gateway = gateway.clone();
        let subscriber = "g".into();
        let message = RouteAcknowledgement { subscriber, epoch, applied, drained, ..Default::default() };
        async move { gateway.acknowledge_routes(message).await.unwrap() }
    };
    let mut client = scheduler.client().await;
    client.load_model(model("iris", "/a")).await.unwrap();
    let (mut rolled_out, mut routed) = (false, false);
    let (epoch, sequence) = loop {
        let event = within(events.message()).await.unwrap().unwrap();
        if let Some(route_event::Event::Upsert(route)) = event.event
            && route.versions.iter().any(|v| v.version == 2)
        {
            // The first change routes to version 2, the second one retires version 1.
            if routed {
                break (event.epoch, event.sequence);
            }
            routed = true;
        }
        acknowledge(event.epoch, event.sequence, event.sequence).await;
        advance(Duration::from_secs(1)).await;
        if !rolled_out && state(&scheduler, "iris").await == ModelState::ModelAvailable {
            client.load_model(model("iris", "/b")).await.unwrap();
            rolled_out = true;
        }
    };
    // A request of version 1 is in flight at the gateway.
    stall.send_replace(true);
    acknowledge(epoch, sequence, sequence - 1).await;
    advance(Duration::from_secs(35)).await;
    stall.send_replace(false);
    advance(Duration::from_secs(5)).await;
    while let Ok(order) = orders.try_recv() {
        assert_eq!(order.operation, 1, "nothing is unloaded under a request: {order:?}");
    }
    acknowledge(epoch, sequence, sequence).await;
    assert_eq!(within(orders.recv()).await.unwrap().operation, 2);
}

#[tokio::test(start_paused = true)]
async fn request_in_flight_delays_only_the_unload_of_its_own_version() {
    let scheduler = InMemoryScheduler::new();
    let mut orders = instant_agent(&scheduler, &[]).await;
    let mut gateway = scheduler.gateway().await;
    let request = WatchRoutesRequest { subscriber: "g".into() };
    let mut events = gateway.watch_routes(request).await.unwrap().into_inner();
    let first = within(events.message()).await.unwrap().unwrap();
    let mut acknowledge = async |applied: u64, undrained: &[&str], lists_undrained: bool| {
        let undrained = undrained.iter().map(|model| Removal {
            model: (*model).into(),
            version: 1,
            server: "builtin".into(),
            replica: 0,
        });
        let message = RouteAcknowledgement {
            subscriber: "g".into(),
            state_id: first.state_id,
            epoch: first.epoch,
            applied,
            drained: 0,
            undrained: undrained.collect(),
            lists_undrained,
        };
        gateway.acknowledge_routes(message).await.unwrap();
    };
    let everything = 1000;
    let mut client = scheduler.client().await;
    for name in ["slow", "fast", "other"] {
        client.load_model(model(name, "/a")).await.unwrap();
        assert_eq!(within(orders.recv()).await.unwrap().operation, 1);
    }
    acknowledge(everything, &[], true).await;
    for name in ["slow", "fast"] {
        client.unload_model(unload(name)).await.unwrap();
    }
    acknowledge(everything + 1, &["slow"], true).await;
    let name = |order: ModelOperationMessage| order.model_version.unwrap().model.unwrap().meta.unwrap().name;
    assert_eq!(name(within(orders.recv()).await.unwrap()), "fast");
    // A list that is too long is left out: nothing removed since the first undrained change is unloaded.
    client.unload_model(unload("other")).await.unwrap();
    acknowledge(everything + 2, &[], false).await;
    advance(Duration::from_secs(5)).await;
    assert!(orders.try_recv().is_err());
    acknowledge(everything + 3, &["slow"], true).await;
    assert_eq!(name(within(orders.recv()).await.unwrap()), "other");
    acknowledge(everything + 4, &[], true).await;
    assert_eq!(name(within(orders.recv()).await.unwrap()), "slow");
}

/// Acknowledges every route change and keeps the latest route.
async fn watch_routes(mut client: RoutingClient<Channel>) -> tokio::sync::watch::Receiver<Route> {
    let request = WatchRoutesRequest { subscriber: "g".into() };
    let mut events: Streaming<_> = client.watch_routes(request).await.unwrap().into_inner();
    let (sender, receiver) = tokio::sync::watch::channel(Route::default());
    tokio::spawn(async move {
        while let Ok(Some(event)) = events.message().await {
            let (epoch, applied) = (event.epoch, event.sequence);
            if let Some(route_event::Event::Upsert(route)) = event.event {
                sender.send_replace(route);
            }
            let subscriber = "g".into();
            let acknowledgement =
                RouteAcknowledgement { subscriber, epoch, applied, drained: applied, ..Default::default() };
            client.acknowledge_routes(acknowledgement).await.unwrap();
        }
    });
    receiver
}

#[tokio::test(start_paused = true)]
async fn restart_defers_unload_until_gateways_reconnect() {
    for comes_back in [true, false] {
        let disk = {
            let scheduler = InMemoryScheduler::new();
            let mut route = watch_routes(scheduler.gateway().await).await;
            let _orders = instant_agent(&scheduler, &[]).await;
            scheduler.client().await.load_model(model("iris", "/a")).await.unwrap();
            within(route.wait_for(|r| !r.versions.is_empty())).await.unwrap();
            // The state that was empty at the start is no longer new.
            advance(Duration::from_secs(40)).await;
            scheduler.disk.clone()
        };
        disk.kill();
        let scheduler = InMemoryScheduler::restarted(&disk);
        scheduler.client().await.unload_model(unload("iris")).await.unwrap();
        let mut orders = instant_agent(&scheduler, &[("iris", 1)]).await;
        advance(Duration::from_secs(5)).await;
        assert!(orders.try_recv().is_err(), "a gateway may still route there");
        if comes_back {
            let _route = watch_routes(scheduler.gateway().await).await;
            advance(Duration::from_secs(5)).await;
        } else {
            advance(Duration::from_secs(40)).await;
        }
        assert_eq!(orders.try_recv().unwrap().operation, 2, "comes back: {comes_back}");
    }
}

#[tokio::test(start_paused = true)]
async fn empty_state_defers_unload_of_loaded_models() {
    let scheduler = InMemoryScheduler::new();
    let mut orders = instant_agent(&scheduler, &[("iris", 1), ("unknown", 1)]).await;
    advance(Duration::from_secs(5)).await;
    scheduler.client().await.load_model(model("iris", "/a")).await.unwrap();
    advance(Duration::from_secs(5)).await;
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelAvailable);
    advance(Duration::from_secs(30)).await;
    let mut unloaded = Vec::new();
    while let Ok(order) = orders.try_recv() {
        if order.operation == 2 {
            unloaded.push(order.model_version.unwrap().model.unwrap().meta.unwrap().name);
        }
    }
    assert_eq!(unloaded, ["unknown"]);
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelAvailable);
}

#[tokio::test(start_paused = true)]
async fn empty_state_defers_unload_of_a_version_that_gateways_of_a_lost_state_route_to() {
    let scheduler = InMemoryScheduler::new();
    let mut orders = instant_agent(&scheduler, &[("iris", 1)]).await;
    let mut client = scheduler.client().await;
    for name in ["iris", "new"] {
        client.load_model(model(name, "/a")).await.unwrap();
        within(orders.recv()).await.unwrap();
    }
    advance(Duration::from_secs(1)).await;
    for name in ["iris", "new"] {
        client.unload_model(unload(name)).await.unwrap();
    }
    let name = |order: ModelOperationMessage| order.model_version.unwrap().model.unwrap().meta.unwrap().name;
    assert_eq!(name(within(orders.recv()).await.unwrap()), "new", "no gateway of a lost state knows it");
    advance(Duration::from_secs(5)).await;
    assert!(orders.try_recv().is_err());
    advance(Duration::from_secs(30)).await;
    assert_eq!(name(orders.try_recv().unwrap()), "iris");
}

#[tokio::test(start_paused = true)]
async fn restart_soon_after_the_loss_of_the_state_defers_unloads_too() {
    let disk = {
        let scheduler = InMemoryScheduler::new();
        scheduler.client().await.load_model(model("other", "/a")).await.unwrap();
        scheduler.disk.clone()
    };
    disk.kill();
    let scheduler = InMemoryScheduler::restarted(&disk);
    let mut orders = instant_agent(&scheduler, &[("iris", 1)]).await;
    let unloaded = |order: &ModelOperationMessage| order.operation == 2;
    advance(Duration::from_secs(20)).await;
    while let Ok(order) = orders.try_recv() {
        assert!(!unloaded(&order), "a gateway of the lost state may route there: {order:?}");
    }
    advance(Duration::from_secs(20)).await;
    assert!(unloaded(&orders.try_recv().unwrap()));
    drop(scheduler);
    disk.kill();
    let scheduler = InMemoryScheduler::restarted(&disk);
    let mut orders = instant_agent(&scheduler, &[("iris", 1)]).await;
    advance(Duration::from_secs(1)).await;
    assert!(std::iter::from_fn(|| orders.try_recv().ok()).any(|order| unloaded(&order)), "the time is over");
}

#[tokio::test(start_paused = true)]
async fn empty_state_serves_the_applied_content_instead_of_the_loaded_one() {
    let scheduler = InMemoryScheduler::new();
    // Loaded from /a by a scheduler that lost its state.
    let mut orders = instant_agent(&scheduler, &[("iris", 1)]).await;
    scheduler.client().await.load_model(model("iris", "/b")).await.unwrap();
    let order = within(orders.recv()).await.unwrap();
    let version = order.model_version.unwrap();
    assert_eq!((order.operation, version.version), (1, 2), "version 1 is another content there");
    assert_eq!(version.model.unwrap().model_spec.unwrap().uri, "/b");
    advance(Duration::from_secs(1)).await;
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelAvailable);
    advance(Duration::from_secs(40)).await;
    let order = orders.try_recv().unwrap();
    assert_eq!((order.operation, order.model_version.unwrap().version), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn idle_model_scales_to_zero_and_back_on_demand() {
    let scheduler = InMemoryScheduler::new();
    let mut orders = instant_agent(&scheduler, &[]).await;
    let mut gateway = scheduler.gateway().await;
    let mut route = watch_routes(gateway.clone()).await;
    scheduler.client().await.load_model(scaled("iris", 1, 0, 1)).await.unwrap();
    within(route.wait_for(|r| !r.versions.is_empty())).await.unwrap();
    assert_eq!(within(orders.recv()).await.unwrap().operation, 1);
    advance(Duration::from_secs(700)).await;
    within(route.wait_for(|r| r.sleeps)).await.unwrap();
    assert_eq!(within(orders.recv()).await.unwrap().operation, 2);
    assert_eq!(state(&scheduler, "iris").await, ModelState::ModelScaledDown);
    let waiting = ModelDemand { model: "iris".into(), waiting: true, ..Default::default() };
    let report = DemandReport { subscriber: "g".into(), models: vec![waiting] };
    gateway.report_demand(report).await.unwrap();
    within(route.wait_for(|r| !r.versions.is_empty())).await.unwrap();
    assert_eq!(within(orders.recv()).await.unwrap().operation, 1);
}

#[tokio::test(start_paused = true)]
async fn failed_write_defers_unload_until_the_record_is_stored() {
    let scheduler = InMemoryScheduler::new();
    let mut orders = instant_agent(&scheduler, &[]).await;
    let mut route = watch_routes(scheduler.gateway().await).await;
    scheduler.client().await.load_model(scaled("iris", 1, 0, 1)).await.unwrap();
    within(route.wait_for(|r| !r.versions.is_empty())).await.unwrap();
    assert_eq!(within(orders.recv()).await.unwrap().operation, 1);
    scheduler.disk.fail_writes(Fault::Broken);
    advance(Duration::from_secs(700)).await;
    within(route.wait_for(|r| r.sleeps)).await.unwrap();
    advance(Duration::from_mins(1)).await;
    assert!(orders.try_recv().is_err(), "the stored record routes to the replica");
    scheduler.disk.heal();
    assert_eq!(within(orders.recv()).await.unwrap().operation, 2);
}

#[tokio::test(start_paused = true)]
async fn server_subscribers_receive_scaling_request() {
    let scheduler = InMemoryScheduler::new();
    let mut client = scheduler.client().await;
    let request = ServerSubscriptionRequest::default();
    let mut servers = client.subscribe_server_status(request.clone()).await.unwrap().into_inner();
    let server = ServerNotify {
        name: "builtin".into(),
        expected_replicas: 1,
        shared: true,
        max_replicas: 3,
        ..Default::default()
    };
    client.server_notify(ServerNotifyRequest { servers: vec![server], is_first_sync: true }).await.unwrap();
    let _orders = instant_agent(&scheduler, &[]).await;
    client.load_model(scaled("iris", 2, 0, 0)).await.unwrap();
    let observed = |stream: Streaming<_>| async move {
        let mut stream = stream;
        loop {
            let status: gantry_proto::scheduler::ServerStatusResponse =
                within(stream.message()).await.unwrap().unwrap();
            if status.r#type() == Type::ScalingRequest {
                return status.expected_replicas;
            }
        }
    };
    let first = client.subscribe_server_status(request).await.unwrap().into_inner();
    assert_eq!(within(servers.message()).await.unwrap().unwrap().r#type(), Type::StatusUpdate);
    assert_eq!(observed(servers).await, 2);
    // Later subscribers receive it too.
    assert_eq!(observed(first).await, 2);
}
