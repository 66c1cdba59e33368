//! Servers in one process with the API server and the scheduler: who has the replicas, what is refused, what is believed.

use crate::{
    scenario::{self, settled},
    world::{CONFIGS, NAMESPACE, OPERATOR, World},
};
use gantry_kube_sim::{Fault, RequestMatch, FaultPlan, FaultRule, Verb};
use serde_json::json;

fn replicas(world: &World) -> Option<serde_json::Value> {
    world.field("statefulsets.apps", "gantry", "/spec/replicas")
}

fn autoscaler() -> serde_json::Value {
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "gantry", "namespace": NAMESPACE },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "gantry" },
            "minReplicas": 1, "maxReplicas": 9,
        },
    })
}

#[tokio::test(start_paused = true)]
async fn replicas_belong_to_the_autoscaler_while_there_is_one() {
    let world = settled(2).await;
    world.make(autoscaler()).await;
    world.rest().await;
    assert_eq!(replicas(&world), Some(2.into()), "it begins where the operator ended");
    world.scale("apps/v1", "StatefulSet", "gantry", 5).await;
    world.rest().await;
    assert_eq!(replicas(&world), Some(5.into()));
    assert!(world.live("services", "gantry-4").is_some(), "each replica has its Service");
    assert_eq!(world.expected().await["gantry"], "5 for \"operator:ml\"");
    // What is asked for here does not matter as long as it is there; a restart neither.
    world.change("Server", "gantry", json!({ "replicas": 3 })).await;
    world.rest().await;
    let asked = world.asked().len();
    world.kill_operator();
    world.start_operator();
    world.rest().await;
    assert_eq!(replicas(&world), Some(5.into()));
    assert_eq!(world.asked().len(), asked);
    world.take_away("autoscaling/v2", "HorizontalPodAutoscaler", "gantry").await;
    world.rest().await;
    assert_eq!(replicas(&world), Some(3.into()));
    assert!(world.live("services", "gantry-4").is_none());
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_gets_the_replicas_that_it_wants_within_bounds() {
    let world = World::begun().await;
    scenario::configure(&world).await;
    let spec = json!({ "serverConfig": "builtin", "replicas": 1, "minReplicas": 1, "maxReplicas": 3 });
    world.create(NAMESPACE, "Server", "gantry", spec).await;
    world.rest().await;
    let mut model = scenario::model("iris");
    model["replicas"] = json!(2);
    world.create(NAMESPACE, "Model", "iris", model).await;
    world.rest().await;
    assert_eq!(replicas(&world), Some(2.into()));
    assert_eq!(world.get("Server", "gantry").await.unwrap()["spec"]["replicas"], 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_will_not_have_is_told_and_not_sent_again() {
    let world = settled(1).await;
    let claims = |size: &str| {
        let resources = json!({ "requests": { "storage": size } });
        let claim =
            json!({ "name": "models", "spec": { "accessModes": ["ReadWriteOnce"], "resources": resources } });
        json!({ "podSpec": scenario::pod("agent", "gantry:2"), "volumeClaimTemplates": [claim] })
    };
    world.change_in(CONFIGS, "ServerConfig", "builtin", claims("1Gi")).await;
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("False".into(), "ApplyRefused".into()));
    let asked = world.asked().len();
    world.kill_operator();
    world.start_operator();
    world.rest().await;
    assert!(world.asked().len() <= asked + 1, "{:#?}", &world.asked()[asked..]);
    // The other way out: what cannot be changed is not asked for any more.
    let without = json!({ "podSpec": scenario::pod("agent", "gantry:3"), "volumeClaimTemplates": null });
    world.change_in(CONFIGS, "ServerConfig", "builtin", without).await;
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("True".into(), "ServerReady".into()));
    let image = world.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/image");
    assert_eq!(image, Some("gantry:3".into()));
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_not_to_be_followed_is_not() {
    let world = settled(1).await;
    world.change("Server", "gantry", json!({ "disableAutoUpdate": true })).await;
    world.rest().await;
    let image = || world.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/image");
    let newer = json!({ "podSpec": scenario::pod("agent", "gantry:2") });
    world.change_in(CONFIGS, "ServerConfig", "builtin", newer).await;
    world.rest().await;
    assert_eq!(image(), Some("gantry:1".into()));
    world.change("Server", "gantry", json!({ "replicas": 2 })).await;
    world.rest().await;
    assert_eq!((image(), replicas(&world)), (Some("gantry:1".into()), Some(2.into())));
    // Whoever changes the Server itself gets the latest.
    world.change("Server", "gantry", json!({ "extraCapabilities": ["more"] })).await;
    world.rest().await;
    assert_eq!(image(), Some("gantry:2".into()));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_asked_for_any_more_goes() {
    let world = settled(1).await;
    let env = || world.field("statefulsets.apps", "gantry", "/spec/template/spec/containers/0/env/0/name");
    assert_eq!(env(), Some("SELDON_SERVER_CAPABILITIES".into()));
    let mut without = scenario::pod("agent", "gantry:1");
    without["containers"][0].as_object_mut().unwrap().remove("env");
    world.change_in(CONFIGS, "ServerConfig", "builtin", json!({ "podSpec": without })).await;
    world.rest().await;
    assert_eq!(env(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_server_that_is_gone() {
    let world = settled(1).await;
    let made = || {
        world
            .comings()
            .into_iter()
            .filter(|(key, _)| key.contains("ml/gantry"))
            .map(|(_, n)| n.0)
            .sum::<u64>()
    };
    let before = made();
    // The operator sees that the objects go, and not that nobody wants them.
    world.kube.freeze("servers.mlops.seldon.io");
    world.delete("Server", "gantry").await;
    world.rest().await;
    assert!(world.live("statefulsets.apps", "gantry").is_none());
    assert_eq!(made(), before, "{:#?}", world.asked());
    world.kube.release("servers.mlops.seldon.io");
    world.rest().await;
    assert_eq!(made(), before);
}

#[tokio::test(start_paused = true)]
async fn what_happens_to_a_server_while_it_is_looked_at_is_seen() {
    let world = settled(1).await;
    world.kube.freeze("servers.mlops.seldon.io");
    // The operator sees the objects go, and asks whether the Server is there: the answer takes its time.
    let on = RequestMatch {
        actor: Some(OPERATOR.into()),
        verb: Some(Verb::List),
        kind: Some("Server".into()),
        ..RequestMatch::default()
    };
    let then = Fault::Delay { millis: 8_000 };
    world.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 1, then }] });
    world.delete("Server", "gantry").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.create(NAMESPACE, "Server", "gantry", json!({ "serverConfig": "builtin" })).await;
    world.kube.release("servers.mlops.seldon.io");
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("True".into(), "ServerReady".into()));
}

#[tokio::test(start_paused = true)]
async fn what_went_while_a_watch_was_away_is_made_again() {
    let world = settled(1).await;
    world.kube.freeze("services");
    world.take_away("v1", "Service", "gantry-0").await;
    // The watch cannot go on from where it is: everything is listed anew.
    world.kube.with(|state| state.compact(state.revision()));
    world.kube.release("services");
    world.rest().await;
    assert!(world.live("services", "gantry-0").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_tried_again() {
    let world = World::prepared().await;
    let on = RequestMatch { actor: Some(OPERATOR.into()), writes: true, ..RequestMatch::default() };
    world.kube.start(FaultPlan { rules: vec![FaultRule { on, nth: 1, times: 3, then: Fault::InternalError }] });
    world.start_operator();
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn figures_of_an_older_form_count_for_nothing() {
    let world = settled(1).await;
    assert_eq!(world.says("Server", "gantry").await.0, "True");
    world.stop_controllers();
    let over = json!({ "podSpec": { "nodeSelector": { "disk": "ssd" } } });
    world.change("Server", "gantry", over).await;
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await, ("False".into(), "Progressing".into()));
    world.start_controllers();
    world.rest().await;
    assert_eq!(world.says("Server", "gantry").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_server_says_who_is_missing() {
    let world = settled(1).await;
    let says = async || world.says("Server", "gantry").await.1;
    assert_eq!(says().await, "ServerReady");
    world.set_agent(false);
    world.rest().await;
    assert_eq!(says().await, "ReplicasJoining");
    world.set_agent(true);
    world.rest().await;
    assert_eq!(says().await, "ServerReady");
    world.kill_scheduler();
    world.rest().await;
    assert_eq!(says().await, "SchedulerUnreachable");
    world.start_scheduler();
    world.rest().await;
    assert_eq!(says().await, "ServerReady");
}
