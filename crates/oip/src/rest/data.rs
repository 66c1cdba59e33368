//! The `data` of a tensor: nested or flat JSON arrays, straight into typed vectors.

use crate::{
    Error, Limits,
    json::{Cursor, Number},
    raw::shape_text,
};
use bytes::Bytes;
use gantry_tensor::{DataType, Elements, f32_to_bf16, f32_to_f16};

/// Why an element was refused.
enum Bad {
    Null,
    NotFinite,
    Kind(&'static str),
    Fraction,
    Range,
    Json(Error),
}

/// What is known of a tensor before its data is read.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) count: usize,
    pub(super) datatype: DataType,
}

/// Reads the data at the cursor. `body` is the whole body, of which texts become slices; with `null_is_nan` a
/// `null` among floats is a NaN, as responses write it.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    about: &Described,
    body: &Bytes,
    limits: &Limits,
    null_is_nan: bool,
) -> Result<Elements, Error> {
    let (count, datatype) = (about.count, about.datatype);
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
            if bits & 0x7fff == 0x7c00 { Err(Bad::Range) } else { Ok(bits) }
        })
        .map(Elements::Fp16),
        DataType::Bf16 => array(cursor, count, limits, |c| {
            let Some(number) = float(c, null_is_nan)? else { return Ok(0x7fc0) };
            let bits = f32_to_bf16(number.to_f32());
            if bits & 0x7fff == 0x7f80 { Err(Bad::Range) } else { Ok(bits) }
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
    elements.map_err(|e| e.into_error(about))
}

/// Why an array was refused.
enum ArrayError {
    Element(usize, Bad),
    Count(usize),
    Json(Error),
    Said(&'static str),
}

impl ArrayError {
    fn into_error(self, about: &Described) -> Error {
        let datatype = about.datatype;
        let (index, bad) = match self {
            Self::Json(error) | Self::Element(_, Bad::Json(error)) => return error,
            Self::Said(what) => return Error::invalid(what),
            Self::Count(got) => {
                return Error::invalid(format!(
                    "shape {} needs {} values, got {got}",
                    shape_text(&about.shape),
                    about.count
                ));
            }
            Self::Element(index, bad) => (index, bad),
        };
        Error::invalid(match bad {
            Bad::Null => format!("element {index} is null: every element of {datatype} needs a value"),
            Bad::NotFinite => format!(
                "element {index} is NaN or infinite, which JSON cannot carry: send the tensor as binary data or over gRPC"
            ),
            Bad::Kind(wanted) => format!("element {index} must be {wanted} for {datatype}"),
            Bad::Fraction => format!("element {index} is not an integer, as {datatype} needs"),
            Bad::Range => format!("element {index} is out of the range of {datatype}"),
            Bad::Json(error) => return error,
        })
    }
}

const UNEVEN: &str = "the rows of data are nested unevenly";

/// An array of arrays of … of elements, flattened. All rows must be of one length and one depth.
fn array<T>(
    cursor: &mut Cursor<'_>,
    count: usize,
    limits: &Limits,
    mut element: impl FnMut(&mut Cursor<'_>) -> Result<T, Bad>,
) -> Result<Vec<T>, ArrayError> {
    if !cursor.eat(b'[') {
        return Err(ArrayError::Said("data must be an array"));
    }
    // An element takes two bytes at least, so what the shape claims beyond that is not there.
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
                        return Err(ArrayError::Said(UNEVEN));
                    }
                    continue;
                }
                if row.is_some_and(|(first, _)| first != depth) {
                    return Err(ArrayError::Said(UNEVEN));
                }
                let length = found - row_start;
                match row {
                    None => row = Some((depth, length)),
                    Some((_, first)) if first != length => {
                        return Err(ArrayError::Said("the rows of data differ in length"));
                    }
                    Some(_) => {}
                }
            }
        }
        // The innermost array ends, and perhaps some around it.
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
                    Some(_) => return Err(ArrayError::Said(UNEVEN)),
                }
            }
        }
    }
}

fn finite<T: Copy>(value: T, is_finite: impl Fn(T) -> bool) -> Result<T, Bad> {
    if is_finite(value) { Ok(value) } else { Err(Bad::Range) }
}

#[inline]
fn float<'a>(cursor: &mut Cursor<'a>, null_is_nan: bool) -> Result<Option<Number<'a>>, Bad> {
    match cursor.number() {
        Some(number) => Ok(Some(number)),
        None if null_is_nan && cursor.eat_word("null") => Ok(None),
        None => Err(no_number(cursor)),
    }
}

#[cold]
fn no_number(cursor: &mut Cursor<'_>) -> Bad {
    if cursor.eat_word("null") {
        return Bad::Null;
    }
    for word in ["NaN", "-NaN", "Infinity", "-Infinity", "inf", "-inf", "nan"] {
        if cursor.eat_word(word) {
            return Bad::NotFinite;
        }
    }
    match cursor.peek() {
        Some(b'"' | b't' | b'f' | b'{' | b'[') => Bad::Kind("a number"),
        _ => Bad::Json(cursor.error("a number")),
    }
}

#[inline]
fn integer<T: TryFrom<i128>>(cursor: &mut Cursor<'_>) -> Result<T, Bad> {
    use crate::json::Integer;
    let Some(number) = cursor.number() else {
        return Err(no_number(cursor));
    };
    match number.to_integer() {
        Integer::Is(value) => T::try_from(value).map_err(|_| Bad::Range),
        Integer::OutOfRange => Err(Bad::Range),
        Integer::Fraction => Err(Bad::Fraction),
    }
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, Bad> {
    match cursor.peek() {
        _ if cursor.eat_word("true") => Ok(true),
        _ if cursor.eat_word("false") => Ok(false),
        Some(b'0'..=b'9' | b'-') => match cursor.number().map(|n| n.text) {
            Some(b"0") => Ok(false),
            Some(b"1") => Ok(true),
            _ => Err(Bad::Kind("true or false")),
        },
        _ if cursor.eat_word("null") => Err(Bad::Null),
        Some(b'"' | b'{' | b'[') => Err(Bad::Kind("true or false")),
        _ => Err(Bad::Json(cursor.error("true or false"))),
    }
}

/// A text as a slice of the body; copied only when it has escapes.
fn text(cursor: &mut Cursor<'_>, body: &Bytes) -> Result<Bytes, Bad> {
    match cursor.peek() {
        Some(b'"') => {}
        _ if cursor.eat_word("null") => return Err(Bad::Null),
        Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'{' | b'[') => return Err(Bad::Kind("a string")),
        _ => return Err(Bad::Json(cursor.error("a string"))),
    }
    let start = cursor.clone();
    let token = cursor.string_token("an element").map_err(Bad::Json)?;
    if token.escaped {
        return cursor.unescape(&token).map(Bytes::from).map_err(Bad::Json);
    }
    // Checks that it is UTF-8.
    start.clone().string("an element").map_err(Bad::Json)?;
    if token.range.end > body.len() {
        return Err(Bad::Json(Error::internal("a text lies outside the body")));
    }
    Ok(body.slice(token.range))
}
