//! Which network addresses a download may connect to.
//!
//! The check runs on resolved addresses, immediately before connecting, on every hop. Names are never trusted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Class of a denied address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// An address where clouds serve instance credentials.
    Metadata,
    /// `169.254.0.0/16` and `fe80::/10`.
    LinkLocal,
    /// Private, shared and unique-local ranges.
    Private,
    /// `0.0.0.0/8` and `::`.
    Unspecified,
    /// Multicast and broadcast.
    Multicast,
    /// Documentation, benchmarking and other ranges that never appear on the public network.
    Reserved,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "a loopback address",
            Self::Metadata => "a cloud metadata address",
            Self::LinkLocal => "a link-local address",
            Self::Private => "a private address",
            Self::Unspecified => "an unspecified address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// An address that the policy does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{address} is {class}, and downloads may not reach it")]
pub struct Denied {
    /// The resolved address.
    pub address: IpAddr,
    /// Its class.
    pub class: AddressClass,
}

/// An exception to the policy: a network, or a host whose addresses are all allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetRule {
    /// Every address in a network, `10.1.0.0/16`.
    Network {
        /// First address of the network.
        base: IpAddr,
        /// Length of the prefix in bits.
        prefix: u8,
    },
    /// One host by name, or `*.suffix` for every host below a name.
    Host(String),
}

/// A rule that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{rule}` is not a network rule: {why}; write a network (10.1.0.0/16), an address, a host name or *.suffix"
)]
pub struct RuleError {
    rule: String,
    why: &'static str,
}

impl FromStr for NetRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let fail = |why| RuleError { rule: text.to_owned(), why };
        let trimmed = text.trim();
        if let Some((base, prefix)) = trimmed.split_once('/') {
            let base: IpAddr =
                base.parse().map_err(|_| fail("the address before `/` is not an IP address"))?;
            let longest = if base.is_ipv4() { 32 } else { 128 };
            let prefix: u8 = prefix.parse().map_err(|_| fail("the prefix length is not a number"))?;
            if prefix > longest {
                return Err(fail("the prefix is longer than the address"));
            }
            return Ok(Self::Network { base, prefix });
        }
        if let Ok(base) = trimmed.parse::<IpAddr>() {
            return Ok(Self::Network { base, prefix: if base.is_ipv4() { 32 } else { 128 } });
        }
        let name = trimmed.strip_prefix("*.").unwrap_or(trimmed);
        let labels_ok = name.split('.').all(|label| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        });
        if !labels_ok {
            return Err(fail("it is neither an address nor a host name"));
        }
        Ok(Self::Host(trimmed.to_ascii_lowercase()))
    }
}

impl NetRule {
    fn covers_address(&self, address: IpAddr) -> bool {
        let Self::Network { base, prefix } = self else { return false };
        match (base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let shift = 32_u32.saturating_sub(u32::from(*prefix));
                u32::from(*base).checked_shr(shift) == u32::from(address).checked_shr(shift)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let shift = 128_u32.saturating_sub(u32::from(*prefix));
                u128::from(*base).checked_shr(shift) == u128::from(address).checked_shr(shift)
            }
            _ => false,
        }
    }

    fn covers_host(&self, host: &str) -> bool {
        let Self::Host(rule) = self else { return false };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        match rule.strip_prefix('*') {
            Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
            None => host == *rule,
        }
    }
}

/// The addresses that downloads may reach: public ones, and what the rules open.
#[derive(Debug, Clone, Default)]
pub struct NetPolicy {
    allow: Vec<NetRule>,
    loopback: bool,
}

impl NetPolicy {
    /// Public addresses, plus what `allow` opens, plus loopback when `loopback` is set.
    pub fn new(allow: Vec<NetRule>, loopback: bool) -> Self {
        Self { allow, loopback }
    }

    /// Whether this address may be connected to.
    pub fn check(&self, address: IpAddr) -> Result<(), Denied> {
        let effective = embedded_v4(address);
        let Some(class) = classify(effective) else { return Ok(()) };
        let opened = (class == AddressClass::Loopback && self.loopback)
            || self.allow.iter().any(|rule| rule.covers_address(effective) || rule.covers_address(address));
        if opened { Ok(()) } else { Err(Denied { address, class }) }
    }

