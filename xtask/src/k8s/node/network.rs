//! The node's network: a local address, and a firewall around the pods.

use super::{
    super::{
        control_plane::{PODS, SERVICES, succeeds},
        directory::Directory,
    },
    call,
    node_id::ALL,
};
use crate::{Failure, Unavailable};
use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

const BRIDGE: &str = "gantry-node";
const FIREWALL: &str = "gantry_wall";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// File with the previous value of `ip_forward`.
const SAVED_FORWARDING: &str = "ip_forward";

/// Creates bridge, routes and firewall.
pub(super) fn set_up(directory: &Directory) -> Result<(), Failure> {
    if succeeds(Command::new("nft").args(["list", "table", "ip", "kube-proxy"])) {
        return Err(Unavailable(
            "another kube-proxy's table is in this machine's firewall: its Services and ours would be one; if none \
             runs any more, `nft delete table ip kube-proxy` removes it"
                .into(),
        )
        .into());
    }
    fs::write(directory.join(SAVED_FORWARDING), fs::read(FORWARDING)?)?;
    if !succeeds(Command::new("ip").args(["link", "show", BRIDGE])) {
        call("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
        for node in ALL {
            call("ip", &["address", "add", &format!("{}/32", node.address()), "dev", BRIDGE])?;
        }
    }
    call("ip", &["link", "set", BRIDGE, "up"])?;
    // Packets for our addresses must not use the default route.
    for range in [SERVICES, PODS] {
        call("ip", &["route", "replace", range, "dev", BRIDGE])?;
    }
    create_firewall()?;
    fs::write(FORWARDING, "1").map_err(|e| format!("{FORWARDING}: {e}"))?;
    Ok(())
}

/// Pods reach pods and this machine; nothing is forwarded to or from outside.
fn create_firewall() -> Result<(), Failure> {
    let rules = format!(
        "table inet {FIREWALL} {{\n  chain forward {{\n    type filter hook forward priority -10; policy accept;\n    \
         ip saddr {PODS} ip daddr != {PODS} drop\n    ip daddr {PODS} ip saddr != {PODS} drop\n  }}\n}}\n"
    );
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(rules.as_bytes())?;
    }
    if nft.wait()?.success() { Ok(()) } else { Err("nft does not take the wall around the pods".into()) }
}

/// Removes everything created by [`set_up`] and kube-proxy.
pub(super) fn take_down(directory: &Directory) -> Result<(), Failure> {
    for (family, table) in [("inet", FIREWALL), ("ip", "kube-proxy"), ("ip6", "kube-proxy")] {
        if succeeds(Command::new("nft").args(["list", "table", family, table])) {
            call("nft", &["delete", "table", family, table])?;
        }
    }
    if succeeds(Command::new("ip").args(["link", "show", BRIDGE])) {
        // Removes its routes too.
        call("ip", &["link", "delete", BRIDGE])?;
    }
    if let Ok(before) = fs::read(directory.join(SAVED_FORWARDING)) {
        fs::write(FORWARDING, before).map_err(|e| format!("{FORWARDING}: {e}"))?;
    }
    Ok(())
}
