//! Model files: from a `storageUri` to a verified directory on this machine.
//!
//! [`Uri::parse`] reads every spelling of a source without touching the network; [`Fetcher::fetch`] brings the
//! files into a content-addressed cache and leases them. See `docs/artifacts.md` for what users write.

mod archive;
mod auth;
mod cache;
mod cloud;
mod digest;
mod download;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzz;
mod hf;
mod local;
mod net;
mod plan;
pub mod policy;
mod progress;
mod retry;
mod secret;
mod source;
mod tree;
mod uri;

pub use cache::Lease;
pub use error::{ErrorKind, FetchError};
pub use fetch::{Config, Env, Fetched, Fetcher, Request};
pub use net::{Resolve, SystemResolver, Timeouts};
pub use policy::{NetPolicy, NetRule};
pub use progress::{ProgressSink, Silent};
pub use retry::RetryPolicy;
pub use secret::{Hidden, Secret, SecretError};
pub use tree::Limits;
pub use uri::{BucketUri, HfUri, HttpUri, Uri, UriError};
