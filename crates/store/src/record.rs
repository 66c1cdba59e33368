//! How a record lies in the file: a checksum, then the value.

use crate::Table;

/// The bytes of the checksum before each value.
const SEAL: usize = 4;

/// The value with its checksum before it. The checksum covers the table and the key too, so that a record in the wrong
/// place is as wrong as one with a flipped bit.
pub(crate) fn seal(table: Table, key: &str, value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SEAL + value.len());
    sealed.extend_from_slice(&checksum(table, key, value).to_le_bytes());
    sealed.extend_from_slice(value);
    sealed
}

/// The value, if its checksum is right.
pub(crate) fn open<'a>(table: Table, key: &str, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (seal, value) = sealed.split_first_chunk::<SEAL>()?;
    (u32::from_le_bytes(*seal) == checksum(table, key, value)).then_some(value)
}

/// The sentence that names a damaged record.
pub(crate) fn mismatch(table: Table, key: &str) -> String {
    format!("the record `{key}` of table `{}` does not match its checksum", table.name())
}

fn checksum(table: Table, key: &str, value: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(table.name().as_bytes());
    // The lengths keep the parts apart: without them `a` + `bc` would be `ab` + `c`.
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
    fn any_flipped_bit_and_any_cut_are_found() {
        let sealed = seal(Table::Models, "iris", b"some value");
        assert_eq!(open(Table::Models, "iris", &sealed), Some(&b"some value"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(Table::Models, "iris", &flipped), None, "bit {bit}");
        }
        for length in 0..sealed.len() {
            assert_eq!(open(Table::Models, "iris", &sealed[..length]), None, "length {length}");
        }
    }

    #[test]
    fn a_record_in_the_wrong_place_is_found() {
        let sealed = seal(Table::Models, "iris", b"value");
        assert_eq!(open(Table::Servers, "iris", &sealed), None);
        assert_eq!(open(Table::Models, "iri", &sealed), None);
        assert_eq!(open(Table::Models, "irisv", &sealed), None);
    }
}
