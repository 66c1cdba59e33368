//! Durable pipelines on Kafka: the same pipelines, consumed from and produced to topics with the names, keys, headers and
//! encodings of Seldon Core v2.
//!
//! Names, keys, headers, encodings and settings are pure and always compiled. The feature `client` adds the engine: one
//! consumer group per pipeline, at-least-once, in the order of each key.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

pub mod dead_letter;
pub mod encoding;
#[cfg(feature = "client")]
pub mod engine;
pub mod headers;
pub mod join;
pub mod key;
pub mod offsets;
pub mod queues;
pub mod record;
pub mod settings;
pub mod topics;

pub use record::{Consumed, Produced};
pub use settings::Settings;
