//! Records, independent of the client library.

use crate::headers::Headers;
use bytes::Bytes;
use std::sync::Arc;

/// A record that was read from a topic.
#[derive(Clone, Debug)]
pub struct Consumed {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Bytes>,
    /// Empty for a tombstone.
    pub value: Bytes,
    pub headers: Headers,
}

impl Consumed {
    /// The memory that it takes while it waits or runs.
    pub fn bytes(&self) -> usize {
        const OVERHEAD: usize = 256;
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        OVERHEAD + self.value.len() + self.key.as_ref().map_or(0, Bytes::len) + headers
    }

    /// `<topic>/<partition>/<offset>`
    pub fn position(&self) -> String {
        let Self { topic, partition, offset, .. } = self;
        format!("{topic}/{partition}/{offset}")
    }
}

/// A record to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Produced {
    pub topic: String,
    /// By the hash of the key when absent.
    pub partition: Option<i32>,
    pub key: Option<Bytes>,
    pub value: Bytes,
    pub headers: Headers,
}
