//! The node's network: an address that only this machine has, and a wall around the pods.

use super::{
    super::{
        control_plane::{PODS, SERVICES, succeeds},
        directory::Directory,
    },
    call,
    which::ALL,
};
use crate::{Failure, NotHere};
use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

const BRIDGE: &str = "gantry-node";
const WALL: &str = "gantry_wall";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// What forwarding was before.
const BEFORE: &str = "ip_forward";

/// Makes the bridge, the routes and the wall.
pub(super) fn set_up(directory: &Directory) -> Result<(), Failure> {
    if succeeds(Command::new("nft").args(["list", "table", "ip", "kube-proxy"])) {
        return Err(NotHere(
            "another kube-proxy's table is in this machine's firewall: its Services and ours would be one; if none \
             runs any more, `nft delete table ip kube-proxy` removes it"
                .into(),
        )
        .into());
    }
    fs::write(directory.join(BEFORE), fs::read(FORWARDING)?)?;
    if !succeeds(Command::new("ip").args(["link", "show", BRIDGE])) {
        call("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
        for node in ALL {
            call("ip", &["address", "add", &format!("{}/32", node.address()), "dev", BRIDGE])?;
        }
    }
    call("ip", &["link", "set", BRIDGE, "up"])?;
    // No packet for an address of ours can take the default route.
    for range in [SERVICES, PODS] {
        call("ip", &["route", "replace", range, "dev", BRIDGE])?;
    }
    build_wall()?;
    fs::write(FORWARDING, "1").map_err(|e| format!("{FORWARDING}: {e}"))?;
    Ok(())
}

/// Pods talk to pods and to this machine; nothing is passed on between them and the world.
fn build_wall() -> Result<(), Failure> {
    let rules = format!(
        "table inet {WALL} {{\n  chain forward {{\n    type filter hook forward priority -10; policy accept;\n    \
         ip saddr {PODS} ip daddr != {PODS} drop\n    ip daddr {PODS} ip saddr != {PODS} drop\n  }}\n}}\n"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    if nft.wait()?.success() { Ok(()) } else { Err("nft does not take the wall around the pods".into()) }
}

/// Removes everything that [`set_up`] and kube-proxy made.
pub(super) fn take_down(directory: &Directory) -> Result<(), Failure> {
    for (family, table) in [("inet", WALL), ("ip", "kube-proxy"), ("ip6", "kube-proxy")] {
        if succeeds(Command::new("nft").args(["list", "table", family, table])) {
            call("nft", &["delete", "table", family, table])?;
        }
    }
    if succeeds(Command::new("ip").args(["link", "show", BRIDGE])) {
        // Its routes go with it.
        call("ip", &["link", "delete", BRIDGE])?;
    }
    if let Ok(before) = fs::read(directory.join(BEFORE)) {
        fs::write(FORWARDING, before).map_err(|e| format!("{FORWARDING}: {e}"))?;
    }
    Ok(())
}