    /// Whether this address may be connected to on behalf of `host`, which a host rule may open.
    pub fn check_for_host(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
        if self.allow.iter().any(|rule| rule.covers_host(host)) { Ok(()) } else { self.check(address) }
    }
}

/// The IPv4 address that an IPv6 address stands for (mapped, compatible, NAT64, 6to4), or the address itself.
fn embedded_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let [head @ .., hi, lo] = v6.segments();
    let low = |hi: u16, lo: u16| IpAddr::V4(Ipv4Addr::from((u32::from(hi) << 16) | u32::from(lo)));
    match head {
        [0, 0, 0, 0, 0, 0xffff]
        | [0, 0, 0, 0, 0xffff, 0]
        | [0x64, 0xff9b, 0, 0, 0, 0]
        | [0x64, 0xff9b, 1, ..] => low(hi, lo),
        [0, 0, 0, 0, 0, 0] if hi != 0 || lo > 1 => low(hi, lo),
        [0x2002, hi, lo, ..] => low(hi, lo),
        _ => address,
    }
}

/// The class of a denied address; `None` for a public one.
fn classify(address: IpAddr) -> Option<AddressClass> {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(address: Ipv4Addr) -> Option<AddressClass> {
    use AddressClass::{LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Unspecified};
    let [a, b, c, d] = address.octets();
    match (a, b, c, d) {
        (0, ..) => Some(Unspecified),
        (127, ..) => Some(Loopback),
        // Alibaba serves metadata inside the shared range; Azure's wire server has a public-looking address.
        (169, 254, 169, 254 | 253) | (169, 254, 170, 2 | 23) | (100, 100, 100, 200) | (168, 63, 129, 16) => {
            Some(Metadata)
        }
        (169, 254, ..) => Some(LinkLocal),
        (10, ..) | (172, 16..=31, ..) | (192, 168, ..) | (100, 64..=127, ..) => Some(Private),
        (192, 0, 0 | 2, _) | (198, 18 | 19, ..) | (198, 51, 100, _) | (203, 0, 113, _) | (192, 88, 99, _) => {
            Some(Reserved)
        }
        (224..=239, ..) | (255, 255, 255, 255) => Some(Multicast),
        (240..=255, ..) => Some(Reserved),
        _ => None,
    }
}

fn classify_v6(address: Ipv6Addr) -> Option<AddressClass> {
    use AddressClass::{LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Unspecified};
    const METADATA: [Ipv6Addr; 4] = [
        Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254),
        Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x253),
        Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x23),
        Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    ];
    if address.is_unspecified() {
        return Some(Unspecified);
    }
    if address.is_loopback() {
        return Some(Loopback);
    }
    if METADATA.contains(&address) {
        return Some(Metadata);
    }
    let [first, second, ..] = address.segments();
    match first {
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Some(Private),
        0xfe80..=0xfebf => Some(LinkLocal),
        0xff00..=0xffff => Some(Multicast),
        // Global unicast is 2000::/3; inside it, documentation, benchmarking, ORCHID and Teredo are not hosts.
        0x2001 if second == 0 || second == 0x0db8 || second == 2 || (0x10..=0x3f).contains(&second) => {
            Some(Reserved)
        }
        0x3fff if second < 0x1000 => Some(Reserved),
        0x2000..=0x3fff => None,
        _ => Some(Reserved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn default_policy_by_address() {
        use AddressClass::{LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Unspecified};
        let table: &[(&str, Option<AddressClass>)] = &[
            ("8.8.8.8", None),
            ("1.1.1.1", None),
            ("172.15.255.255", None),
            ("172.32.0.0", None),
            ("100.63.255.255", None),
            ("100.128.0.0", None),
            ("11.0.0.0", None),
            ("192.167.255.255", None),
            ("223.255.255.255", None),
            ("2606:4700::1111", None),
            ("2a00:1450:4001::200e", None),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.255.254", Some(Loopback)),
            ("::1", Some(Loopback)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::127.0.0.1", Some(Loopback)),
            ("64:ff9b::7f00:1", Some(Loopback)),
            ("64:ff9b:1::7f00:1", Some(Loopback)),
            ("2002:7f00:1::", Some(Loopback)),
            ("0.0.0.0", Some(Unspecified)),
            ("0.1.2.3", Some(Unspecified)),
            ("::", Some(Unspecified)),
            ("::ffff:0.0.0.0", Some(Unspecified)),
            ("169.254.169.254", Some(Metadata)),
            ("169.254.170.2", Some(Metadata)),
            ("169.254.170.23", Some(Metadata)),
            ("100.100.100.200", Some(Metadata)),
            ("168.63.129.16", Some(Metadata)),
            ("::ffff:169.254.169.254", Some(Metadata)),
            ("::ffff:0:169.254.169.254", Some(Metadata)),
            ("64:ff9b::a9fe:a9fe", Some(Metadata)),
            ("2002:a9fe:a9fe::1", Some(Metadata)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fd00:ec2::23", Some(Metadata)),
            ("fd20:ce::254", Some(Metadata)),
            ("169.254.0.1", Some(LinkLocal)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("10.0.0.1", Some(Private)),
            ("172.16.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.168.1.1", Some(Private)),
            ("100.64.0.1", Some(Private)),
            ("100.127.255.255", Some(Private)),
            ("fc00::1", Some(Private)),
            ("fdff::1", Some(Private)),
            ("fec0::1", Some(Private)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("64:ff9b::10.0.0.1", Some(Private)),
            ("2002:a00:1::", Some(Private)),
            ("224.0.0.1", Some(Multicast)),
            ("255.255.255.255", Some(Multicast)),
            ("ff02::1", Some(Multicast)),
            ("240.0.0.1", Some(Reserved)),
            ("192.0.2.1", Some(Reserved)),
            ("198.18.0.1", Some(Reserved)),
            ("2001:db8::1", Some(Reserved)),
            ("2001::1", Some(Reserved)),
            ("100::1", Some(Reserved)),
            ("::ffff:8.8.8.8", None),
            ("64:ff9b::808:808", None),
        ];
        let policy = NetPolicy::default();
        for (text, class) in table {
            assert_eq!(policy.check(ip(text)).err().map(|denied| denied.class), *class, "{text}");
        }
    }

    #[test]
    fn rules_allow_exactly_the_named_addresses() {
        let rules = ["10.1.0.0/16", "fd00::/8", "169.254.169.254", "minio.internal", "*.corp.example"];
        let policy = NetPolicy::new(rules.iter().map(|rule| rule.parse().unwrap()).collect(), false);
        for open in ["10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3", "fd12::1", "169.254.169.254"] {
            assert!(policy.check(ip(open)).is_ok(), "{open}");
        }
        for shut in ["10.2.0.1", "10.0.255.255", "fc00::1", "169.254.169.253", "127.0.0.1"] {
            assert!(policy.check(ip(shut)).is_err(), "{shut}");
        }
        assert!(policy.check_for_host("MinIO.internal.", ip("192.168.0.9")).is_ok());
        assert!(policy.check_for_host("a.corp.example", ip("192.168.0.9")).is_ok());
        assert!(policy.check_for_host("corp.example", ip("192.168.0.9")).is_err());
        assert!(policy.check_for_host("evilcorp.example", ip("192.168.0.9")).is_err());
        assert!(NetPolicy::new(vec!["0.0.0.0/0".parse().unwrap()], false).check(ip("10.0.0.1")).is_ok());
        let loopback = NetPolicy::new(Vec::new(), true);
        assert!(loopback.check(ip("127.0.0.1")).is_ok() && loopback.check(ip("::ffff:127.0.0.1")).is_ok());
        assert!(loopback.check(ip("10.0.0.1")).is_err());
    }

    #[test]
    fn invalid_rules_are_explained() {
        for (rule, why) in [
            ("10.0.0.0/33", "longer than the address"),
            ("10.0.0/8", "not an IP address"),
            ("10.0.0.0/x", "not a number"),
            ("", "neither"),
            ("bad host", "neither"),
            ("*.", "neither"),
        ] {
            let error = rule.parse::<NetRule>().unwrap_err().to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
    }
}
