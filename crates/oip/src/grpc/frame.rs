//! Framing of unary calls: five-byte prefix, message, status trailers.

use crate::{
    Code, Error,
    rest::{Encoding, decompress},
};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use prost::Message;

/// Length of the gRPC message prefix.
pub const PREFIX: usize = 5;

/// Decodes the single message of a unary call.
///
/// `encoding` is the value of the header `grpc-encoding`.
pub fn decode_frame(body: &Bytes, encoding: Option<&[u8]>, limit: usize) -> Result<Bytes, Error> {
    let Some((&[flag, a, b, c, d], message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(Error::invalid(format!("a gRPC body of {} bytes has no message", body.len())));
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > limit {
        return Err(Error::new(
            Code::PayloadTooLarge,
            format!("the message has {length} bytes, more than the {limit} allowed"),
        ));
    }
    if length != message.len() {
        return Err(Error::invalid(format!(
            "the gRPC frame announces {length} bytes, {} follow",
            message.len()
        )));
    }
    let message = body.slice(PREFIX..);
    match flag {
        0 => Ok(message),
        1 => match Encoding::parse(encoding)? {
            Encoding::Identity => Err(Error::invalid(
                "the gRPC frame is marked as compressed, but grpc-encoding names no compression",
            )),
            encoding => decompress(message, encoding, limit),
        },
        _ => Err(Error::invalid(format!("the gRPC frame has an unknown flag {flag}"))),
    }
}

pub fn encode_frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut out);
    out.freeze()
}

/// Frames an encoded message.
pub fn frame_message(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX + message.len());
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(message);
    out.freeze()
}

/// Status trailers of a success or an error.
pub fn status_trailers(error: Option<&Error>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(3);
    let Some(error) = error else {
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        return trailers;
    };
    trailers.insert("grpc-status", HeaderValue::from(u16::from(error.code.grpc())));
    if let Ok(message) = HeaderValue::from_str(&percent_encode(&error.message)) {
        trailers.insert("grpc-message", message);
    }
    if let Some(seconds) = error.retry_after {
        trailers.insert("retry-after", HeaderValue::from(seconds));
    }
    trailers
}

/// The outcome in headers or trailers, if they have one.
pub fn status(headers: &HeaderMap) -> Option<Result<(), Error>> {
    let status: u8 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").map(|m| percent_decode(m.as_bytes())).unwrap_or_default();
    Some(if status == 0 { Ok(()) } else { Err(Error::new(Code::from_grpc(status), message)) })
}

/// Encodes `grpc-message`: `%` and non-printable bytes become `%XX`; long texts are truncated.
pub fn percent_encode(text: &str) -> String {
    const LONGEST: usize = 4096;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if out.len() >= LONGEST {
            break;
        }
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0').to_ascii_uppercase());
            }
        }
    }
    out
}

/// Decodes [`percent_encode`]; invalid escapes are kept.
pub fn percent_decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => break,
            [b'%', high, low, after @ ..] => {
                let digit = |d: &u8| char::from(*d).to_digit(16);
                if let (Some(high), Some(low)) = (digit(high), digit(low)) {
                    out.push((high << 4 | low) as u8);
                    after
                } else {
                    out.push(b'%');
                    rest.get(1..).unwrap_or_default()
                }
            }
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn inconsistent_frames_are_rejected() {
        let table: [(&[u8], &str); 5] = [
            (b"", "a gRPC body of 0 bytes has no message"),
            (b"\0\0\0\0", "a gRPC body of 4 bytes has no message"),
            (b"\0\0\0\0\x05ab", "the gRPC frame announces 5 bytes, 2 follow"),
            (b"\x02\0\0\0\0", "the gRPC frame has an unknown flag 2"),
            (b"\0\xff\xff\xff\xff", "the message has 4294967295 bytes, more than the 100 allowed"),
        ];
        for (body, message) in table {
            let error = decode_frame(&Bytes::from_static(body), None, 100).unwrap_err();
            assert_eq!(error.message, message);
        }
        let marked = Bytes::from_static(b"\x01\0\0\0\x02ab");
        assert!(decode_frame(&marked, None, 100).unwrap_err().message.contains("names no compression"));
        assert_eq!(
            decode_frame(&marked, Some(b"gzip"), 100).unwrap_err().message,
            "the body is not valid gzip data"
        );
    }

    #[test]
    fn compressed_frame_is_decoded_within_the_limit() {
        let plain = vec![7u8; 1000];
        let packed = crate::rest::compress(&plain, Encoding::Gzip).unwrap();
        let mut body = vec![1];
        body.extend_from_slice(&u32::try_from(packed.len()).unwrap().to_be_bytes());
        body.extend_from_slice(&packed);
        let body = Bytes::from(body);
        assert_eq!(decode_frame(&body, Some(b"gzip"), 1000).unwrap(), plain);
        assert_eq!(decode_frame(&body, Some(b"gzip"), 999).unwrap_err().code, Code::PayloadTooLarge);
    }

    proptest! {
        #[test]
        fn percent_encoding_round_trips(text in "\\PC{0,200}") {
            prop_assert_eq!(percent_decode(percent_encode(&text).as_bytes()), text);
        }
    }
}
