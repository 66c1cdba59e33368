//! From changes to the operations of transactions within etcd's limits.

use super::keys::Keys;
use super::wire::{DeleteRangeRequest, PutRequest, RequestOp, request_op::Request};
use crate::{Change, Table, record};
use std::collections::BTreeMap;

/// Operations of one transaction: etcd accepts 128, and each has some of its own.
const MAX_OPERATIONS: usize = 120;

/// Bytes of one transaction, without those of its frame: etcd accepts 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;

/// Bytes of one record. It fills a transaction of its own.
const MAX_RECORD: usize = 1400 << 10;

/// A record that etcd does not accept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) table: Table,
    pub(super) key: String,
    pub(super) bytes: usize,
}

impl TooLarge {
    pub(super) fn reason(&self) -> String {
        let Self { table, key, bytes } = self;
        let limit = MAX_RECORD >> 10;
        format!(
            "record `{key}` of table `{}` has {} KiB, and etcd accepts {limit}: shorten its definition",
            table.name(),
            bytes >> 10
        )
    }
}

pub(super) fn put(key: Vec<u8>, value: impl Into<Vec<u8>>) -> RequestOp {
    let put = PutRequest { key: key.into(), value: value.into().into(), lease: 0 };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

pub(super) fn delete(key: Vec<u8>) -> RequestOp {
    delete_range(key, Vec::new())
}

pub(super) fn delete_range(key: Vec<u8>, end: Vec<u8>) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.into(), range_end: end.into() };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

/// The operations of a batch, in groups that each fit one transaction.
///
/// Of several changes of a key only the last counts: etcd rejects transactions that change one twice.
pub(super) fn groups(keys: &Keys, changes: &[Change]) -> Result<Vec<Vec<RequestOp>>, TooLarge> {
    let last: BTreeMap<_, _> =
        changes.iter().map(|change| ((change.table.name(), change.key.as_str()), change)).collect();
    let mut groups: Vec<Vec<RequestOp>> = Vec::new();
    let mut bytes = 0;
    for Change { table, key, value } in last.into_values() {
        let name = keys.record(*table, key);
        let length = name.len() + value.as_ref().map_or(0, Vec::len);
        if length > MAX_RECORD {
            return Err(TooLarge { table: *table, key: key.clone(), bytes: length });
        }
        let operation = match value {
            Some(value) => put(name, record::encode(*table, key, value)),
            None => delete(name),
        };
        match groups.last_mut() {
            Some(group) if group.len() < MAX_OPERATIONS && bytes + length <= MAX_BYTES => {
                group.push(operation);
                bytes += length;
            }
            _ => {
                groups.push(vec![operation]);
                bytes = length;
            }
        }
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    fn keys() -> Keys {
        Keys("/gantry".into())
    }

    fn change(key: String, value: Option<usize>) -> Change {
        Change { table: Table::Models, key, value: value.map(|length| vec![7; length]) }
    }

    #[test]
    fn groups_keep_etcds_limits() {
        for (count, length, expected) in [
            (0, 0, 0),
            (1, 10, 1),
            (120, 10, 1),
            (121, 10, 2),
            (1000, 10, 9),
            (3, 600 << 10, 3),
            (4, 500 << 10, 2),
        ] {
            let changes: Vec<_> = (0..count).map(|n| change(format!("m{n}"), Some(length))).collect();
            let groups = groups(&keys(), &changes).unwrap();
            assert_eq!(groups.len(), expected, "{count} of {length}");
            assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), count);
            for group in groups {
                let bytes: usize = group.iter().map(RequestOp::encoded_len).sum();
                assert!(group.len() < 127 && bytes < 1_500_000, "{} operations, {bytes} bytes", group.len());
            }
        }
    }

    #[test]
    fn last_change_of_a_key_counts() {
        let changes = [change("a".into(), Some(1)), change("a".into(), None)];
        assert_eq!(groups(&keys(), &changes).unwrap(), [vec![delete(b"/gantry/records/models/a".to_vec())]]);
    }

    #[test]
    fn record_beyond_the_limit_is_named() {
        let error = groups(&keys(), &[change("large".into(), Some(2 << 20))]).unwrap_err();
        assert!(
            error.reason().contains("record `large` of table `models` has 2048 KiB"),
            "{}",
            error.reason()
        );
    }
}
