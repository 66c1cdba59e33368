//! The image runs as it is meant to: as nobody, on a read-only root, without a capability.

use super::{pod::pod, world::World};
use crate::Failure;

pub(super) fn run(world: &World) -> Result<(), Failure> {
    world.apply(pod("version", world.image(), &["version"]))?;
    let phase = ["get", "pod/version", "--output=jsonpath={.status.phase}"];
    world.until("the pod's end", 60, &phase, |said| said == "Succeeded" || said == "Failed")?;
    let said = world.kubectl(&["logs", "pod/version"])?;
    if said.contains(env!("CARGO_PKG_VERSION")) {
        return Ok(());
    }
    Err(format!("`gantry version` says {said:?}, and not {}", env!("CARGO_PKG_VERSION")).into())
}
