//! Checksums: our own SHA-256, and the ones that servers announce.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use http::HeaderMap;
use md5::{Digest as _, Md5};

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Bytes of a hexadecimal string; `None` when it is not one.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect()
}

/// SHA-256 over parts that arrive one after the other.
#[derive(Clone)]
pub(crate) struct Sha256(ring::digest::Context);

impl Sha256 {
    pub(crate) fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(self.0.finish().as_ref());
        out
    }
}

/// SHA-256 of a byte string.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(bytes);
    hash.finish()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Md5,
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha256,
}

/// A checksum of the whole file, announced by the server, a listing or the URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    source: &'static str,
    algorithm: Algorithm,
    value: Vec<u8>,
}

impl Announced {
    /// A SHA-256 known before the download, from the URI or a listing.
    pub(crate) fn sha256(source: &'static str, value: [u8; 32]) -> Self {
        Self { source, algorithm: Algorithm::Sha256, value: value.to_vec() }
    }
}

/// The checksums in the headers of a full (200) response. `etag_is_md5` for stores where that holds.
pub(crate) fn announced(headers: &HeaderMap, etag_is_md5: bool) -> Vec<Announced> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let decode = |value: &str| STANDARD.decode(value).ok();
    let mut found = Vec::new();
    let mut add = |source, algorithm, length, value: Option<Vec<u8>>| {
        if let Some(value) = value.filter(|value| value.len() == length) {
            found.push(Announced { source, algorithm, value });
        }
    };
    add("Content-MD5", Algorithm::Md5, 16, text("content-md5").and_then(decode));
    // The hash is of the stored bytes; a store that decompresses on the way sends other ones.
    if text("x-goog-stored-content-encoding").is_none_or(|encoding| encoding == "identity") {
        let values = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
        for part in values.flat_map(|value| value.split(',')) {
            match part.trim().split_once('=') {
                Some(("md5", value)) => add("x-goog-hash", Algorithm::Md5, 16, decode(value)),
                Some(("crc32c", value)) => add("x-goog-hash", Algorithm::Crc32c, 4, decode(value)),
                _ => {}
            }
        }
    }
    if text("x-amz-checksum-type").is_none_or(|kind| kind == "FULL_OBJECT") {
        for (name, algorithm, length) in [
            ("x-amz-checksum-crc32", Algorithm::Crc32, 4),
            ("x-amz-checksum-crc32c", Algorithm::Crc32c, 4),
            ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme, 8),
            ("x-amz-checksum-sha256", Algorithm::Sha256, 32),
        ] {
            // `value-N` is a checksum of the checksums of N parts, which cannot be compared.
            add(name, algorithm, length, text(name).filter(|value| !value.contains('-')).and_then(decode));
        }
    }
    let encrypted = text("x-amz-server-side-encryption").is_some_and(|kind| kind != "AES256")
        || text("x-amz-server-side-encryption-customer-algorithm").is_some();
    if etag_is_md5 && !encrypted {
        add("ETag", Algorithm::Md5, 16, text("etag").map(|tag| tag.trim_matches('"')).and_then(unhex));
    }
    found
}

/// A checksum that does not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the content does not match its checksum ({source_name}: {expected}, computed {computed})")]
pub(crate) struct Mismatch {
    source_name: &'static str,
    expected: String,
    computed: String,
}

/// Computes SHA-256 and whatever was announced, in one pass.
pub(crate) struct Checker {
    sha256: Sha256,
    md5: Option<Md5>,
    crcs: Vec<(Algorithm, Crc)>,
    announced: Vec<Announced>,
}

impl Checker {
    pub(crate) fn new(announced: Vec<Announced>) -> Self {
        let wants = |algorithm| announced.iter().any(|a| a.algorithm == algorithm);
        let crcs = [
            (Algorithm::Crc32, CrcAlgorithm::Crc32IsoHdlc),
            (Algorithm::Crc32c, CrcAlgorithm::Crc32Iscsi),
            (Algorithm::Crc64Nvme, CrcAlgorithm::Crc64Nvme),
        ];
        Self {
            sha256: Sha256::new(),
            md5: wants(Algorithm::Md5).then(Md5::new),
            crcs: crcs.into_iter().filter(|(a, _)| wants(*a)).map(|(a, crc)| (a, Crc::new(crc))).collect(),
            announced,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        for (_, crc) in &mut self.crcs {
            crc.update(bytes);
        }
    }

    /// The SHA-256, once every announced checksum agrees.
    pub(crate) fn finish(self) -> Result<[u8; 32], Mismatch> {
        let sha256 = self.sha256.finish();
        let md5 = self.md5.map(|md5| md5.finalize().to_vec());
        for announced in &self.announced {
            let crc = self.crcs.iter().find(|(algorithm, _)| *algorithm == announced.algorithm);
            let computed = match announced.algorithm {
                Algorithm::Md5 => md5.clone().unwrap_or_default(),
                Algorithm::Sha256 => sha256.to_vec(),
                Algorithm::Crc32 | Algorithm::Crc32c | Algorithm::Crc64Nvme => {
                    let bytes = crc.map(|(_, crc)| crc.finalize()).unwrap_or_default().to_be_bytes();
                    bytes.get(8 - announced.value.len().min(8)..).unwrap_or_default().to_vec()
                }
            };
            if computed != announced.value {
                return Err(Mismatch {
                    source_name: announced.source,
                    expected: hex(&announced.value),
                    computed: hex(&computed),
                });
            }
        }
        Ok(sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)], etag_is_md5: bool, body: &[u8]) -> (usize, bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let announced = announced(&map, etag_is_md5);
        let count = announced.len();
        let mut checker = Checker::new(announced);
        for part in body.chunks(3) {
            checker.update(part);
        }
        (count, checker.finish().is_ok())
    }

    /// The published check values of "123456789" for each algorithm.
    #[test]
    fn every_announced_checksum_is_compared() {
        let body = b"123456789";
        let base64 = |hex: &str| STANDARD.encode(unhex(hex).unwrap());
        let md5 = "25f9e794323b453885f5181f1b624d0b";
        let sha = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        let goog = format!("crc32c={},md5={}", base64("e3069283"), base64(md5));
        let etag = format!("\"{md5}\"");
        let table: Vec<(&'static str, String, bool, usize)> = vec![
            ("content-md5", base64(md5), false, 1),
            ("x-goog-hash", goog, false, 2),
            ("x-amz-checksum-crc32", base64("cbf43926"), false, 1),
            ("x-amz-checksum-crc32c", base64("e3069283"), false, 1),
            ("x-amz-checksum-crc64nvme", base64("ae8b14860a799888"), false, 1),
            ("x-amz-checksum-sha256", base64(sha), false, 1),
            ("etag", etag.clone(), true, 1),
            ("etag", etag, false, 0),
            ("etag", format!("\"{md5}-3\""), true, 0),
            ("x-amz-checksum-crc32", format!("{}-2", base64("cbf43926")), false, 0),
            ("content-md5", "nonsense".into(), false, 0),
        ];
        for (name, value, etag_is_md5, count) in table {
            assert_eq!(check(&[(name, &value)], etag_is_md5, body), (count, true), "{name}: {value}");
            if count > 0 {
                assert_eq!(check(&[(name, &value)], etag_is_md5, b"123456780"), (count, false), "{name}");
            }
        }
        let kms = [("etag", md5), ("x-amz-server-side-encryption", "aws:kms")];
        assert_eq!(check(&kms, true, b"other").0, 0);
        let gzip = [("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-stored-content-encoding", "gzip")];
        assert_eq!(check(&gzip, false, b"other").0, 0);
    }
}
