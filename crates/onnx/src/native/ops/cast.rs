//! `Cast` from every datatype to every other.

use crate::native::node::{Kernel, Node};
use crate::native::value::{OpError, Value};
use crate::native::watch::Watch;
use crate::proto::data_type;
use bytes::Bytes;
use gantry_tensor::{DataType, Elements, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Prepares `Cast`.
pub(crate) fn build(node: &Node<'_>) -> Result<Kernel, OpError> {
    let number = node.int("to", 0)?;
    let to =
        data_type(number).ok_or_else(|| OpError::attribute("to", format!("is {number}, no known type")))?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        if to == DataType::Bytes {
            args.room_for(x.shape, TEXT_BYTES)?;
        }
        Ok(vec![Value::new(x.shape, widen(cast(args.watch, x.data, to)?))])
    }))
}

/// About what a number as text takes: the handle, an allocation for its digits, and what manages it.
const TEXT_BYTES: usize = size_of::<Bytes>() + 64;

/// Halves as single precision: operators have no other arithmetic for them. The values keep their rounding.
pub(crate) fn widen(data: Elements) -> Elements {
    match data {
        Elements::Fp16(v) => Elements::Fp32(v.into_iter().map(f16_to_f32).collect()),
        Elements::Bf16(v) => Elements::Fp32(v.into_iter().map(bf16_to_f32).collect()),
        other => other,
    }
}

/// The elements in another datatype.
pub(crate) fn cast(watch: &Watch<'_>, from: &Elements, to: DataType) -> Result<Elements, OpError> {
    if from.datatype() == to {
        return Ok(from.clone());
    }
    match (from, to) {
        (Elements::Bytes(texts), _) => from_text(watch, texts, to),
        (_, DataType::Bytes) => Ok(Elements::Bytes(to_text(watch, from)?)),
        // Integers go by way of i64, which f64 could not hold.
        (Elements::Int64(v), _) => Ok(from_integers(watch.polled(v.iter().copied()), to)),
        (Elements::Int32(v), _) => Ok(from_integers(watch.polled(v.iter().map(|&x| i64::from(x))), to)),
        (Elements::Bool(v), _) => Ok(from_integers(watch.polled(v.iter().map(|&x| i64::from(x))), to)),
        (Elements::Uint64(v), _) => Ok(from_integers(watch.polled(v.iter().map(|&x| x as i64)), to)),
        (Elements::Fp32(v), DataType::Fp16) => Ok(Elements::Fp16(watch.map(v, |&x| f32_to_f16(x))?)),
        (Elements::Fp32(v), DataType::Bf16) => Ok(Elements::Bf16(watch.map(v, |&x| f32_to_bf16(x))?)),
        _ => {
            let values = from.to_f64().ok_or(OpError::Datatype { index: 0, got: DataType::Bytes })?;
            Ok(from_floats(watch, &values, to))
        }
    }
}

fn from_integers(v: impl Iterator<Item = i64>, to: DataType) -> Elements {
    match to {
        DataType::Bool => Elements::Bool(v.map(|x| x != 0).collect()),
        DataType::Uint8 => Elements::Uint8(v.map(|x| x as u8).collect()),
        DataType::Uint16 => Elements::Uint16(v.map(|x| x as u16).collect()),
        DataType::Uint32 => Elements::Uint32(v.map(|x| x as u32).collect()),
        DataType::Uint64 => Elements::Uint64(v.map(|x| x as u64).collect()),
        DataType::Int8 => Elements::Int8(v.map(|x| x as i8).collect()),
        DataType::Int16 => Elements::Int16(v.map(|x| x as i16).collect()),
        DataType::Int32 => Elements::Int32(v.map(|x| x as i32).collect()),
        DataType::Int64 => Elements::Int64(v.collect()),
        DataType::Fp16 => Elements::Fp16(v.map(|x| f32_to_f16(x as f32)).collect()),
        DataType::Bf16 => Elements::Bf16(v.map(|x| f32_to_bf16(x as f32)).collect()),
        DataType::Fp32 => Elements::Fp32(v.map(|x| x as f32).collect()),
        DataType::Fp64 => Elements::Fp64(v.map(|x| x as f64).collect()),
        DataType::Bytes => Elements::Bytes(v.map(|x| Bytes::from(x.to_string())).collect()),
    }
}

fn from_floats(watch: &Watch<'_>, v: &[f64], to: DataType) -> Elements {
    let v = watch.polled(v.iter());
    match to {
        DataType::Bool => Elements::Bool(v.map(|&x| x != 0.0).collect()),
        DataType::Fp64 => Elements::Fp64(v.copied().collect()),
        DataType::Fp32 => Elements::Fp32(v.map(|&x| x as f32).collect()),
        DataType::Fp16 => Elements::Fp16(v.map(|&x| f32_to_f16(x as f32)).collect()),
        DataType::Bf16 => Elements::Bf16(v.map(|&x| f32_to_bf16(x as f32)).collect()),
        DataType::Uint64 => Elements::Uint64(v.map(|&x| x as u64).collect()),
        other => from_integers(v.map(|&x| x as i64), other),
    }
}

fn from_text(watch: &Watch<'_>, texts: &[Bytes], to: DataType) -> Result<Elements, OpError> {
    let parsed = |text: &Bytes| -> Result<f64, OpError> {
        std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.trim().parse().ok())
            .ok_or_else(|| OpError::Value(format!("{:?} is not a number", String::from_utf8_lossy(text))))
    };
    if matches!(to, DataType::Int64 | DataType::Int32) {
        let ints: Vec<i64> = watch
            .polled(texts.iter())
            .map(|t| {
                let exact = std::str::from_utf8(t).ok().and_then(|t| t.trim().parse::<i64>().ok());
                exact.map_or_else(|| parsed(t).map(|x| x as i64), Ok)
            })
            .collect::<Result<_, _>>()?;
        return Ok(from_integers(ints.into_iter(), to));
    }
    let values: Vec<f64> = watch.polled(texts.iter()).map(parsed).collect::<Result<_, _>>()?;
    Ok(from_floats(watch, &values, to))
}

fn to_text(watch: &Watch<'_>, from: &Elements) -> Result<Vec<Bytes>, OpError> {
    match from {
        Elements::Int64(v) => watch.map(v, |x| Bytes::from(x.to_string())),
        Elements::Int32(v) => watch.map(v, |x| Bytes::from(x.to_string())),
        Elements::Bool(v) => watch.map(v, |x| Bytes::from(u8::from(*x).to_string())),
        Elements::Fp32(v) => watch.map(v, |&x| Bytes::from(general(f64::from(x), 8))),
        other => {
            let values = other.to_f64().unwrap_or_default();
            watch.map(&values, |&x| Bytes::from(general(x, 17)))
        }
    }
}

/// A number the way C prints it with `%.<digits>g`, which is how ONNX Runtime casts to strings.
fn general(x: f64, digits: usize) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    if x == 0.0 {
        return if x.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{:.*e}", digits - 1, x);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |s: &str| -> String {
        if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s.to_owned() }
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs());
    }
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    trim(&format!("{x:.decimals$}"))
}
