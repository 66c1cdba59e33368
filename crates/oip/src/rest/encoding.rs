//! `Content-Encoding`: gzip and deflate, within the body limit.

use crate::{Code, Error};
use bytes::Bytes;
use flate2::{
    Compression,
    read::{MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};
use http::{HeaderMap, HeaderValue, header};
use std::{
    borrow::Cow,
    io::{Read as _, Write as _},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    /// zlib, as defined by HTTP.
    Deflate,
}

impl Encoding {
    /// The encoding that `Content-Encoding` names.
    pub fn of(headers: &HeaderMap) -> Result<Self, Error> {
        Self::parse(headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes))
    }

    pub fn parse(header: Option<&[u8]>) -> Result<Self, Error> {
        let Some(value) = header else {
            return Ok(Self::Identity);
        };
        let value = value.trim_ascii();
        if value.is_empty() || value.eq_ignore_ascii_case(b"identity") {
            Ok(Self::Identity)
        } else if value.eq_ignore_ascii_case(b"gzip") || value.eq_ignore_ascii_case(b"x-gzip") {
            Ok(Self::Gzip)
        } else if value.eq_ignore_ascii_case(b"deflate") {
            Ok(Self::Deflate)
        } else {
            Err(Error::invalid(format!(
                "Content-Encoding {:?} is not one of identity, gzip, deflate",
                String::from_utf8_lossy(value).chars().take(40).collect::<String>()
            )))
        }
    }
}

/// Returns at most `limit` bytes.
pub fn decompress(body: Bytes, encoding: Encoding, limit: usize) -> Result<Bytes, Error> {
    let mut out = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read = match encoding {
        Encoding::Identity => return Ok(body),
        Encoding::Gzip => MultiGzDecoder::new(&*body).take(most).read_to_end(&mut out),
        Encoding::Deflate => ZlibDecoder::new(&*body).take(most).read_to_end(&mut out),
    };
    let name = if encoding == Encoding::Gzip { "gzip" } else { "deflate" };
    match read {
        Err(_) => Err(Error::invalid(format!("the body is not valid {name} data"))),
        Ok(length) if length > limit => Err(Error::new(
            Code::PayloadTooLarge,
            format!("the body has more than the {limit} bytes allowed once decompressed"),
        )),
        Ok(_) => Ok(out.into()),
    }
}

/// The first bytes of a body that may be cut short, at most `limit`, and whether they are all of it.
pub(crate) fn decompress_start(body: &[u8], encoding: Encoding, limit: usize) -> (Cow<'_, [u8]>, bool) {
    let mut out = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let ended = match encoding {
        Encoding::Identity => return (body.get(..limit).unwrap_or(body).into(), body.len() <= limit),
        Encoding::Gzip => MultiGzDecoder::new(body).take(most).read_to_end(&mut out),
        Encoding::Deflate => ZlibDecoder::new(body).take(most).read_to_end(&mut out),
    };
    let whole = ended.is_ok() && out.len() <= limit;
    out.truncate(limit);
    (out.into(), whole)
}

pub fn compress(body: &[u8], encoding: Encoding) -> Result<Bytes, Error> {
    let failed = |e: std::io::Error| Error::internal(format!("compressing failed: {e}"));
    match encoding {
        Encoding::Identity => Ok(Bytes::copy_from_slice(body)),
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(body).map_err(failed)?;
            encoder.finish().map(Bytes::from).map_err(failed)
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(body).map_err(failed)?;
            encoder.finish().map(Bytes::from).map_err(failed)
        }
    }
}
