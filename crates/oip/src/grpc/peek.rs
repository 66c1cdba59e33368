//! Reads the fields of a request that routing needs, without decoding the rest.
//!
//! `model_name` and `model_version` of `ModelInferRequest`, and `name` and `version` of `ModelReadyRequest`,
//! `ModelMetadataRequest` and `ModelStatisticsRequest`, are fields 1 and 2. As in protobuf, the last of several equal
//! fields counts.

use super::PREFIX;
use crate::{
    Error,
    rest::{Encoding, decompress_start},
};
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};
use std::borrow::Cow;

/// Fields 1 and 2, and the parameter `sequence_id` of an inference request. Absent fields are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFields<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub sequence: Option<SequenceId<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceId<'a> {
    Number(u64),
    Text(&'a str),
}

/// Fields of a whole message; `None` if it is not valid protobuf.
pub fn peek_request(message: &[u8]) -> Option<RequestFields<'_>> {
    fields(message, false)
}

/// Fields of the start of a message, up to the first field that is cut off or invalid; `None` if a text is not UTF-8.
pub fn peek_start(start: &[u8]) -> Option<RequestFields<'_>> {
    fields(start, true)
}

/// Field 1 of a message; empty if absent, `None` if the message is not valid protobuf.
pub fn peek_name(message: &[u8]) -> Option<&str> {
    peek_request(message).map(|fields| fields.name)
}

/// The first `limit` bytes of the message in a frame that may be partial or compressed, and whether they are all of it.
pub fn frame_start<'a>(
    frame: &'a [u8],
    encoding: Option<&[u8]>,
    limit: usize,
) -> Result<(Cow<'a, [u8]>, bool), Error> {
    let Some((&[flag, a, b, c, d], message)) = frame.split_first_chunk::<PREFIX>() else {
        return Err(Error::invalid(format!("a gRPC body of {} bytes has no message", frame.len())));
    };
    let encoding = if flag == 1 { Encoding::parse(encoding)? } else { Encoding::Identity };
    let (start, whole) = decompress_start(message, encoding, limit);
    Ok((start, whole && message.len() == u32::from_be_bytes([a, b, c, d]) as usize))
}

/// The model name of a frame that may be partial or compressed: large messages name the model first, as generated code
/// does.
pub fn peek_frame_name(frame: &[u8], encoding: Option<&[u8]>, limit: usize) -> Result<String, Error> {
    let (start, whole) = frame_start(frame, encoding, limit)?;
    let fields = if whole { peek_request(&start) } else { peek_start(&start) };
    let fields = fields.ok_or_else(|| Error::invalid("the message is not valid protobuf"))?;
    if fields.name.is_empty() {
        return Err(Error::invalid(if whole {
            "the message has no model name"
        } else {
            "the model name must precede the tensors, or be set in the header seldon-model"
        }));
    }
    Ok(fields.name.to_owned())
}

/// Replaces the name of a message and clears its version; `None` if the message is not valid protobuf.
pub fn replace_name(message: &[u8], name: &str) -> Option<Bytes> {
    // Appended: the last field counts. In an invalid message it could become the content of another field.
    peek_request(message)?;
    let mut out = BytesMut::with_capacity(message.len() + name.len() + 8);
    out.put_slice(message);
    out.put_u8(NAME_TAG);
    encode_varint(name.len() as u64, &mut out);
    out.put_slice(name.as_bytes());
    out.put_slice(&[VERSION_TAG, 0]);
    Some(out.freeze())
}

/// Replaces the name at the start of a partial message and removes the version after it; `None` if the name is not the
/// first field. The rest of the message has to pass a [`NameScanner`].
pub fn replace_leading_name(start: &[u8], name: &str) -> Option<Bytes> {
    let mut rest = start;
    let (1, Value::Bytes(_)) = next(&mut rest)? else { return None };
    if rest.first() == Some(&VERSION_TAG) {
        next(&mut rest)?;
    }
    let mut out = BytesMut::with_capacity(start.len() + name.len() + 8);
    out.put_u8(NAME_TAG);
    encode_varint(name.len() as u64, &mut out);
    out.put_slice(name.as_bytes());
    out.put_slice(rest);
    Some(out.freeze())
}

/// Finds a second name or version in a message that arrives in parts, which would replace the first one.
#[derive(Clone, Debug, Default)]
pub struct NameScanner {
    /// Bytes left of the current field.
    skip: u64,
    /// Start of a field that continues in the next part.
    head: Vec<u8>,
    first_field_passed: bool,
    failed: bool,
}

/// Tag and length take at most this many bytes.
const MAX_HEAD: usize = 20;

impl NameScanner {
    /// Whether a part had a name or version after the first field, or was not valid protobuf.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Scans the next part; `false` if the message fails.
    #[must_use]
    pub fn scan(&mut self, part: &[u8]) -> bool {
        self.failed = self.failed || !self.passes(part);
        !self.failed
    }

