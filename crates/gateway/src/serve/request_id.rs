//! Ids for requests that came without one: 20 letters and digits that sort by time, as the reference makes them.

use http::HeaderValue;
use std::{
    hash::{BuildHasher as _, RandomState},
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Makes ids; no two workers make the same.
pub(super) struct Ids {
    place: [u8; 5],
    counter: AtomicU32,
}

impl Ids {
    pub(super) fn new(index: usize) -> Self {
        let random = RandomState::new().hash_one((std::process::id(), index));
        let mut place = [0; 5];
        for (byte, random) in place.iter_mut().zip(random.to_le_bytes()) {
            *byte = random;
        }
        Self { place, counter: AtomicU32::new((random >> 40) as u32) }
    }

    pub(super) fn next(&self) -> HeaderValue {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let text = encode(seconds as u32, self.place, count);
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}

/// Four bytes of time, five of place and three of a counter, five bits a digit.
fn encode(seconds: u32, place: [u8; 5], count: u32) -> [u8; 20] {
    const DIGITS: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";
    let mut bits = u128::from(seconds);
    for byte in place {
        bits = bits << 8 | u128::from(byte);
    }
    // 96 bits of content, four of padding.
    bits = (bits << 24 | u128::from(count & 0x00ff_ffff)) << 4;
    let mut text = [b'0'; 20];
    for digit in text.iter_mut().rev() {
        *digit = DIGITS.get((bits & 31) as usize).copied().unwrap_or(b'0');
        bits >>= 5;
    }
    text
}

/// Whether a client's id may be kept: it goes into headers and logs.
pub(super) fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_twenty_digits_and_differ() {
        // The published example of the format.
        let id = encode(0x4d88_e15b, [0x60, 0xf4, 0x86, 0xe4, 0x28], 0x0041_2dc9);
        assert_eq!(std::str::from_utf8(&id), Ok("9m4e2mr0ui3e8a215n4g"));
        let ids = Ids::new(0);
        let seen: HashSet<_> = (0..1000).map(|_| ids.next()).collect();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn only_sane_ids_are_kept() {
        for (id, sane) in [("abc-1", true), ("", false), ("a b", false), (&"x".repeat(129), false)] {
            assert_eq!(is_sane(&HeaderValue::from_str(id).unwrap()), sane, "{id}");
        }
    }
}
