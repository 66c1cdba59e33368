//! Generated request IDs: 20 characters, sortable by time (xid, as in Seldon).

use http::HeaderValue;
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Generates IDs that are unique across workers.
pub struct RequestIds {
    machine: [u8; 5],
    counter: AtomicU32,
}

impl RequestIds {
    pub fn new(index: usize) -> Self {
        let random = RandomState::new().hash_one((std::process::id(), index));
        let mut machine = [0; 5];
        for (byte, random) in machine.iter_mut().zip(random.to_le_bytes()) {
            *byte = random;
        }
        Self { machine, counter: AtomicU32::new((random >> 40) as u32) }
    }

    pub fn next(&self) -> HeaderValue {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let text = encode(seconds as u32, self.machine, count);
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}

/// xid layout: 4 bytes time, 5 bytes machine, 3 bytes counter, in base32hex.
fn encode(seconds: u32, machine: [u8; 5], count: u32) -> [u8; 20] {
    const DIGITS: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
    let mut bits = u128::from(seconds);
    for byte in machine {
        bits = bits << 8 | u128::from(byte);
    }
    // 96 bits of content, 4 bits of padding.
    bits = (bits << 24 | u128::from(count & 0x00ff_ffff)) << 4;
    let mut text = [b'0'; 20];
    for digit in text.iter_mut().rev() {
        *digit = DIGITS.get((bits & 31) as usize).copied().unwrap_or(b'0');
        bits >>= 5;
    }
    text
}

/// Whether a client's ID is safe for headers and logs.
pub fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn generated_ids_are_valid_and_unique() {
        // Example from the xid documentation.
        let id = encode(0x4d88_e15b, [0x60, 0xf4, 0x86, 0xe4, 0x28], 0x0041_2dc9);
        assert_eq!(std::str::from_utf8(&id), Ok("9m4e2mr0ui3e8a215n4g"));
        let ids = RequestIds::new(0);
        let seen: HashSet<_> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn unsafe_client_ids_are_rejected() {
        for (id, sane) in [("abc-1", true), ("", false), ("a b", false), (&"x".repeat(129), false)] {
            assert_eq!(is_sane(&HeaderValue::from_str(id).unwrap()), sane, "{id}");
        }
    }
}
