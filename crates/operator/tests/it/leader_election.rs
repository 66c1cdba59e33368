//! Leader election between two operators, and the initial sync with a scheduler.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario,
};
use gantry_kube_sim::{Entry, Fault, FaultPlan, FaultRule, RequestMatch};
use gantry_operator::RunError;
use gantry_proto::scheduler::{ControlPlaneSubscriptionRequest, control_plane_response::Event};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Virtual time to converge; lease renewals never settle.
const CONVERGENCE_TIME: Duration = Duration::from_mins(2);

fn writes(harness: &Harness, actor: &str) -> Vec<Entry> {
    let trace = harness.kube.trace();
    trace.writes(Some(actor)).filter(|entry| !entry.object.contains("leases")).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn leader_without_renewal_stops_before_its_successor_starts() {
    let harness = Harness::prepared().await;
    let first = harness.start_candidate("first");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = harness.start_candidate("second");
    harness.create(NAMESPACE, "Model", "early", scenario::model("early")).await;
    tokio::time::sleep(CONVERGENCE_TIME).await;
    assert_eq!(harness.ready("Model", "early").await.0, "True");
    assert_eq!(writes(&harness, "second"), [], "there is one leader");
    // Only the lease writes of the first operator fail.
    let on =
        RequestMatch { actor: Some("first".into()), kind: Some("Lease".into()), ..RequestMatch::default() };
    let then = Fault::TimeoutBefore { millis: 60_000 };
    harness.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: u64::MAX, then }] });
    let renewed = harness.kube.trace().writes(Some("first")).map(|e| e.at).last().unwrap();
    for number in 0..60 {
        harness.create(NAMESPACE, "Model", &format!("m{number}"), scenario::model("iris")).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(CONVERGENCE_TIME).await;
    let (old, new) = (writes(&harness, "first"), writes(&harness, "second"));
    let last = old.last().unwrap().at;
    assert!(last <= renewed + 10_000, "it wrote {} ms after its last renewal", last - renewed);
    assert!(new.first().is_some_and(|entry| entry.at > last), "two leaders at the same time");
    for number in 0..60 {
        assert_eq!(harness.ready("Model", &format!("m{number}")).await.0, "True");
    }
    assert!(
        first.is_finished() && matches!(first.await, Ok(Err(RunError::LeadershipLost(_)))),
        "it reports the lost lease"
    );
    second.abort();
}

/// Schedulers wait for the initial server sync before they schedule models.
#[tokio::test(start_paused = true)]
async fn operator_sends_the_initial_server_sync() {
    let harness = scenario::settled(1).await;
    harness.kill_operator();
    let request = ControlPlaneSubscriptionRequest { subscriber_name: "test".into() };
    let mut events =
        harness.scheduler_client().await.subscribe_control_plane(request).await.unwrap().into_inner();
    assert_eq!(events.message().await.unwrap().unwrap().event(), Event::SendServers);
    let begin = Instant::now();
    harness.start_operator();
    let next = timeout(Duration::from_mins(1), events.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(next.event(), Event::SendExperiments);
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    assert_eq!(harness.scheduler_servers().await["gantry"], "1 for \"operator:ml\"");
}
