//! API keys: 256 random bits, stored as their SHA-256 digest.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom as _, SystemRandom},
};
use std::fmt;

/// Lets scanners of repositories find keys that were committed.
const PREFIX: &str = "gantry_";

pub(crate) type Digest = [u8; 32];

pub(crate) fn sha256(text: &[u8]) -> Digest {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, text).as_ref());
    out
}

/// 64 hexadecimal digits.
pub(crate) fn parse_digest(text: &str) -> Option<Digest> {
    let mut out = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != out.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(pairs) {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? * 16 + low?).ok()?;
    }
    Some(out)
}

/// A new key.
pub struct GeneratedKey {
    pub key: String,
    /// For the configuration.
    pub sha256: String,
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedKey").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

/// `None` if the system has no random numbers.
pub fn generate() -> Option<GeneratedKey> {
    let mut random = [0; 32];
    SystemRandom::new().fill(&mut random).ok()?;
    let key = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let sha256 = sha256(key.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        for digit in [byte >> 4, byte & 15] {
            hex.extend(char::from_digit(u32::from(digit), 16));
        }
        hex
    });
    Some(GeneratedKey { key, sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_key_matches_its_digest_and_is_unique() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_eq!(parse_digest(&one.sha256), Some(sha256(one.key.as_bytes())));
        assert_ne!(one.key, other.key);
        assert!(one.key.len() > 40 && one.key.bytes().all(|b| b.is_ascii_graphic()));
        assert!(!format!("{one:?}").contains(&one.key));
    }

    #[test]
    fn digest_is_64_hexadecimal_digits() {
        let valid = "Ab".repeat(32);
        assert_eq!(parse_digest(&valid), Some([0xab; 32]));
        for wrong in ["", "ab", &"ab".repeat(33), &"xy".repeat(32), &"é".repeat(32), &valid[1..]] {
            assert_eq!(parse_digest(wrong), None, "{wrong}");
        }
    }
}
