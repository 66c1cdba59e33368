//! V1 requests.

use super::columns::{self, Column};
use crate::{
    Error, InferRequest, InferTensor, Limits,
    json::Cursor,
    raw::{checked_shape, shape_text},
    rest::data::{self, TensorHeader},
};
use bytes::Bytes;
use gantry_tensor::{DataType, Tensor, TensorSpec};

/// Decodes the body of `:predict` for a model with these inputs; the body is already decompressed.
///
/// Without inputs, as of a server that has no metadata, names are those of the instances and datatypes those of the values:
/// `BOOL`, `INT64`, `FP64` or `BYTES`.
pub fn decode_request(body: Bytes, inputs: &[TensorSpec], limits: &Limits) -> Result<InferRequest, Error> {
    let columns = columns::read(&body, inputs, limits)?;
    drop(body);
    let decode = |column: Column| {
        let spec = inputs.iter().find(|input| input.name == column.name);
        let context = format!("input {}", column.name);
        tensor(column, spec, limits).map(InferTensor::from).map_err(|error| error.at(context))
    };
    let inputs = columns.into_iter().map(decode).collect::<Result<_, _>>()?;
    Ok(InferRequest { inputs, ..InferRequest::default() })
}

fn tensor(column: Column, spec: Option<&TensorSpec>, limits: &Limits) -> Result<Tensor, Error> {
    let Column { name, json } = column;
    let scanned = Scan::of(&json, limits)?;
    if let Some(spec) = spec {
        check(&scanned.shape, &spec.shape)?;
    }
    let datatype = spec.map_or_else(|| scanned.datatype(), |spec| spec.datatype);
    let (shape, count) = checked_shape(&scanned.shape, datatype, limits)?;
    let header = TensorHeader { name, shape, count, datatype };
    let elements = data::read(&mut Cursor::new(&json), &header, &json, limits, false)?;
    Tensor::new(header.name, header.shape, elements).map_err(|e| Error::invalid(e.to_string()))
}

/// A dimension of -1 in the metadata is any size. The shape of a scalar is that of unknown inputs, too.
fn check(shape: &[i64], wanted: &[i64]) -> Result<(), Error> {
    let ([rows, row @ ..], [wanted_rows, wanted_row @ ..]) = (shape, wanted) else { return Ok(()) };
    let fits = |(got, wanted): (&i64, &i64)| *wanted < 0 || got == wanted;
    if row.len() != wanted_row.len() || !row.iter().zip(wanted_row).all(fits) {
        let text = |row: &[i64]| match row {
            [] => "single values".to_owned(),
            row => format!("values of shape {}", shape_text(row).replace("-1", "?")),
        };
        return Err(Error::invalid(format!(
            "the instances are {}, but the model takes {}",
            text(row),
            text(wanted_row)
        )));
    }
    if !fits((rows, wanted_rows)) {
        return Err(Error::invalid(format!("the model takes {wanted_rows} instances, got {rows}")));
    }
    Ok(())
}

/// The shape of a nested array, and the kinds of its elements.
#[derive(Default)]
struct Scan {
    shape: Vec<i64>,
    has_fraction: bool,
    has_number: bool,
    has_text: bool,
}

impl Scan {
    fn of(json: &[u8], limits: &Limits) -> Result<Self, Error> {
        let mut scan = Self::default();
        let mut cursor = Cursor::new(json);
        if !cursor.eat(b'[') {
            return Err(Error::invalid("the values must be an array"));
        }
        // Elements so far of each open array, outermost first.
        let mut open: Vec<i64> = vec![0];
        let mut lengths: Vec<Option<i64>> = vec![None];
        let mut depth_of_elements = None;
        let mut is_first = true;
        while let Some(count) = open.last_mut() {
            if !cursor.next_element(&mut is_first)? {
                let length = *count;
                let Some(expected) = lengths.get_mut(open.len() - 1) else { break };
                if *expected.get_or_insert(length) != length {
                    return Err(Error::invalid("the instances differ in shape"));
                }
                open.pop();
                is_first = false;
                continue;
            }
            *count += 1;
            let depth = open.len();
            if cursor.peek() == Some(b'[') {
                if depth >= limits.rank.min(limits.depth) {
                    return Err(Error::invalid(format!("more than the {} dimensions allowed", limits.rank)));
                }
                if depth_of_elements.is_some_and(|elements| depth >= elements) {
                    return Err(Error::invalid("the instances differ in shape"));
                }
                cursor.eat(b'[');
                open.push(0);
                if lengths.len() < open.len() {
                    lengths.push(None);
                }
                is_first = true;
                continue;
            }
            if *depth_of_elements.get_or_insert(depth) != depth || lengths.len() > depth {
                return Err(Error::invalid("the instances differ in shape"));
            }
            scan.element(&mut cursor)?;
            is_first = false;
        }
        scan.shape = lengths.into_iter().map(Option::unwrap_or_default).collect();
        Ok(scan)
    }

    fn element(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Error> {
        match cursor.peek() {
            Some(b'{') => {
                return Err(Error::invalid(
                    "the values must be numbers, strings, true or false, not objects",
                ));
            }
            Some(b'"') => self.has_text = true,
            Some(b'-' | b'0'..=b'9') => {
                if let Some(number) = cursor.clone().number() {
                    self.has_number = true;
                    self.has_fraction |= number.text.iter().any(|b| matches!(b, b'.' | b'e' | b'E'));
                }
            }
            _ => {}
        }
        cursor.skip(0)
    }

    const fn datatype(&self) -> DataType {
        match self {
            Self { has_text: true, .. } => DataType::Bytes,
            Self { has_fraction: true, .. } => DataType::Fp64,
            Self { has_number: true, .. } => DataType::Int64,
            _ => DataType::Bool,
        }
    }
}
