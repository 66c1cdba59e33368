//! The image runs as non-root, on a read-only root, without capabilities.

use super::{harness::Harness, pod::pod};
use crate::Failure;

pub(super) fn run(harness: &Harness) -> Result<(), Failure> {
    harness.apply(pod("version", harness.image(), &["version"]))?;
    let phase = ["get", "pod/version", "--output=jsonpath={.status.phase}"];
    harness.until("the pod to end", 60, &phase, |phase| phase == "Succeeded" || phase == "Failed")?;
    let output = harness.kubectl(&["logs", "pod/version"])?;
    if output.contains(env!("CARGO_PKG_VERSION")) {
        return Ok(());
    }
    Err(format!("`gantry version` printed {output:?}, expected {}", env!("CARGO_PKG_VERSION")).into())
}
