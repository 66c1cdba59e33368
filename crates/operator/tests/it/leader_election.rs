//! Leader election between two operators, and the initial sync with a scheduler.

use crate::{
    harness::{Harness, NAMESPACE},
    scenario,
};
use gantry_kube_sim::{Entry, Fault, FaultPlan, FaultRule, RequestMatch, Verb};
use gantry_operator::{RunError, Scope, Settings, cluster::WriteFence};
use gantry_proto::scheduler::{ControlPlaneSubscriptionRequest, control_plane_response::Event};
use serde_json::json;
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

fn faulty(actor: &str, verb: Option<Verb>, kind: Option<&str>, then: Fault) -> FaultPlan {
    let kind = kind.map(str::to_owned);
    let on = RequestMatch { actor: Some(actor.into()), verb, kind, ..RequestMatch::default() };
    FaultPlan { rules: vec![FaultRule { on, nth: 1, times: u64::MAX, then }] }
}

/// Lists that take longer than a lease is valid.
#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_lists_are_slow() {
    let harness = Harness::prepared().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.kube.start(faulty("first", Some(Verb::List), None, Fault::Delay { millis: 25_000 }));
    let first = harness.start_candidate("first");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = harness.start_candidate("second");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(writes(&harness, "second"), [], "the first keeps the lease");
    assert!(!first.is_finished());
    first.abort();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn slow_lease_responses_do_not_cost_leadership() {
    let harness = Harness::prepared().await;
    let first = harness.start_candidate("first");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = harness.start_candidate("second");
    harness.kube.start(faulty("first", None, Some("Lease"), Fault::Delay { millis: 3_000 }));
    tokio::time::sleep(CONVERGENCE_TIME).await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert!(!first.is_finished());
    assert_eq!(writes(&harness, "second"), []);
    first.abort();
    second.abort();
}

/// A renewal whose response is lost, so that the next one conflicts.
#[tokio::test(start_paused = true)]
async fn renewal_without_a_response_does_not_cost_leadership() {
    let harness = Harness::prepared().await;
    let first = harness.start_candidate("first");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut plan = faulty("first", None, Some("Lease"), Fault::TimeoutAfterCommit { millis: 60_000 });
    plan.rules[0].times = 1;
    harness.kube.start(plan);
    tokio::time::sleep(CONVERGENCE_TIME).await;
    assert!(!first.is_finished());
    first.abort();
}

/// A process that was suspended finds its lease lapsed, and renews it before another operator takes it.
#[tokio::test(start_paused = true)]
async fn work_of_a_lapsed_lease_continues_when_it_is_valid_again() {
    let harness = Harness::prepared().await;
    let fence = WriteFence::closed();
    let valid = |seconds: u64| fence.extend(Instant::now() + Duration::from_secs(seconds));
    valid(20);
    harness.start_fenced_operator(Settings::default(), fence.clone());
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    let writes = harness.writes();
    harness.create(NAMESPACE, "Model", "wine", scenario::model("wine")).await;
    harness.change("Model", "iris", json!({ "storageUri": "gs://models/better" })).await;
    tokio::time::sleep(CONVERGENCE_TIME).await;
    assert_eq!(harness.writes(), writes);
    valid(600);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(harness.ready("Model", "wine").await.0, "True");
    assert_eq!(harness.scheduler_models().await["iris"], "gs://models/better");
}

#[tokio::test(start_paused = true)]
async fn schedulers_are_connected_when_a_lapsed_lease_is_valid_again() {
    let harness = Harness::started().await;
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    harness.kill_operator();
    // Only the scheduler knows a model that was deleted meanwhile.
    harness.set_finalizers("Model", "iris", &[]).await;
    harness.delete("Model", "iris").await;
    let (fence, scope) = (WriteFence::closed(), Scope::Namespaces([NAMESPACE.to_owned()].into()));
    harness.start_fenced_operator(Settings { scope, ..Settings::default() }, fence.clone());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(harness.scheduler_models().await.contains_key("iris"));
    fence.extend(Instant::now() + Duration::from_mins(1));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!harness.scheduler_models().await.contains_key("iris"));
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
