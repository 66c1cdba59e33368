//! Tensor `data`: nested or flat JSON arrays, decoded into typed vectors.

use crate::{
    Error, Limits,
    json::{Cursor, Number},
    raw::shape_text,
};
use bytes::Bytes;
use gantry_tensor::{DataType, Elements, f32_to_bf16, f32_to_f16};

/// Why an element was rejected.
enum ElementError {
    Null,
    NotFinite,
    Kind(&'static str),
    Fraction,
    Range,
    Json(Error),
}

/// Tensor fields needed to decode its data.
pub(crate) struct TensorHeader {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) count: usize,
    pub(crate) datatype: DataType,
}

/// Texts become slices of `body`. With `null_is_nan`, `null` is a NaN among floats, as written in responses.
pub(crate) fn read(
    cursor: &mut Cursor<'_>,
    header: &TensorHeader,
    body: &Bytes,
    limits: &Limits,
    null_is_nan: bool,
) -> Result<Elements, Error> {
    let (count, datatype) = (header.count, header.datatype);
    macro_rules! integers {
        ($variant:ident, $type:ty) => {
            array(cursor, count, limits, |c| integer::<$type>(c)).map(Elements::$variant)
        };
    }
    let elements = match datatype {
        DataType::Bool => array(cursor, count, limits, boolean).map(Elements::Bool),
        DataType::Uint8 => integers!(Uint8, u8),
        DataType::Uint16 => integers!(Uint16, u16),
        DataType::Uint32 => integers!(Uint32, u32),
        DataType::Uint64 => integers!(Uint64, u64),
        DataType::Int8 => integers!(Int8, i8),
        DataType::Int16 => integers!(Int16, i16),
        DataType::Int32 => integers!(Int32, i32),
        DataType::Int64 => integers!(Int64, i64),
        DataType::Fp16 => array(cursor, count, limits, |c| {
            let Some(number) = float(c, null_is_nan)? else { return Ok(0x7e00) };
            let bits = f32_to_f16(number.to_f32());
            if bits & 0x7fff == 0x7c00 { Err(ElementError::Range) } else { Ok(bits) }
        })
        .map(Elements::Fp16),
        DataType::Bf16 => array(cursor, count, limits, |c| {
            let Some(number) = float(c, null_is_nan)? else { return Ok(0x7fc0) };
            let bits = f32_to_bf16(number.to_f32());
            if bits & 0x7fff == 0x7f80 { Err(ElementError::Range) } else { Ok(bits) }
        })
        .map(Elements::Bf16),
        DataType::Fp32 => array(cursor, count, limits, |c| {
            let Some(number) = float(c, null_is_nan)? else { return Ok(f32::NAN) };
            finite(number.to_f32(), f32::is_finite)
        })
        .map(Elements::Fp32),
        DataType::Fp64 => array(cursor, count, limits, |c| {
            let Some(number) = float(c, null_is_nan)? else { return Ok(f64::NAN) };
            finite(number.to_f64(), f64::is_finite)
        })
        .map(Elements::Fp64),
        DataType::Bytes => array(cursor, count, limits, |c| text(c, body)).map(Elements::Bytes),
    };
    elements.map_err(|e| e.into_error(header))
}

