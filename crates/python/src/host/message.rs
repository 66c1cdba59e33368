//! Messages between this process and the host program: a JSON header and raw tensors.

use bytes::Bytes;
use gantry_tensor::{DataType, Elements, Tensor};
use serde::{Deserialize, Serialize};
use std::io;

/// Limit of a header.
pub(super) const MAX_HEADER: u32 = 16 << 20;
pub(crate) const PREFIX: usize = 12;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TensorHeader {
    name: String,
    datatype: String,
    shape: Vec<usize>,
    size: usize,
}

/// Lengths of header and body, header, body.
pub(crate) fn frame(header: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(header)?;
    let length = u32::try_from(header.len()).map_err(|_| malformed("header is too long"))?;
    let mut bytes = Vec::with_capacity(PREFIX + header.len() + body.len());
    bytes.extend(length.to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(header);
    bytes.extend(body);
    Ok(bytes)
}

/// Lengths of header and body.
pub(crate) fn lengths(prefix: [u8; PREFIX]) -> (u32, u64) {
    let [a, b, c, d, body @ ..] = prefix;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(body))
}

pub(super) fn encode(tensors: &[Tensor]) -> (Vec<TensorHeader>, Vec<u8>) {
    let mut body = Vec::with_capacity(tensors.iter().map(|t| t.elements().raw_len()).sum());
    let headers = tensors.iter().map(|tensor| {
        tensor.elements().write_raw(&mut body);
        TensorHeader {
            name: tensor.name().to_owned(),
            datatype: tensor.datatype().name().to_owned(),
            shape: tensor.shape().to_vec(),
            size: tensor.elements().raw_len(),
        }
    });
    (headers.collect(), body)
}

pub(crate) fn decode(headers: Vec<TensorHeader>, mut body: &[u8]) -> io::Result<Vec<Tensor>> {
    let mut tensors = Vec::with_capacity(headers.len());
    for TensorHeader { name, datatype, shape, size } in headers {
        let (raw, rest) = body.split_at_checked(size).ok_or_else(|| malformed("a tensor is cut short"))?;
        body = rest;
        let datatype = DataType::parse(&datatype).ok_or_else(|| malformed("unknown datatype"))?;
        let elements = match datatype {
            DataType::Bytes => texts(raw),
            number => Elements::from_raw(number, raw),
        };
        let elements = elements.ok_or_else(|| malformed("a tensor is malformed"))?;
        tensors.push(Tensor::new(name, shape, elements).map_err(|e| malformed(&e.to_string()))?);
    }
    Ok(tensors)
}

/// Elements with their lengths before them.
fn texts(mut raw: &[u8]) -> Option<Elements> {
    let mut elements = Vec::new();
    while !raw.is_empty() {
        let (length, rest) = raw.split_first_chunk()?;
        let (element, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        elements.push(Bytes::copy_from_slice(element));
        raw = rest;
    }
    Some(Elements::Bytes(elements))
}

pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_round_trip_and_malformed_ones_are_errors() {
        let x = Tensor::new("x", [2, 2], Elements::Fp32(vec![0.5, -1.0, f32::INFINITY, 3.0])).unwrap();
        let text = Tensor::new("t", [2], Elements::Bytes(vec!["a".into(), "".into()])).unwrap();
        let (headers, body) = encode(&[x.clone(), text.clone()]);
        assert_eq!(decode(headers, &body).unwrap(), [x.clone(), text]);
        let (headers, body) = encode(std::slice::from_ref(&x));
        assert!(decode(headers, &body[1..]).is_err());
        let (mut headers, body) = encode(&[x]);
        headers[0].shape = vec![3];
        assert!(decode(headers, &body).is_err());
        let framed = frame(&1, b"ab").unwrap();
        assert_eq!(lengths(framed[..PREFIX].try_into().unwrap()), (1, 2));
    }
}
