//! Keys of records: `<reply partition>.<resource>.<request id>`.
//!
//! Seldon's gateway chooses the partition of its own consumer, so that the answer returns to it. External producers may use
//! any key, or none.

use bytes::Bytes;
use std::fmt;

/// A key as Seldon's gateway writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// The partition of the answer.
    pub reply_partition: i32,
    /// A pipeline or a model.
    pub resource: &'a str,
    pub request_id: &'a str,
}

impl<'a> Key<'a> {
    /// `None` for a key of another form.
    pub fn parse(key: &'a [u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(key).ok()?.splitn(3, '.');
        let (partition, resource, request_id) = (parts.next()?, parts.next()?, parts.next()?);
        // No sign and no leading zeros: the same key is written again.
        let is_number = partition.bytes().all(|b| b.is_ascii_digit())
            && (partition == "0" || !partition.starts_with('0'));
        let reply_partition = partition.parse().ok().filter(|_| is_number)?;
        (!resource.is_empty() && !request_id.is_empty()).then_some(Self {
            reply_partition,
            resource,
            request_id,
        })
    }
}

/// The partition of answers to a record with this key, if the key names one.
pub fn reply_partition(key: Option<&Bytes>) -> Option<i32> {
    key.and_then(|key| Key::parse(key)).map(|key| key.reply_partition)
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.reply_partition, self.resource, self.request_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_of_other_forms_are_no_keys_of_seldon() {
        for key in
            ["", "a", "0.p", "0..id", "0.p.", "x.p.id", "-1.p.id", "+1.p.id", "01.p.id", "99999999999.p.id"]
        {
            assert_eq!(Key::parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(Key::parse(b"\xff.p.id"), None);
        let key = Key { reply_partition: 3, resource: "p", request_id: "a.b" };
        assert_eq!(Key::parse(b"3.p.a.b"), Some(key));
    }

    proptest! {
        #[test]
        fn key_round_trips(reply_partition in 0..i32::MAX, resource in "[a-z0-9-]{1,20}", request_id in "[ -~]{1,40}") {
            let key = Key { reply_partition, resource: &resource, request_id: &request_id };
            let text = key.to_string();
            prop_assert_eq!(Key::parse(text.as_bytes()), Some(key));
        }

        #[test]
        fn parsed_key_is_written_as_it_was(text in "[0-9]{0,3}\\.[a-z.]{0,6}\\.?[a-z0-9]{0,4}") {
            if let Some(key) = Key::parse(text.as_bytes()) {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