/// Why an array was rejected.
enum ArrayError {
    Element(usize, ElementError),
    Count(usize),
    Json(Error),
    Message(&'static str),
}

impl ArrayError {
    fn into_error(self, header: &TensorHeader) -> Error {
        let datatype = header.datatype;
        let (index, bad) = match self {
            Self::Json(error) | Self::Element(_, ElementError::Json(error)) => return error,
            Self::Message(what) => return Error::invalid(what),
            Self::Count(got) => {
                return Error::invalid(format!(
                    "shape {} needs {} values, got {got}",
                    shape_text(&header.shape),
                    header.count
                ));
            }
            Self::Element(index, bad) => (index, bad),
        };
        Error::invalid(match bad {
            ElementError::Null => {
                format!("element {index} is null: every element of {datatype} needs a value")
            }
            ElementError::NotFinite => format!(
                "element {index} is NaN or infinite, which JSON cannot carry: send the tensor as binary data or over gRPC"
            ),
            ElementError::Kind(wanted) => format!("element {index} must be {wanted} for {datatype}"),
            ElementError::Fraction => format!("element {index} is not an integer, as {datatype} needs"),
            ElementError::Range => format!("element {index} is out of the range of {datatype}"),
            ElementError::Json(error) => return error,
        })
    }
}

const UNEVEN: &str = "the rows of data are nested unevenly";

/// Flattens nested arrays. All rows must have the same length and depth.
fn array<T>(
    cursor: &mut Cursor<'_>,
    count: usize,
    limits: &Limits,
    mut element: impl FnMut(&mut Cursor<'_>) -> Result<T, ElementError>,
) -> Result<Vec<T>, ArrayError> {
    if !cursor.eat(b'[') {
        return Err(ArrayError::Message("data must be an array"));
    }
    // An element takes at least two bytes, which bounds the claimed count.
    let mut out = Vec::with_capacity(count.min(cursor.remaining() / 2 + 1));
    let mut found = 0usize;
    let mut depth = 1usize;
    let mut row_start = 0usize;
    let mut row: Option<(usize, usize)> = None; // depth and length of the first row
    let mut fresh = true; // just after '[': a ']' may follow
    loop {
        match cursor.peek() {
            Some(b'[') => {
                cursor.eat(b'[');
                depth += 1;
                if depth > limits.depth {
                    return Err(ArrayError::Json(crate::json::too_deep(limits.depth)));
                }
                row_start = found;
                fresh = true;
                continue;
            }
            Some(b']') if fresh => {}
            _ => {
                let value = element(cursor).map_err(|bad| ArrayError::Element(found, bad))?;
                if found < count {
                    out.push(value);
                }
                found += 1;
                fresh = false;
                if cursor.eat(b',') {
                    if cursor.peek() == Some(b'[') {
                        return Err(ArrayError::Message(UNEVEN));
                    }
                    continue;
                }
                if row.is_some_and(|(first, _)| first != depth) {
                    return Err(ArrayError::Message(UNEVEN));
                }
                let length = found - row_start;
                match row {
                    None => row = Some((depth, length)),
                    Some((_, first)) if first != length => {
                        return Err(ArrayError::Message("the rows of data differ in length"));
                    }
                    Some(_) => {}
                }
            }
        }
        // Close the innermost arrays.
        loop {
            if !cursor.eat(b']') {
                return Err(ArrayError::Json(cursor.error("',' or ']'")));
            }
            depth -= 1;
            if depth == 0 {
                return if found == count { Ok(out) } else { Err(ArrayError::Count(found)) };
            }
            if cursor.eat(b',') {
                match cursor.peek() {
                    Some(b'[') => break,
                    None | Some(b']' | b',') => return Err(ArrayError::Json(cursor.error("a value"))),
                    Some(_) => return Err(ArrayError::Message(UNEVEN)),
                }
            }
        }
    }
}

fn finite<T: Copy>(value: T, is_finite: impl Fn(T) -> bool) -> Result<T, ElementError> {
    if is_finite(value) { Ok(value) } else { Err(ElementError::Range) }
}

#[inline]
fn float<'a>(cursor: &mut Cursor<'a>, null_is_nan: bool) -> Result<Option<Number<'a>>, ElementError> {
    match cursor.number() {
        Some(number) => Ok(Some(number)),
        None if null_is_nan && cursor.eat_word("null") => Ok(None),
        None => Err(no_number(cursor)),
    }
}

#[cold]
fn no_number(cursor: &mut Cursor<'_>) -> ElementError {
    if cursor.eat_word("null") {
        return ElementError::Null;
    }
    for word in ["NaN", "-NaN", "Infinity", "-Infinity", "inf", "-inf", "nan"] {
        if cursor.eat_word(word) {
            return ElementError::NotFinite;
        }
    }
    match cursor.peek() {
        Some(b'"' | b't' | b'f' | b'{' | b'[') => ElementError::Kind("a number"),
        _ => ElementError::Json(cursor.error("a number")),
    }
}

#[inline]
fn integer<T: TryFrom<i128>>(cursor: &mut Cursor<'_>) -> Result<T, ElementError> {
    use crate::json::Integer;
    let Some(number) = cursor.number() else {
        return Err(no_number(cursor));
    };
    match number.to_integer() {
        Integer::Is(value) => T::try_from(value).map_err(|_| ElementError::Range),
        Integer::OutOfRange => Err(ElementError::Range),
        Integer::Fraction => Err(ElementError::Fraction),
    }
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, ElementError> {
    match cursor.peek() {
        _ if cursor.eat_word("true") => Ok(true),
        _ if cursor.eat_word("false") => Ok(false),
        Some(b'0'..=b'9' | b'-') => match cursor.number().map(|n| n.text) {
            Some(b"0") => Ok(false),
            Some(b"1") => Ok(true),
            _ => Err(ElementError::Kind("true or false")),
        },
        _ if cursor.eat_word("null") => Err(ElementError::Null),
        Some(b'"' | b'{' | b'[') => Err(ElementError::Kind("true or false")),
        _ => Err(ElementError::Json(cursor.error("true or false"))),
    }
}

/// A slice of the body; copied only if it has escapes.
fn text(cursor: &mut Cursor<'_>, body: &Bytes) -> Result<Bytes, ElementError> {
    match cursor.peek() {
        Some(b'"') => {}
        _ if cursor.eat_word("null") => return Err(ElementError::Null),
        Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'{' | b'[') => return Err(ElementError::Kind("a string")),
        _ => return Err(ElementError::Json(cursor.error("a string"))),
    }
    let start = cursor.clone();
    let token = cursor.string_token("an element").map_err(ElementError::Json)?;
    if token.escaped {
        return cursor.unescape(&token).map(Bytes::from).map_err(ElementError::Json);
    }
    // Validates UTF-8.
    start.clone().string("an element").map_err(ElementError::Json)?;
    if token.range.end > body.len() {
        return Err(ElementError::Json(Error::internal("text outside the body")));
    }
    Ok(body.slice(token.range))
}