    fn passes(&mut self, part: &[u8]) -> bool {
        let mut left = part;
        loop {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(left.len());
            left = left.get(skipped..).unwrap_or_default();
            self.skip -= skipped as u64;
            let Some((&byte, after)) = left.split_first() else { return true };
            left = after;
            self.head.push(byte);
            let mut head = &*self.head;
            let Ok(tag) = decode_varint(&mut head) else {
                if self.head.len() < MAX_HEAD / 2 {
                    continue;
                }
                return false;
            };
            let length = match (tag & 7, decode_varint(&mut head)) {
                (1, _) => 8,
                (5, _) => 4,
                (0, Ok(_)) => 0,
                (2, Ok(length)) => length,
                (0 | 2, Err(_)) if self.head.len() < MAX_HEAD => continue,
                _ => return false,
            };
            if matches!(tag >> 3, 1 | 2) && self.first_field_passed {
                return false;
            }
            self.first_field_passed = true;
            self.skip = length;
            self.head.clear();
        }
    }
}

const NAME_TAG: u8 = 0x0a;
const VERSION_TAG: u8 = 0x12;

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Other,
}

/// The next field; `None` at the end of the data or when it is invalid, `rest` is then unchanged.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let mut left = *rest;
    let tag = decode_varint(&mut left).ok()?;
    let value = match tag & 7 {
        0 => Value::Varint(decode_varint(&mut left).ok()?),
        2 => {
            let length = usize::try_from(decode_varint(&mut left).ok()?).ok()?;
            let (value, after) = left.split_at_checked(length)?;
            left = after;
            Value::Bytes(value)
        }
        1 | 5 => {
            left = left.get(if tag & 7 == 1 { 8 } else { 4 }..)?;
            Value::Other
        }
        _ => return None,
    };
    *rest = left;
    Some((tag >> 3, value))
}

fn fields(message: &[u8], truncated: bool) -> Option<RequestFields<'_>> {
    let mut found = RequestFields::default();
    let mut rest = message;
    while let Some((number, value)) = next(&mut rest) {
        match (number, value) {
            (1, Value::Bytes(name)) => found.name = std::str::from_utf8(name).ok()?,
            (2, Value::Bytes(version)) => found.version = std::str::from_utf8(version).ok()?,
            (4, Value::Bytes(entry)) => found.sequence = sequence(entry).or(found.sequence),
            _ => {}
        }
    }
    (rest.is_empty() || truncated).then_some(found)
}

