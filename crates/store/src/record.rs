//! Record layout: a checksum, then the value.

use crate::Table;

const CHECKSUM_LEN: usize = 4;

/// Prefixes the value with a checksum that also covers table and key, so that a misplaced record is detected.
pub(crate) fn encode(table: Table, key: &str, value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(CHECKSUM_LEN + value.len());
    sealed.extend_from_slice(&checksum(table, key, value).to_le_bytes());
    sealed.extend_from_slice(value);
    sealed
}

/// The value, if the checksum matches.
pub(crate) fn decode<'a>(table: Table, key: &str, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (seal, value) = sealed.split_first_chunk::<CHECKSUM_LEN>()?;
    (u32::from_le_bytes(*seal) == checksum(table, key, value)).then_some(value)
}

pub(crate) fn mismatch(table: Table, key: &str) -> String {
    format!("record `{key}` of table `{}` does not match its checksum", table.name())
}

fn checksum(table: Table, key: &str, value: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(table.name().as_bytes());
    // Lengths separate the parts: `a` + `bc` must differ from `ab` + `c`.
    crc.update(&(key.len() as u64).to_le_bytes());
    crc.update(key.as_bytes());
    crc.update(&(value.len() as u64).to_le_bytes());
    crc.update(value);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_flips_and_truncation_are_detected() {
        let sealed = encode(Table::Models, "iris", b"some value");
        assert_eq!(decode(Table::Models, "iris", &sealed), Some(&b"some value"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(Table::Models, "iris", &flipped), None, "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert_eq!(decode(Table::Models, "iris", &sealed[..length]), None, "length {length}");
        }
    }

    #[test]
    fn record_under_wrong_key_is_detected() {
        let sealed = encode(Table::Models, "iris", b"value");
        assert_eq!(decode(Table::Servers, "iris", &sealed), None);
        assert_eq!(decode(Table::Models, "iri", &sealed), None);
        assert_eq!(decode(Table::Models, "irisv", &sealed), None);
    }
}
