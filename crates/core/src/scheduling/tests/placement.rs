//! Choice of the server.

use super::*;

/// `iris` on `a`, which has one replica; then `b` joins with more replicas and more memory.
fn loaded_on_the_smaller_server() -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("a", 0), 100);
    harness.load(definition("iris", 1, 1)).unwrap();
    harness.quiesce();
    harness.join(&id("b", 0), 1000);
    harness.join(&id("b", 1), 1000);
    harness.quiesce();
    harness
}

fn server_of(harness: &Harness) -> String {
    harness.state.models()["iris"].latest().unwrap().server.as_deref().unwrap_or_default().to_owned()
}

fn scaled(spec: u8, replicas: u32, min: u32) -> Definition {
    Definition { scaling: Scaling { replicas, min, max: 0 }, ..definition("iris", spec, replicas) }
}

#[test]
fn version_moves_to_a_server_with_enough_replicas() {
    let mut harness = loaded_on_the_smaller_server();
    assert_eq!(server_of(&harness), "a");
    harness.load(scaled(1, 2, 0)).unwrap();
    harness.quiesce();
    assert_eq!(server_of(&harness), "b");
}

#[test]
fn version_stays_on_its_server_when_min_replicas_fit() {
    let mut harness = loaded_on_the_smaller_server();
    harness.load(scaled(1, 2, 1)).unwrap();
    harness.quiesce();
    assert_eq!(server_of(&harness), "a");
}

#[test]
fn version_stays_on_its_server_when_no_server_is_large_enough() {
    let mut harness = loaded_on_the_smaller_server();
    harness.load(scaled(1, 9, 0)).unwrap();
    harness.quiesce();
    assert_eq!(server_of(&harness), "a");
}

#[test]
fn new_version_prefers_the_server_of_the_old_one() {
    let mut harness = loaded_on_the_smaller_server();
    harness.load(definition("iris", 2, 1)).unwrap();
    harness.quiesce();
    assert_eq!(server_of(&harness), "a");
}