/// The value of a parameter `sequence_id`. Zero and the empty text mean no sequence.
fn sequence(mut entry: &[u8]) -> Option<SequenceId<'_>> {
    let (mut key, mut parameter) = (&[][..], &[][..]);
    while let Some((number, value)) = next(&mut entry) {
        match (number, value) {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Bytes(bytes)) => parameter = bytes,
            _ => {}
        }
    }
    if key != b"sequence_id" {
        return None;
    }
    let mut id = None;
    while let Some((number, value)) = next(&mut parameter) {
        id = match (number, value) {
            (2 | 5, Value::Varint(number)) => (number != 0).then_some(SequenceId::Number(number)),
            (3, Value::Bytes(text)) => {
                std::str::from_utf8(text).ok().filter(|t| !t.is_empty()).map(SequenceId::Text)
            }
            _ => id,
        };
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::inference::{InferParameter, ModelInferRequest, infer_parameter::ParameterChoice};
    use prost::Message as _;

    fn request() -> ModelInferRequest {
        ModelInferRequest {
            model_name: "iris".into(),
            model_version: "3".into(),
            id: "7".into(),
            raw_input_contents: vec![Bytes::from_static(&[1; 300])],
            ..Default::default()
        }
    }

    #[test]
    fn replaced_name_counts_and_the_version_is_cleared() {
        let message = request().encode_to_vec();
        assert_eq!(peek_name(&message), Some("iris"));
        let expected =
            ModelInferRequest { model_name: "iris_12".into(), model_version: String::new(), ..request() };
        for renamed in [replace_name(&message, "iris_12"), replace_leading_name(&message, "iris_12")] {
            assert_eq!(ModelInferRequest::decode(renamed.unwrap()).unwrap(), expected);
        }
        let nameless = ModelInferRequest { id: "7".into(), ..Default::default() }.encode_to_vec();
        assert_eq!(peek_name(&nameless), Some(""));
        assert_eq!(replace_leading_name(&nameless, "a"), None);
        let named = replace_name(&nameless, "a").unwrap();
        assert_eq!(ModelInferRequest::decode(named).unwrap().model_name, "a");
        // The last field announces more bytes than there are: it would swallow the name.
        let cut = [&message[..], b"\x1a\x05"].concat();
        assert_eq!(replace_name(&cut, "a"), None);
    }

    #[test]
    fn second_name_is_found_in_parts_of_any_size() {
        let message = request().encode_to_vec();
        let named = [&message[..], b"\x0a\x05other"].concat();
        let versioned = [&message[..], b"\x12\x011"].concat();
        let nameless = ModelInferRequest { model_version: String::new(), ..request() }.encode_to_vec();
        let fixed = [&nameless[..], b"\x39\0\0\0\0\0\0\0\0\x3d\0\0\0\0\x38\xff\x01"].concat();
        for size in 1..40 {
            let passes = |message: &[u8]| {
                let mut scanner = NameScanner::default();
                message.chunks(size).all(|part| scanner.scan(part))
            };
            assert!(passes(&nameless), "{size}");
            assert!(passes(&fixed), "{size}");
            assert!(!passes(&message), "a version after the name, {size}");
            assert!(!passes(&named), "{size}");
            assert!(!passes(&versioned), "{size}");
            assert!(!passes(&[0xff; 30]), "{size}");
            assert!(!passes(b"\x0b"), "groups do not exist in the protocol");
        }
    }

    #[test]
    fn last_of_repeated_fields_counts() {
        let twice = b"\x0a\x01a\x12\x011\x1a\x017\x0a\x01b\x12\x012";
        let decoded = ModelInferRequest::decode(&twice[..]).unwrap();
        assert_eq!((&*decoded.model_name, &*decoded.model_version), ("b", "2"));
        let fields = peek_request(twice).unwrap();
        assert_eq!((fields.name, fields.version), ("b", "2"));
    }

    #[test]
    fn invalid_and_truncated_messages() {
        assert_eq!(peek_name(&[0x0a, 200]), None);
        assert_eq!(peek_name(&[0xff; 20]), None);
        assert_eq!(peek_name(&[0x0a, 1, 0xff]), None, "not UTF-8");
        assert_eq!(peek_name(&[0x1a, 1, b'7', 0x0a, 1, b'm']), Some("m"), "fields may come in any order");
        let message = request().encode_to_vec();
        for cut in [20, 100, message.len() - 1] {
            assert_eq!(peek_request(&message[..cut]), None);
            let fields = peek_start(&message[..cut]).unwrap();
            assert_eq!((fields.name, fields.version), ("iris", "3"));
        }
        assert_eq!(peek_start(&message[..4]), Some(RequestFields::default()));
    }

    #[test]
    fn sequence_id_is_found_among_parameters() {
        use ParameterChoice::{BoolParam, Int64Param, StringParam};
        for (choice, expected) in [
            (Int64Param(42), Some(SequenceId::Number(42))),
            (Int64Param(0), None),
            (StringParam("a".into()), Some(SequenceId::Text("a"))),
            (StringParam(String::new()), None),
            (BoolParam(true), None),
        ] {
            let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
            let parameters = [
                ("sequence_start".to_owned(), parameter(BoolParam(true))),
                ("sequence_id".to_owned(), parameter(choice)),
            ];
            let message = ModelInferRequest { parameters: parameters.into_iter().collect(), ..request() }
                .encode_to_vec();
            assert_eq!(peek_request(&message).unwrap().sequence, expected);
        }
    }

    #[test]
    fn name_is_read_from_the_start_of_a_frame() {
        let request = ModelInferRequest {
            model_name: "iris".into(),
            raw_input_contents: vec![Bytes::from(vec![0; 1 << 20])],
            ..Default::default()
        };
        let message = request.encode_to_vec();
        for (encoding, header) in [
            (Encoding::Identity, None),
            (Encoding::Gzip, Some(b"gzip".as_slice())),
            (Encoding::Deflate, Some(b"deflate")),
        ] {
            let packed = crate::rest::compress(&message, encoding).unwrap();
            let mut frame = vec![u8::from(header.is_some())];
            frame.extend_from_slice(&u32::try_from(packed.len()).unwrap().to_be_bytes());
            frame.extend_from_slice(&packed);
            for length in [frame.len(), 500] {
                assert_eq!(peek_frame_name(&frame[..length], header, 1000).unwrap(), "iris", "{encoding:?}");
            }
        }
        let late = [0x1a, 1, b'7', 0x0a, 1, b'm'];
        let frame = [&[0, 0, 0, 0, 6], late.as_slice()].concat();
        assert_eq!(peek_frame_name(&frame, None, 6).unwrap(), "m");
        for (frame, limit, message) in [
            (frame.as_slice(), 5, "the model name must precede the tensors"),
            (&[0, 0, 0, 0, 0], 5, "the message has no model name"),
            (&[0, 0, 0, 0, 1, 0xff], 5, "the message is not valid protobuf"),
            (&[1, 0, 0, 0, 1, 0xff], 5, "the model name must precede the tensors"),
            (&[0, 0, 0], 5, "a gRPC body of 3 bytes has no message"),
        ] {
            let error = peek_frame_name(frame, Some(b"gzip"), limit).unwrap_err().message;
            assert!(error.contains(message), "{error}");
        }
    }
}
