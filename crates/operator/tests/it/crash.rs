//! The operator dies after each of its writes in turn; what is there in the end is the same, and nothing came or went
//! twice.

use crate::{
    scenario::{self, Day},
    world::{NAMESPACE, World},
};

fn yes() -> String {
    "True".into()
}

#[tokio::test(start_paused = true)]
async fn a_day_of_models_goes_as_it_should() {
    let world = World::begun().await;
    let day = Day::Models;
    for number in 0..day.steps() {
        day.step(&world, number).await;
        world.rest().await;
        match number {
            0 => {
                assert_eq!(world.says("Model", "wine").await, (yes(), "ModelAvailable".into()));
                let held = world.get("Model", "wine").await.unwrap()["metadata"]["finalizers"].clone();
                assert_eq!(held, serde_json::json!(["seldon.model.finalizer"]));
            }
            1 => assert_eq!(world.says("Model", "lost").await.0, "False"),
            2 => assert_eq!(world.scheduled().await["iris"], "gs://models/better"),
            3 => assert_eq!(world.says("Model", "wine").await.0, "True"),
            4 => assert!(
                world.get("Model", "iris").await.is_none() && !world.scheduled().await.contains_key("iris")
            ),
            _ => assert_eq!(world.says("Model", "iris").await.0, "True"),
        }
    }
    assert!(world.get("Model", "lost").await.is_none());
    let scheduled = world.scheduled().await;
    let asked: Vec<(&str, &str)> =
        scheduled.iter().map(|(name, uri)| (name.as_str(), uri.as_str())).collect();
    assert_eq!(asked, [("iris", "gs://models/again"), ("wine", "gs://models/wine")]);
}

#[tokio::test(start_paused = true)]
async fn a_day_of_workloads_goes_as_it_should() {
    let world = World::begun().await;
    let day = Day::Workloads;
    let mut settings = None;
    for number in 0..day.steps() {
        day.step(&world, number).await;
        world.rest().await;
        let set = |pointer: &str| world.field("statefulsets.apps", "gantry", pointer);
        let gateway = |pointer: &str| world.field("deployments.apps", "seldon-gateway", pointer);
        let is_there = |kind: &str, name: &str| world.live(kind, name).is_some();
        let first = "/spec/template/spec/containers/0";
        let reads = "/spec/template/metadata/annotations/gantry.dev~1config-maps";
        match number {
            0 => {
                assert_eq!(world.says("SeldonRuntime", "seldon").await, (yes(), "RuntimeReady".into()));
                assert!(is_there("statefulsets.apps", "seldon-scheduler"));
                settings = gateway(reads);
                assert!(settings.is_some(), "the gateway reads a setting");
            }
            1 => {
                assert_eq!(set("/spec/replicas"), Some(2.into()));
                assert_eq!(set("/spec/template/spec/nodeSelector/disk"), Some("ssd".into()));
                assert_eq!(
                    set(&format!("{first}/lifecycle/preStop/httpGet/path")),
                    Some("/terminate".into())
                );
                assert!(is_there("services", "gantry-1"));
                assert_eq!(world.expected().await["gantry"], "2 for \"operator:ml\"");
                // One agent of two has joined.
                assert_eq!(world.says("Server", "gantry").await, ("False".into(), "ReplicasJoining".into()));
            }
            2 => {
                assert!(!is_there("services", "gantry-1"));
                assert_eq!(world.says("Server", "gantry").await, (yes(), "ServerReady".into()));
            }
            3 => {
                assert_eq!(set(&format!("{first}/image")), Some("gantry:2".into()));
                assert_eq!(set(&format!("{first}/env")), None, "what the configuration no longer says");
            }
            4 => assert!(
                !is_there("deployments.apps", "seldon-gateway") && !is_there("services", "seldon-mesh")
            ),
            5 => {
                assert_eq!(gateway("/spec/replicas"), Some(2.into()));
                assert_ne!(gateway(reads), settings, "a changed setting replaces the pods that read it");
            }
            6 => {
                assert_eq!(world.says("Server", "gantry").await, (yes(), "ServerReady".into()));
                assert_eq!(set("/spec/template/spec/nodeSelector"), None);
            }
            7 => {
                assert!(!is_there("statefulsets.apps", "gantry") && !is_there("services", "gantry-0"));
                assert!(world.expected().await["gantry"].starts_with("0 "), "{:?}", world.expected().await);
            }
            _ => assert!(world.get("SeldonRuntime", "seldon").await.is_none()),
        }
    }
}

