//! Connections to replicas. Each worker has its own, so that none is ever shared between threads.

mod connect;
mod pool;

pub(crate) use pool::{Pools, Returned};

use crate::body::{BoxError, RequestBody};
use http::Request;

/// Why a request to a replica failed.
pub(crate) struct Failure {
    /// The request, if nothing of it was sent.
    pub(crate) unsent: Option<Box<Request<RequestBody>>>,
    pub(crate) error: BoxError,
}
