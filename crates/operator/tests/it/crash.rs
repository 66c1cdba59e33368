//! The operator dies after each of its writes in turn; what is there in the end is the same, and nothing came or went
//! twice.

use crate::{
    scenario::{self, Day},
    world::{NAMESPACE, World},
};
use serde_json::Value;

/// What an object says of being ready, and whether that is of what it asks for now.
fn ready(object: Option<Value>) -> (String, bool) {
    let object = object.unwrap();
    let conditions = object["status"]["conditions"].as_array().unwrap().clone();
    let said = conditions.iter().find(|c| c["type"] == "Ready").unwrap().clone();
    let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    (said["status"].as_str().unwrap().to_owned(), current)
}

async fn begun() -> World {
    let world = World::prepared().await;
    world.start_operator();
    world
}

#[tokio::test(start_paused = true)]
async fn a_day_of_models_goes_as_it_should() {
    let world = begun().await;
    let day = Day::Models;
    for number in 0..day.steps() {
        day.step(&world, number).await;
        world.rest().await;
        match number {
            1 => assert_eq!(ready(world.get("Model", "lost").await), ("False".into(), true)),
            2 => assert_eq!(world.scheduled().await["iris"], "gs://models/better"),
            3 => assert_eq!(ready(world.get("Model", "wine").await), ("True".into(), true)),
            4 => assert!(
                world.get("Model", "iris").await.is_none() && !world.scheduled().await.contains_key("iris")
            ),
            _ => assert_eq!(ready(world.get("Model", "iris").await), ("True".into(), true)),
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
    let world = begun().await;
    let day = Day::Workloads;
    for number in 0..day.steps() {
        day.step(&world, number).await;
        world.rest().await;
        let there = world.picture().await;
        let at = |key: &str, pointer: &str| there.get(key).and_then(|o| o.pointer(pointer)).cloned();
        let set = "statefulsets.apps ml/gantry";
        match number {
            0 => {
                assert_eq!(ready(world.get("SeldonRuntime", "seldon").await), ("True".into(), true));
                assert!(there.contains_key("statefulsets.apps ml/seldon-scheduler"), "{:?}", there.keys());
                assert!(there.contains_key("deployments.apps ml/seldon-gateway"));
            }
            1 => {
                assert_eq!(at(set, "/spec/replicas"), Some(2.into()));
                assert!(there.contains_key("services ml/gantry-1"));
                // One agent of two has joined.
                assert_eq!(ready(world.get("Server", "gantry").await), ("False".into(), true));
            }
            2 => {
                assert!(!there.contains_key("services ml/gantry-1"), "{:?}", there.keys());
                assert_eq!(ready(world.get("Server", "gantry").await), ("True".into(), true));
            }
            3 => assert_eq!(at(set, "/spec/template/spec/containers/0/image"), Some("gantry:2".into())),
            4 => assert!(!there.contains_key("deployments.apps ml/seldon-gateway")),
            5 => assert_eq!(at("deployments.apps ml/seldon-gateway", "/spec/replicas"), Some(2.into())),
            6 => assert!(!there.contains_key(set) && !there.contains_key("services ml/gantry-0")),
            _ => assert!(world.get("SeldonRuntime", "seldon").await.is_none()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_changes_nothing_in_the_end() {
    for day in Day::ALL {
        let reference = begun().await;
        day.live(&reference).await;
        let writes = reference.writes();
        assert!(writes > 10, "only {writes} writes: the day was too quiet to learn anything from");
        let (picture, comings) = (reference.picture().await, reference.comings());
        drop(reference);
        for nth in 1..=writes {
            let world = begun().await;
            world.crash_after(nth as u64);
            day.live(&world).await;
            let lines = || world.kube.trace().lines().join("\n");
            assert_eq!(world.picture().await, picture, "{day:?}, a crash at write {nth}:\n{}", lines());
            assert_eq!(world.comings(), comings, "{day:?}, a crash at write {nth}:\n{}", lines());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_starts_anew_writes_nothing() {
    let world = begun().await;
    // The last steps take the workloads away: nothing would be left to look at.
    for number in 0..Day::Workloads.steps() - 2 {
        Day::Workloads.step(&world, number).await;
    }
    Day::Models.live(&world).await;
    let writes = world.writes();
    for _ in 0..3 {
        world.kill_operator();
        world.start_operator();
        world.rest().await;
    }
    // An hour of nothing.
    tokio::time::sleep(std::time::Duration::from_hours(1)).await;
    assert_eq!(world.writes(), writes, "{}", world.kube.trace().lines().join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_scheduler_that_dies_at_any_step_changes_nothing_in_the_end() {
    for day in Day::ALL {
        let reference = begun().await;
        day.live(&reference).await;
        let picture = reference.picture().await;
        drop(reference);
        for at in 0..day.steps() {
            let world = begun().await;
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
            }
            assert_eq!(world.picture().await, picture, "{day:?}, the scheduler died at step {at}");
        }
    }
}

/// Whatever happens while nobody looks, what is there counts, not what was.
#[tokio::test(start_paused = true)]
async fn what_was_made_anew_or_taken_away_behind_its_back_is_seen() {
    let world = begun().await;
    Day::Models.live(&world).await;
    assert_eq!(world.scheduled().await["iris"], "gs://models/again");
    world.kill_operator();
    for name in ["iris", "wine"] {
        world.release("Model", name).await;
        world.delete("Model", name).await;
    }
    // The same name and the same generation, and another model.
    world.create(NAMESPACE, "Model", "iris", scenario::model("another")).await;
    world.start_operator();
    world.rest().await;
    let scheduled = world.scheduled().await;
    assert_eq!(scheduled.get("iris").map(String::as_str), Some("gs://models/another"));
    assert_eq!(scheduled.get("wine"), None);
    assert_eq!(ready(world.get("Model", "iris").await), ("True".into(), true));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_model_does_not_wait_for_ever_for_a_scheduler() {
    let world = begun().await;
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
