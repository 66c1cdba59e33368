//! An upgrade does not write to objects created by earlier versions, except to those listed. `upgrades/VERSION.json` contains all objects of a
//! namespace as that version left them on a real API server, with managed fields; recorded by
//! `tests/cluster/test_upgrade.py`.

use crate::harness::Harness;
use gantry_operator::Settings;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// Versions whose Services have other labels and port names. Their change restarts nothing.
const SERVICES_CHANGE_AFTER: [&str; 1] = ["0.1.0"];

/// Versions that did not run pipelines and experiments: both get their finalizers.
const FINALIZERS_ADDED_AFTER: [&str; 1] = ["0.1.0"];

/// Namespace of the recorded objects and configurations.
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

fn restore(harness: &Harness, objects: &[Value]) {
    harness.kube.with(|state| {
        for object in objects {
            assert!(state.restore_object(object), "unknown kind {}", object["kind"]);
        }
    });
}

/// The cluster as the version left it, without Kubernetes controllers. The scheduler keeps its state during an upgrade.
async fn restored(objects: &[Value]) -> Harness {
    let harness = Harness::new();
    harness.stop_controllers();
    harness.kube.with(|state| {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RECORDED}});
        state.seed_object(&namespace, "2026-01-01T00:00:00Z".parse().unwrap());
    });
    restore(&harness, objects);
    harness.start_operator_with(settings("gantry:0.1.0"));
    harness.settle().await;
    harness.kill_operator();
    restore(&harness, objects);
    harness
}

fn settings(image: &str) -> Settings {
    Settings { namespace: RECORDED.into(), image: image.into(), ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn upgrade_does_not_write_to_existing_objects() {
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
        let harness = restored(&objects).await;
        let before = harness.write_requests().len();
        harness.start_operator_with(settings("gantry:0.1.0"));
        harness.settle().await;
        // The wording of conditions may change: a status write restarts nothing.
        let services = SERVICES_CHANGE_AFTER.contains(&version.as_str());
        let finalizers = FINALIZERS_ADDED_AFTER.contains(&version.as_str());
        let is_object_write = |line: &String| {
            let runs_now = line.contains(" pipelines.") || line.contains(" experiments.");
            let is_intended = (services && line.contains(" services ")) || (finalizers && runs_now);
            !line.contains("/status ") && !line.contains("events.") && !is_intended
        };
        let writes: Vec<String> =
            harness.write_requests().split_off(before).into_iter().filter(is_object_write).collect();
        assert!(
            writes.is_empty(),
            "an upgrade from {version} writes to {} unchanged objects:\n{}\n\nA changed pod template restarts pods on every \
             upgrade. If unintended, keep the objects as they were. Otherwise announce it in the release notes and record \
             the new objects: GANTRY_RECORD_UPGRADE=1 cargo xtask test --only-cluster -- recorded",
            writes.len(),
            writes.join("\n")
        );
    }
}

/// Proves that the test above can fail.
#[tokio::test(start_paused = true)]
async fn upgrade_test_detects_a_changed_image() {
    for (version, objects) in recordings() {
        let harness = restored(&objects).await;
        let before = harness.write_requests().len();
        harness.start_operator_with(settings("gantry:0.9.9"));
        harness.settle().await;
        let write_requests = harness.write_requests().split_off(before);
        assert!(
            write_requests.iter().any(|line| line.contains("statefulsets.apps")),
            "{version}: {write_requests:#?}"
        );
    }
}
