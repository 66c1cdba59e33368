//! Reads the model name of a message without decoding the rest.
//!
//! `model_name` of `ModelInferRequest` and `name` of `ModelReadyRequest`, `ModelMetadataRequest` and
//! `ModelStatisticsRequest` are all field 1.

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
use std::ops::Range;

/// Field 1 of a message; empty if absent, `None` if the message is not valid protobuf.
pub fn peek_name(message: &[u8]) -> Option<&str> {
    std::str::from_utf8(message.get(find(message)?.text)?).ok()
}

/// Replaces field 1 of a message.
pub fn replace_name(message: &Bytes, name: &str) -> Option<Bytes> {
    let field = find(message)?.field;
    let mut out =
        BytesMut::with_capacity(message.len() + name.len() + 2 + encoded_len_varint(name.len() as u64));
    out.put_slice(message.get(..field.start)?);
    out.put_u8(0x0a);
    encode_varint(name.len() as u64, &mut out);
    out.put_slice(name.as_bytes());
    out.put_slice(message.get(field.end..)?);
    Some(out.freeze())
}

/// Location of field 1; empty ranges at the start if absent.
#[derive(Default)]
struct Found {
    /// Including the tag.
    field: Range<usize>,
    text: Range<usize>,
}

/// Generated code writes it first; other orders are scanned.
fn find(message: &[u8]) -> Option<Found> {
    let mut last = Found::default();
    let mut rest = message;
    while !rest.is_empty() {
        let start = message.len() - rest.len();
        let tag = decode_varint(&mut rest).ok()?;
        match tag & 7 {
            0 => {
                decode_varint(&mut rest).ok()?;
            }
            1 => rest = rest.get(8..)?,
            2 => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let text = message.len() - rest.len();
                rest = rest.get(length..)?;
                let end = text + length;
                if tag == 0x0a {
                    last = Found { field: start..end, text: text..end };
                    // Fast path: field 1 is the first field.
                    if start == 0 {
                        break;
                    }
                }
            }
            5 => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    Some(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::inference::ModelInferRequest;
    use prost::Message as _;

    #[test]
    fn peek_and_replace_name() {
        let request = ModelInferRequest {
            model_name: "iris".into(),
            id: "7".into(),
            raw_input_contents: vec![Bytes::from_static(&[1, 2, 3])],
            ..Default::default()
        };
        let message = Bytes::from(request.encode_to_vec());
        assert_eq!(peek_name(&message), Some("iris"));
        let renamed = replace_name(&message, "iris_12").unwrap();
        let expected = ModelInferRequest { model_name: "iris_12".into(), ..request };
        assert_eq!(ModelInferRequest::decode(renamed).unwrap(), expected);

        let nameless = ModelInferRequest { id: "7".into(), ..Default::default() }.encode_to_vec();
        assert_eq!(peek_name(&nameless), Some(""));
        let named = replace_name(&nameless.into(), "a").unwrap();
        assert_eq!(ModelInferRequest::decode(named).unwrap().model_name, "a");
        assert_eq!(peek_name(&[0x0a, 200]), None);
        assert_eq!(peek_name(&[0xff; 20]), None);
        assert_eq!(peek_name(&[0x1a, 1, b'7', 0x0a, 1, b'm']), Some("m"), "fields may come in any order");
    }
}
