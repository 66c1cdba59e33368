//! Request body reading with limits.

use bytes::{Bytes, BytesMut};
use gantry_oip::{Code, Error};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

/// Bodies up to this size are buffered: one write upstream, and they can be retried.
pub(super) const SMALL: usize = 64 << 10;

pub(super) fn too_large(limit: usize) -> Error {
    Error::new(Code::PayloadTooLarge, format!("the body is larger than the {limit} bytes allowed"))
}

fn broken(error: &hyper::Error) -> Error {
    Error::invalid(format!("failed to read the body: {error}"))
}

/// The announced size, checked against the limit.
pub(super) fn announced(body: &Incoming, limit: usize) -> Result<Option<usize>, Error> {
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large(limit));
    }
    Ok(hint.exact().map(|n| n as usize))
}

/// The whole body; a single frame is not copied.
pub(super) async fn whole(body: &mut Incoming, limit: usize) -> Result<Bytes, Error> {
    more(body, Bytes::new(), usize::MAX, limit).await
}

/// Reads on after `first` until there are `enough` bytes or the body ends.
pub(super) async fn more(
    body: &mut Incoming,
    first: Bytes,
    enough: usize,
    limit: usize,
) -> Result<Bytes, Error> {
    let mut single = first;
    let mut joined: Option<BytesMut> = None;
    loop {
        let have = joined.as_ref().map_or(single.len(), BytesMut::len);
        if have >= enough || body.is_end_stream() {
            break;
        }
        let Some(frame) = body.frame().await else {
            break;
        };
        let Ok(data) = frame.map_err(|e| broken(&e))?.into_data() else {
            continue;
        };
        if have + data.len() > limit {
            return Err(too_large(limit));
        }
        match &mut joined {
            None if single.is_empty() => single = data,
            None => {
                let mut all = BytesMut::with_capacity((have + data.len()).max(SMALL));
                all.extend_from_slice(&single);
                all.extend_from_slice(&data);
                joined = Some(all);
            }
            Some(all) => all.extend_from_slice(&data),
        }
    }
    Ok(joined.map_or(single, BytesMut::freeze))
}
