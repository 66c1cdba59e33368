//! A broker, worker processes, and records to and from topics.

mod broker;
mod flow;
mod worker;

pub(crate) use broker::{Broker, free_port};
pub(crate) use flow::{Flow, Input, Output, distinct};
pub(crate) use worker::{Worker, example};

use std::{
    process::Command,
    time::{Duration, Instant},
};

/// For conditions that must become true.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// Waits for a condition, by polling.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether every case runs, and not only some: `cargo xtask kafka --long`.
pub(crate) fn is_long() -> bool {
    std::env::var_os("GANTRY_TEST_KAFKA_LONG").is_some()
}

/// The program with the feature `kafka`.
pub(crate) fn gantry() -> Command {
    let program = std::env::var_os("GANTRY_TEST_PROGRAM");
    Command::new(program.expect("GANTRY_TEST_PROGRAM is not set: run these tests by `cargo xtask kafka`"))
}
