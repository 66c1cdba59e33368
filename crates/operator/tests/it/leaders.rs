//! Two operators: one writes, the other waits; and what a scheduler hears first.

use crate::{
    scenario,
    world::{NAMESPACE, World},
};
use gantry_operator::Ended;
use gantry_proto::scheduler::{ControlPlaneSubscriptionRequest, control_plane_response::Event};
use gantry_kube_sim::{Entry, Fault, RequestMatch, FaultPlan, FaultRule};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Virtual time in which everything is done; a lease is renewed for ever.
const A_WHILE: Duration = Duration::from_mins(2);

fn writes(world: &World, actor: &str) -> Vec<Entry> {
    let trace = world.kube.trace();
    trace.writes(Some(actor)).filter(|entry| !entry.object.contains("leases")).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_the_next_one_begins() {
    let world = World::prepared().await;
    let first = world.start_candidate("first");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = world.start_candidate("second");
    world.create(NAMESPACE, "Model", "early", scenario::model("early")).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.says("Model", "early").await.0, "True");
    assert_eq!(writes(&world, "second"), [], "one leads at a time");
    // From now on nothing is heard of the first one's lease; whatever else it writes arrives.
    let on = RequestMatch { actor: Some("first".into()), kind: Some("Lease".into()), ..RequestMatch::default() };
    let then = Fault::TimeoutBefore { millis: 60_000 };
    world.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: u64::MAX, then }] });
    let renewed = world.kube.trace().writes(Some("first")).map(|e| e.at).last().unwrap();
    for number in 0..60 {
        world.create(NAMESPACE, "Model", &format!("m{number}"), scenario::model("iris")).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(A_WHILE).await;
    let (old, new) = (writes(&world, "first"), writes(&world, "second"));
    let last = old.last().unwrap().at;
    assert!(last <= renewed + 10_000, "it wrote {} ms after its last renewal", last - renewed);
    assert!(new.first().is_some_and(|entry| entry.at > last), "two led at the same time");
    for number in 0..60 {
        assert_eq!(world.says("Model", &format!("m{number}")).await.0, "True");
    }
    assert!(
        first.is_finished() && matches!(first.await, Ok(Err(Ended::Lost(_)))),
        "it says that it no longer leads"
    );
    second.abort();
}

/// Schedulers, Seldon's above all, wait for the Servers before they look at models.
#[tokio::test(start_paused = true)]
async fn a_scheduler_hears_that_it_has_heard_of_all_servers() {
    let world = scenario::settled(1).await;
    world.kill_operator();
    let request = ControlPlaneSubscriptionRequest { subscriber_name: "test".into() };
    let mut events = world.ask_scheduler().await.subscribe_control_plane(request).await.unwrap().into_inner();
    assert_eq!(events.message().await.unwrap().unwrap().event(), Event::SendServers);
    let begin = Instant::now();
    world.start_operator();
    let next = timeout(Duration::from_mins(1), events.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next.event(), Event::SendExperiments);
    assert!(begin.elapsed() < Duration::from_secs(5), "it waited {:?}", begin.elapsed());
    assert_eq!(world.expected().await["gantry"], "1 for \"operator:ml\"");
}
