//! What operators of earlier versions made is left as it is. `upgrades/VERSION.json` holds everything that was in a
//! namespace where that version was at work, as a real API server had it, with the owners of every field;
//! `tests/cluster/test_upgrade.py` records it.

use crate::world::World;
use gantry_operator::Settings;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// The namespace that the objects were recorded in; the configurations are there, too.
const RECORDED: &str = "recorded";

fn recordings() -> Vec<(String, Vec<Value>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/upgrades");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let read = |path: PathBuf| {
        let objects = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        (path.file_stem().unwrap().to_string_lossy().into_owned(), objects)
    };
    files.map(read).collect()
}

/// Puts everything back as the version left it.
fn restore(world: &World, objects: &[Value]) {
    world.kube.with(|state| {
        for object in objects {
            assert!(state.restore_object(object), "{} is not known", object["kind"]);
        }
    });
}

/// A world as the version left it, in which nothing happens but what the operator does. The scheduler goes on when an
/// operator is replaced: what it had been told, it knows.
async fn restored(objects: &[Value]) -> World {
    let world = World::new();
    world.stop_controllers();
    world.kube.with(|state| {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RECORDED}});
        state.seed_object(&namespace, "2026-01-01T00:00:00Z".parse().unwrap());
    });
    restore(&world, objects);
    world.start_operator_with(settings("gantry:0.1.0"));
    world.rest().await;
    world.kill_operator();
    restore(&world, objects);
    world
}

fn settings(image: &str) -> Settings {
    Settings { namespace: RECORDED.into(), image: image.into(), ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_version_made_is_not_written_again() {
    let recordings = recordings();
    assert!(!recordings.is_empty());
    for (version, objects) in recordings {
        for kind in [
            "Model",
            "Server",
            "SeldonRuntime",
            "StatefulSet",
            "Deployment",
            "Service",
            "PodDisruptionBudget",
        ] {
            assert!(objects.iter().any(|object| object["kind"] == kind), "{version} has no {kind}");
        }
        let world = restored(&objects).await;
        let before = world.asked().len();
        world.start_operator_with(settings("gantry:0.1.0"));
        world.rest().await;
        let asked = world.asked().split_off(before);
        assert!(
            asked.is_empty(),
            "an upgrade from {version} writes to {} objects that are as they should be:\n{}\n\nWhere a pod template is \
             among them, every upgrade replaces those pods. If that is not meant, make today's objects as they were. If it \
             is, say so in the release notes, and record what today's version makes: GANTRY_RECORD_UPGRADE=1 cargo xtask \
             test --only-cluster -- recorded",
            asked.len(),
            asked.join("\n")
        );
    }
}

/// The test above can fail.
#[tokio::test(start_paused = true)]
async fn another_image_is_seen_in_what_an_earlier_version_made() {
    for (version, objects) in recordings() {
        let world = restored(&objects).await;
        let before = world.asked().len();
        world.start_operator_with(settings("gantry:0.9.9"));
        world.rest().await;
        let asked = world.asked().split_off(before);
        assert!(asked.iter().any(|line| line.contains("statefulsets.apps")), "{version}: {asked:#?}");
    }
}
