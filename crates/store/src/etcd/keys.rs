//! Names of keys, and the record of the state as a whole.

use crate::Table;

/// Format of the keys. Newer ones are rejected.
pub(super) const FORMAT: u64 = 1;

#[derive(Clone, Debug)]
pub(super) struct Keys(pub(super) String);

impl Keys {
    /// Held by the leader, with its lease.
    pub(super) fn leader(&self) -> Vec<u8> {
        format!("{}/leader", self.0).into()
    }

    /// Format, epoch and state ID.
    pub(super) fn meta(&self) -> Vec<u8> {
        format!("{}/meta", self.0).into()
    }

    /// ID of the last write.
    pub(super) fn batch(&self) -> Vec<u8> {
        format!("{}/batch", self.0).into()
    }

    /// The staged batch that is committed, and not yet copied to the records.
    pub(super) fn pending(&self) -> Vec<u8> {
        format!("{}/pending", self.0).into()
    }

    /// All staged batches.
    pub(super) fn staged(&self) -> Vec<u8> {
        format!("{}/staged/", self.0).into()
    }

    pub(super) fn staged_batch(&self, id: &str) -> Vec<u8> {
        format!("{}/staged/{id}/", self.0).into()
    }

    pub(super) fn staged_chunk(&self, id: &str, number: usize) -> Vec<u8> {
        format!("{}/staged/{id}/{number:06}", self.0).into()
    }

    pub(super) fn table(&self, table: Table) -> Vec<u8> {
        format!("{}/records/{}/", self.0, table.name()).into()
    }

    pub(super) fn record(&self, table: Table, key: &str) -> Vec<u8> {
        let mut name = self.table(table);
        name.extend_from_slice(key.as_bytes());
        name
    }
}

/// The end of the range of keys that start with a prefix.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys.
    vec![0]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) format: u64,
    pub(super) epoch: u64,
    pub(super) state_id: u64,
}

impl Meta {
    pub(super) fn encode(self) -> String {
        format!("format={} epoch={} state={:016x}", self.format, self.epoch, self.state_id)
    }

    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let mut value = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        let format = value("format")?.parse().ok()?;
        let epoch = value("epoch")?.parse().ok()?;
        let state_id = u64::from_str_radix(value("state")?, 16).ok()?;
        Some(Self { format, epoch, state_id })
    }

    /// The next leader's. Epochs also grow with the wall clock: a snapshot of etcd that is restored has an older epoch than
    /// gateways and agents have seen, and routes of an older epoch would be ignored.
    pub(super) fn next(found: Option<Self>, seconds: u64, new_state_id: impl FnOnce() -> u64) -> Self {
        let before = found.map_or(0, |meta| meta.epoch);
        let state_id = found.map(|meta| meta.state_id).filter(|id| *id > 0).unwrap_or_else(new_state_id);
        Self { format: FORMAT, epoch: (before + 1).max(seconds), state_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_prefix_ends_after_its_last_key() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }

    #[test]
    fn meta_is_read_back_and_garbage_is_not() {
        let meta = Meta { format: 1, epoch: 7, state_id: 0xabc };
        assert_eq!(Meta::decode(meta.encode().as_bytes()), Some(meta));
        for text in ["", "format=1", "format=1 epoch=x state=1", "epoch=1 format=1 state=1"] {
            assert_eq!(Meta::decode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn epochs_grow_with_each_leader_and_over_a_restored_snapshot() {
        let first = Meta::next(None, 1000, || 5);
        assert_eq!((first.epoch, first.state_id), (1000, 5));
        let second = Meta::next(Some(first), 1000, || 6);
        assert_eq!((second.epoch, second.state_id), (1001, 5), "the same second");
        assert_eq!(Meta::next(Some(second), 10, || 6).epoch, 1002, "the clock was set back");
        assert_eq!(Meta::next(Some(first), 2000, || 6).epoch, 2000, "after a restore");
    }
}
