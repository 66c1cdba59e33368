//! An operator of several namespaces: each is reconciled by itself.

use crate::{
    harness::{CONFIG_NAMESPACE, Harness, NAMESPACE, OPERATOR, metric},
    scenario,
};
use gantry_kube_sim::{Fault, FaultPlan, FaultRule, RequestMatch, Verb};
use gantry_operator::{Scope, Settings};
use std::{collections::BTreeSet, time::Duration};

const OTHER: &str = "other";
/// Longer than the longest backoff of a watch.
const WATCH_RETRY: Duration = Duration::from_mins(2);

fn two_namespaces() -> Settings {
    let names = BTreeSet::from([NAMESPACE.to_owned(), OTHER.to_owned()]);
    Settings { scope: Scope::Namespaces(names), ..Settings::default() }
}

/// As after the namespace, and the operator's Role in it, were deleted; or only the right to one kind.
fn forbidden(namespace: &str, kind: Option<&str>) -> FaultPlan {
    let on = RequestMatch {
        actor: Some(OPERATOR.into()),
        namespace: Some(namespace.into()),
        kind: kind.map(str::to_owned),
        ..RequestMatch::default()
    };
    FaultPlan { rules: vec![FaultRule { on, nth: 1, times: u64::MAX, then: Fault::Forbidden }] }
}

#[tokio::test(start_paused = true)]
async fn forbidden_namespace_does_not_stop_the_others() {
    let harness = Harness::prepared().await;
    harness.kube.start(forbidden(OTHER, None));
    let (metrics, health) = harness.start_operator_with(two_namespaces());
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(harness.ready("Model", "iris").await.0, "True");
    assert_eq!(health.not_ready(), [] as [&str; 0], "a rollout of the operator completes");
    let is_synced = |namespace: &str| {
        metric(&metrics, "gantry_operator_namespace_synced", &format!("namespace=\"{namespace}\"")) > 0.0
    };
    assert!(is_synced(NAMESPACE) && is_synced(CONFIG_NAMESPACE) && !is_synced(OTHER));
    // The namespace is created again, and the Role in it.
    harness.create_namespace(OTHER).await;
    harness.create(OTHER, "Model", "wine", scenario::model("wine")).await;
    harness.kube.start(FaultPlan::default());
    tokio::time::sleep(WATCH_RETRY).await;
    assert_eq!(harness.ready_in(OTHER, "Model", "wine").await.0, "True");
    assert!(is_synced(OTHER));
}

#[tokio::test(start_paused = true)]
async fn incomplete_namespace_is_not_reconciled() {
    let harness = Harness::prepared().await;
    harness.create_namespace(OTHER).await;
    harness.start_operator_with(two_namespaces());
    harness.create(OTHER, "Model", "wine", scenario::model("wine")).await;
    harness.settle().await;
    assert!(harness.scheduler_models().await.contains_key("wine"));
    harness.kill_operator();
    harness.kube.start(forbidden(OTHER, Some("Model")));
    harness.start_operator_with(two_namespaces());
    harness.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    harness.settle().await;
    let models = harness.scheduler_models().await;
    assert!(models.contains_key("iris"));
    assert!(models.contains_key("wine"), "a model that could not be listed is not deleted");
    harness.kube.start(FaultPlan::default());
    tokio::time::sleep(WATCH_RETRY).await;
    harness.delete_in(OTHER, "Model", "wine").await;
    harness.settle().await;
    assert!(!harness.scheduler_models().await.contains_key("wine"), "it is reconciled again");
}

#[tokio::test(start_paused = true)]
async fn operator_without_permissions_in_its_own_namespace_is_not_ready() {
    let harness = Harness::prepared().await;
    harness.kube.start(forbidden(CONFIG_NAMESPACE, Some("ServerConfig")));
    let (_, health) = harness.start_operator_with(two_namespaces());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let reasons = health.not_ready();
    assert!(
        reasons.len() == 1 && reasons[0].starts_with("serverconfigs in seldon-mesh: not allowed"),
        "{reasons:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn configurations_are_watched_in_the_namespace_of_the_operator_only() {
    let harness = Harness::prepared().await;
    harness.create_namespace(OTHER).await;
    harness.start_operator_with(two_namespaces());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let watched: BTreeSet<String> = harness
        .kube
        .trace()
        .entries
        .iter()
        .filter(|entry| entry.verb == Verb::Watch && entry.object.contains("configs.mlops"))
        .map(|entry| entry.object.trim_end_matches('/').to_owned())
        .collect();
    let expected = ["seldonconfigs.mlops.seldon.io seldon-mesh", "serverconfigs.mlops.seldon.io seldon-mesh"];
    assert_eq!(watched.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn first_lists_of_many_namespaces_are_spread() {
    let harness = Harness::prepared().await;
    let names: BTreeSet<String> = (0..10).map(|number| format!("team-{number}")).collect();
    for name in &names {
        harness.create_namespace(name).await;
    }
    let on = RequestMatch { actor: Some(OPERATOR.into()), verb: Some(Verb::List), ..RequestMatch::default() };
    let then = Fault::Delay { millis: 1_000 };
    harness.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: u64::MAX, then }] });
    let (_, health) =
        harness.start_operator_with(Settings { scope: Scope::Namespaces(names), ..Settings::default() });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(health.not_ready(), [] as [&str; 0]);
    let trace = harness.kube.trace();
    let lists: Vec<u64> = trace.entries.iter().filter(|e| e.verb == Verb::List).map(|e| e.at).collect();
    assert!(lists.len() >= 140, "{}", lists.len());
    let most = lists.iter().map(|at| lists.iter().filter(|other| at.abs_diff(**other) < 900).count()).max();
    assert!(most <= Some(32), "{most:?} lists at the same time");
}
