//! Free ports, so that several clusters can run side by side.

use crate::Failure;
use std::{
    net::{Ipv4Addr, TcpListener},
    time::{SystemTime, UNIX_EPOCH},
};

/// Below the ephemeral ports and the node ports: a port that is free now is still free when, seconds later, its program
/// binds it.
const FROM: u16 = 20_000;
const COUNT: u16 = 10_000;

/// `N` different ports that are free on every address.
pub(crate) fn free<const N: usize>() -> Result<[u16; N], Failure> {
    let nanoseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    let mut place = nanoseconds.wrapping_add(std::process::id().wrapping_mul(0x9e37_79b9));
    let mut held = Vec::new();
    // Bound until all are chosen, so that none is chosen twice.
    let mut found = [0; N];
    for slot in &mut found {
        for _ in 0..1000 {
            // Random start: two processes do not try the same ports.
            place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let port = FROM + (place >> 16) as u16 % COUNT;
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
                held.push(listener);
                *slot = port;
                break;
            }
        }
    }
    if held.len() == N { Ok(found) } else { Err("no free port between 20000 and 30000".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_distinct_and_free() {
        let ports = free::<8>().unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 8);
        for port in ports {
            assert!((FROM..FROM + COUNT).contains(&port));
        }
    }
}
