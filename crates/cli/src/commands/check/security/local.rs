//! Ports of the processes of this machine, such as those of `gantry up`: which of them the network reaches.

use super::super::report::Report;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// What a caller may do on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Change models, without a certificate.
    All,
    /// What the role of its certificate allows.
    Roles,
    /// Call models.
    Inference,
    /// Read metrics.
    Read,
}

struct Port {
    number: u16,
    name: &'static str,
    access: Access,
    remedy: &'static str,
}

const fn port(number: u16, name: &'static str, access: Access, remedy: &'static str) -> Port {
    Port { number, name, access, remedy }
}

/// The default ports, as in docs/security.md.
const PORTS: [Port; 13] = [
    port(
        9004,
        "scheduler, plaintext",
        Access::All,
        "remove --allow-plaintext, or use --tls-cert (docs/bare-metal.md)",
    ),
    port(
        9005,
        "agents, plaintext",
        Access::All,
        "remove --allow-plaintext, or use --tls-cert (docs/bare-metal.md)",
    ),
    port(9044, "scheduler, TLS", Access::Roles, ""),
    port(9055, "agents, TLS", Access::Roles, ""),
    port(9000, "gateway inference", Access::Inference, "docs/inference.md has API keys and tokens"),
    port(9003, "gateway admin", Access::Read, "remove --admin-host"),
    port(9999, "scheduler health", Access::Read, "remove --health-host"),
    port(4000, "operator admin", Access::Read, "remove --admin-host"),
    port(9006, "agent metrics", Access::Read, "remove --host of the agent"),
    port(9007, "agent drain", Access::All, "remove --host of the agent, or restrict it to its gateways"),
    port(9001, "agent proxy, REST", Access::Inference, "restrict it to the gateways"),
    port(9501, "agent proxy, gRPC", Access::Inference, "restrict it to the gateways"),
    port(8080, "runtime", Access::All, "remove --host of the runtime, or restrict it to its agent"),
];

pub(crate) fn run(report: &mut Report) {
    let mut listening = BTreeSet::new();
    let mut is_known = false;
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        if let Ok(text) = std::fs::read_to_string(file) {
            is_known = true;
            listening.extend(sockets(&text));
        }
    }
    if !is_known {
        return report.note("listening ports", "unknown", "only Linux lists them in /proc/net/tcp");
    }
    check(&listening, report);
}

fn check(listening: &BTreeSet<(u16, IpAddr)>, report: &mut Report) {
    let mut found = false;
    for Port { number, name, access, remedy } in PORTS {
        let at: Vec<IpAddr> =
            listening.iter().filter(|(port, _)| *port == number).map(|(_, address)| *address).collect();
        if at.is_empty() {
            continue;
        }
        found = true;
        let what = format!("{name} {number}");
        let Some(remote) = at.iter().find(|address| !is_loopback(address)) else {
            report.ok(&what, "this machine only");
            continue;
        };
        match access {
            Access::All => report.fail(&what, &format!("open on {remote}: all rights"), remedy),
            Access::Roles => report.ok(&what, &format!("open on {remote}, by role")),
            Access::Inference => report.note(&what, &format!("inference open on {remote}"), remedy),
            Access::Read => report.note(&what, &format!("metrics open on {remote}"), remedy),
        }
    }
    if !found {
        report.note("Gantry's default ports", "none listens", "");
    }
}

fn is_loopback(address: &IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Listening sockets of `/proc/net/tcp` and `tcp6`.
fn sockets(text: &str) -> impl Iterator<Item = (u16, IpAddr)> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == "0A").then_some((port, address_of(address)?))
    })
}

/// Words of 32 bits in the order of the machine, which is little-endian on all supported ones.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::swap_bytes);
    match text.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let all = words.iter().fold(0_u128, |all, word| (all << 32) | u128::from(*word));
            Some(IpAddr::V6(Ipv6Addr::from(all)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue\n\
        0: 0100007F:232C 00000000:0000 0A 0\n\
        1: 00000000:2328 00000000:0000 0A 0\n\
        2: 0100007F:2329 0100007F:9999 01 0\n";
    const TCP6: &str = "  sl  local_address\n\
        0: 00000000000000000000000001000000:232D 00000000000000000000000000000000:0000 0A 0\n\
        1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0\n\
        2: 0000000000000000FFFF00000100007F:232F 00000000000000000000000000000000:0000 0A 0\n\
        damaged\n";

    #[test]
    fn listening_sockets_are_read() {
        let found: Vec<String> =
            sockets(TCP).chain(sockets(TCP6)).map(|(port, address)| format!("{address} {port}")).collect();
        assert_eq!(found, ["127.0.0.1 9004", "0.0.0.0 9000", "::1 9005", ":: 8080", "::ffff:127.0.0.1 9007"]);
    }

    #[test]
    fn ports_beyond_loopback_are_reported_with_what_they_allow() {
        let mut report = Report::quiet();
        check(&sockets(TCP).chain(sockets(TCP6)).collect(), &mut report);
        assert_eq!(report.failures(), 1);
        insta::assert_snapshot!("security-local", report.text());
    }

    #[test]
    fn exposed_plaintext_scheduler_fails() {
        let mut report = Report::quiet();
        check(
            &BTreeSet::from([(9004, IpAddr::from([0, 0, 0, 0])), (9044, IpAddr::from([10, 0, 0, 1]))]),
            &mut report,
        );
        assert_eq!(report.failures(), 1, "{}", report.text());
        assert!(report.text().contains("remove --allow-plaintext"), "{}", report.text());
    }
}
