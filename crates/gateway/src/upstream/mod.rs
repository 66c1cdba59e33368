//! Upstream connection pools. Each worker has its own; connections are not shared between threads.

mod connect;
mod pool;

pub(crate) use pool::{Pools, ReleaseConnection};

use gantry_transport::{BoxError, body::UpstreamBody};
use http::Request;

pub(crate) struct Failure {
    /// The request, if nothing was sent.
    pub(crate) unsent: Option<Box<Request<UpstreamBody>>>,
    pub(crate) error: BoxError,
}