async fn a_crash_after_any_write_changes_nothing(day: Day) {
    let reference = World::begun().await;
    let course = day.live(&reference).await;
    drop(reference);
    assert!(
        course.writes > 10,
        "only {} writes: the day was too quiet to learn anything from",
        course.writes
    );
    for nth in 1..=course.writes {
        let world = World::begun().await;
        world.crash_after(nth as u64);
        day.relive(&world, &course, &format!("a crash at write {nth}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_for_models_changes_nothing() {
    a_crash_after_any_write_changes_nothing(Day::Models).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_for_workloads_changes_nothing() {
    a_crash_after_any_write_changes_nothing(Day::Workloads).await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_dies_at_any_step_changes_nothing_in_the_end() {
    for day in Day::ALL {
        let reference = World::begun().await;
        let course = day.live(&reference).await;
        drop(reference);
        for at in 0..day.steps() {
            let world = World::begun().await;
            let what = format!("the scheduler died at step {at}");
            for number in 0..day.steps() {
                if number == at {
                    world.kill_scheduler();
                }
                day.step(&world, number).await;
                world.rest().await;
                if number == at {
                    world.start_scheduler();
                    world.rest().await;
                }
                day.compare(&world, &course, number, &what).await;
            }
        }
    }
}

/// Whatever happens while nobody looks, what is there counts, not what was.
#[tokio::test(start_paused = true)]
async fn what_was_made_anew_or_taken_away_behind_its_back_is_seen() {
    let world = World::begun().await;
    Day::Models.live(&world).await;
    assert_eq!(world.scheduled().await["iris"], "gs://models/again");
    world.kill_operator();
    for name in ["iris", "wine"] {
        world.hold("Model", name, &[]).await;
        world.delete("Model", name).await;
    }
    // The same name and the same generation, and another model.
    world.create(NAMESPACE, "Model", "iris", scenario::model("another")).await;
    world.start_operator();
    world.rest().await;
    let scheduled = world.scheduled().await;
    assert_eq!(scheduled.get("iris").map(String::as_str), Some("gs://models/another"));
    assert_eq!(scheduled.get("wine"), None);
    assert_eq!(world.says("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_knows_which_generation_it_serves() {
    let world = World::begun().await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    assert_eq!(world.generation("iris").await, Some(1));
    // Somebody changes it, and changes it back.
    world.kill_operator();
    world.change("Model", "iris", scenario::model("another")).await;
    world.change("Model", "iris", scenario::model("iris")).await;
    world.start_operator();
    world.rest().await;
    assert_eq!(world.generation("iris").await, Some(3));
    assert_eq!(world.says("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_comes_back_is_told_what_happened_meanwhile() {
    let world = World::begun().await;
    world.kill_scheduler();
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await, ("Unknown".into(), "SchedulerUnreachable".into()));
    world.start_scheduler();
    world.rest().await;
    assert_eq!(world.says("Model", "iris").await.0, "True");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_went_behind_its_back_is_not_waited_for() {
    let world = scenario::settled(1).await;
    assert_eq!(world.expected().await["gantry"], "1 for \"operator:ml\"");
    world.kill_operator();
    world.delete("Server", "gantry").await;
    world.rest().await;
    world.start_operator();
    world.rest().await;
    assert!(world.expected().await["gantry"].starts_with("0 "), "{:?}", world.expected().await);
}

/// The answer to a write holds what others wrote before it. The watch brings that later, when it is nothing new any more.
#[tokio::test(start_paused = true)]
async fn what_the_answer_to_a_write_brings_is_not_overlooked() {
    let world = World::begun().await;
    world.create(NAMESPACE, "Model", "iris", scenario::model("iris")).await;
    world.rest().await;
    world.kube.freeze("models.mlops.seldon.io");
    world.delete("Model", "iris").await;
    // Something is to be said of it, which is answered with the deleted object.
    world.set_agent(false);
    world.rest().await;
    world.kube.release("models.mlops.seldon.io");
    world.rest().await;
    assert!(!world.scheduled().await.contains_key("iris"), "{:#?}", world.asked());
    world.set_agent(true);
    world.rest().await;
    assert!(world.get("Model", "iris").await.is_none(), "{:#?}", world.asked());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_model_does_not_wait_for_ever_for_a_scheduler() {
    let world = World::begun().await;
    Day::Models.live(&world).await;
    world.kill_scheduler();
    world.delete("Model", "iris").await;
    world.rest().await;
    assert!(world.get("Model", "iris").await.is_none());
    // What it could not be told then it is told now.
    world.start_scheduler();
    world.rest().await;
    assert_eq!(world.scheduled().await.keys().collect::<Vec<_>>(), ["wine"]);
}
