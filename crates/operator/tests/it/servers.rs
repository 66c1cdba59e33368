//! Servers in one process with the API server and the scheduler: who has the replicas, what is refused, what is believed.

use crate::{
    scenario::{self, settled},
    world::{CONFIGS, NAMESPACE, World},
};
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
