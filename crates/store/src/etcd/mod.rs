//! The store in etcd: several schedulers share the records, and one of them leads.
//!
//! ```text
//! Candidate ──campaign──▶ the key `leader`, with a lease ──▶ Store: fenced writes, and Leadership: when it ends
//! ```
//!
//! **Fence.** Every write is one transaction that etcd applies only while the key `leader` is the one that this process
//! created: a leader that was replaced writes nothing, however late its requests arrive. It also stops to decide: the
//! lease counts as lost on a monotonic clock before etcd can give it to another process ([`Store::check`]).
//!
//! **Chain.** Every write also requires the ID of the previous write in the key `batch`, and replaces it by its own. When
//! the outcome of a write is unknown, a write of the ID alone settles it: either it takes the place of the lost one, which
//! can then never be applied, or the key holds the lost one's ID, which then is stored.
//!
//! **Large batches** exceed what etcd accepts in one transaction. They are written to keys below `staged`; the key
//! `pending` then commits them in one small transaction, and they are copied to the records afterwards, by the next
//! leader if need be. So every batch is stored completely or not at all, as with the embedded store.
//!
//! [`Store::check`]: crate::Store::check

mod backend;
mod batch;
mod candidate;
mod client;
mod failure;
mod keys;
mod lease;
mod metrics;
mod open;
mod session;
mod settings;

/// The generated messages, and the server for tests.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, dead_code, reason = "generated")]
pub(crate) mod wire {
    tonic::include_proto!("etcdserverpb");
}

#[cfg(feature = "faults")]
pub mod fake;
#[cfg(feature = "faults")]
pub mod test_cluster;

pub use candidate::{Candidate, Leadership, Standby};
pub use settings::{Credentials, DEFAULT_LEASE, DEFAULT_PREFIX, Location, Settings};
