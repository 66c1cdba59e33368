//! Model files: from a `storageUri` to a verified directory on this machine.
//!
//! [`Uri::parse`] parses every supported URI without network access; [`Fetcher::fetch`] downloads the files into a
//! content-addressed cache and leases them. See `docs/artifacts.md`.

mod archive;
mod auth;
mod cache;
mod cloud;
mod digest;
mod download;
mod download_plan;
mod error;
mod fetch;
mod file_tree;
#[doc(hidden)]
pub mod fuzz;
mod huggingface;
mod local;
mod net;
pub mod network_policy;
mod post;
mod progress;
mod retry;
mod secret;
mod source;
mod uri;

pub use cache::Lease;
pub use error::{ErrorKind, FetchError};
pub use fetch::{Config, Env, Fetched, Fetcher, Request};
pub use file_tree::Limits;
pub use local::companions;
pub use net::{Resolve, SystemResolver, Timeouts};
pub use network_policy::{NetPolicy, NetRule};
pub use post::Poster;
pub use progress::{ProgressSink, Silent};
pub use retry::RetryPolicy;
pub use secret::{Hidden, Secret, SecretError};
pub use uri::{BucketUri, HfUri, HttpUri, Uri, UriError};
