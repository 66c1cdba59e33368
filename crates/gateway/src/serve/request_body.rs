//! Request body reading.

pub(super) use gantry_transport::body::{read_all, too_large};

use bytes::Bytes;
use gantry_oip::Error;
use hyper::body::{Body as _, Incoming};

/// Bodies up to this size are buffered: one write upstream, and they can be retried.
pub(super) const SMALL: usize = 64 << 10;

/// The announced size, checked against the limit.
pub(super) fn announced(body: &Incoming, limit: usize) -> Result<Option<usize>, Error> {
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large(limit));
    }
    Ok(hint.exact().map(|n| n as usize))
}

/// Reads on after `first` until there are `enough` bytes or the body ends.
pub(super) async fn read_more(
    body: &mut Incoming,
    first: Bytes,
    enough: usize,
    limit: usize,
) -> Result<Bytes, Error> {
    Ok(gantry_transport::body::read_more(body, first, enough, limit).await?.0)
}
