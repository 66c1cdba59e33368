//! Lookup operators: encoders and column selection.

use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value, View, pick, unsupported_type};
use bytes::Bytes;
use gantry_tensor::{DataType, Elements};
use std::collections::HashMap;

/// The operators of this file.
pub(super) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    Ok(Some(match node.proto.op_type {
        "OneHotEncoder" => one_hot(node)?,
        "LabelEncoder" => label_encoder(node)?,
        "CategoryMapper" => category_mapper(node)?,
        "ArrayFeatureExtractor" => Box::new(|args| extract(args).map(|v| vec![v])),
        // A sequence of maps from label to score has no place in the protocol: the scores stay a tensor.
        "ZipMap" => Box::new(|args| {
            let x = args.get(0)?;
            let (rows, columns) = x.rows()?;
            Ok(vec![Value::f32([rows, columns], x.floats()?.into_owned())])
        }),
        _ => return Ok(None),
    }))
}

/// A value that can be looked up; floats by their bits, with one NaN and one zero.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    Text(Bytes),
    Float(u64),
}

impl Key {
    fn float(v: f64) -> Self {
        if v.is_nan() {
            Self::Float(f64::NAN.to_bits())
        } else if v == 0.0 {
            Self::Float(0)
        } else {
            Self::Float(v.to_bits())
        }
    }
}

fn keys(data: &Elements) -> Option<Vec<Key>> {
    Some(match data {
        Elements::Int64(v) => v.iter().map(|&k| Key::Int(k)).collect(),
        Elements::Int32(v) => v.iter().map(|&k| Key::Int(i64::from(k))).collect(),
        Elements::Int16(v) => v.iter().map(|&k| Key::Int(i64::from(k))).collect(),
        Elements::Bool(v) => v.iter().map(|&k| Key::Int(i64::from(k))).collect(),
        Elements::Bytes(v) => v.iter().map(|k| Key::Text(k.clone())).collect(),
        Elements::Fp32(v) => v.iter().map(|&k| Key::float(f64::from(k))).collect(),
        Elements::Fp64(v) => v.iter().map(|&k| Key::float(k)).collect(),
        _ => return None,
    })
}

fn texts(values: &[&[u8]]) -> Elements {
    Elements::Bytes(values.iter().map(|v| Bytes::copy_from_slice(v)).collect())
}

/// A map from any value to any other, with one more value for what is not in it.
struct Lookup {
    places: HashMap<Key, usize>,
    kind: DataType,
    values: Elements,
    fallback: usize,
}

impl Lookup {
    fn new(from: &Elements, mut to: Elements, default: Elements) -> Result<Self, OpError> {
        if from.len() != to.len() {
            return Err(OpError::Value(format!("{} keys for {} values", from.len(), to.len())));
        }
        let fallback = to.len();
        let first = |kind: DataType| OpError::Value(format!("the default is not {kind}"));
        match (&mut to, default) {
            (Elements::Int64(v), Elements::Int64(d)) => v.extend(d.first()),
            (Elements::Fp32(v), Elements::Fp32(d)) => v.extend(d.first()),
            (Elements::Fp64(v), Elements::Fp64(d)) => v.extend(d.first()),
            (Elements::Int16(v), Elements::Int16(d)) => v.extend(d.first()),
            (Elements::Bytes(v), Elements::Bytes(d)) => v.extend(d.into_iter().take(1)),
            (values, _) => return Err(first(values.datatype())),
        }
        let kind = from.datatype();
        let mut places = HashMap::new();
        for (i, key) in keys(from).unwrap_or_default().into_iter().enumerate() {
            // A key that is there twice keeps its first value.
            places.entry(key).or_insert(i);
        }
        Ok(Self { places, kind, values: to, fallback })
    }

    fn run(&self, args: &Args<'_>, x: View<'_>) -> Result<Value, OpError> {
        if x.data.datatype() != self.kind {
            return Err(unsupported_type(0, &x));
        }
        args.room_like(x.shape, &self.values)?;
        let keys = keys(x.data).ok_or_else(|| unsupported_type(0, &x))?;
        let places = keys.iter().map(|k| self.places.get(k).copied().unwrap_or(self.fallback));
        Ok(Value::new(x.shape, pick(args.watch, &self.values, places)))
    }
}

fn label_encoder(node: &Node<'_>) -> Result<Kernel, OpError> {
    let words = node.texts("classes_strings")?;
    let default_text = || -> Result<Elements, OpError> {
        Ok(Elements::Bytes(vec![Bytes::copy_from_slice(node.text("default_string", "_Unused")?.as_bytes())]))
    };
    let default_int =
        || -> Result<Elements, OpError> { Ok(Elements::Int64(vec![node.int("default_int64", -1)?])) };
    if !words.is_empty() {
        // Version 1 goes both ways: strings to their positions, and positions to strings.
        let positions = Elements::Int64((0..words.len() as i64).collect());
        let numbers = Lookup::new(&texts(words), positions.clone(), default_int()?)?;
        let names = Lookup::new(&positions, texts(words), default_text()?)?;
        return Ok(Box::new(move |args| {
            let x = args.get(0)?;
            let lookup = if x.data.datatype() == DataType::Bytes { &numbers } else { &names };
            lookup.run(args, x).map(|v| vec![v])
        }));
    }
    let list = |role: &str| -> Result<Elements, OpError> {
        if let Some(tensor) = node.tensor(&format!("{role}_tensor"))? {
            return Ok(tensor.data);
        }
        let (ints, floats) = (format!("{role}_int64s"), format!("{role}_floats"));
        if node.has(&ints) {
            Ok(Elements::Int64(node.ints(&ints)?.to_vec()))
        } else if node.has(&floats) {
            Ok(Elements::Fp32(node.floats(&floats)?.to_vec()))
        } else {
            Ok(texts(node.texts(&format!("{role}_strings"))?))
        }
    };
    let (from, to) = (list("keys")?, list("values")?);
    let default = match (node.tensor("default_tensor")?, &to) {
        (Some(tensor), _) => tensor.data,
        (None, Elements::Int64(_)) => default_int()?,
        (None, Elements::Fp32(_)) => Elements::Fp32(vec![node.float("default_float", -0.0)?]),
        (None, Elements::Fp64(_)) => Elements::Fp64(vec![f64::from(node.float("default_float", -0.0)?)]),
        (None, Elements::Int16(_)) => Elements::Int16(vec![-1]),
        (None, _) => default_text()?,
    };
    let mut lookup = Lookup::new(&from, to, default)?;
    if node.opset < 4 {
        // Only since version 4 a NaN is found by a NaN.
        lookup.places.remove(&Key::float(f64::NAN));
    }
    Ok(Box::new(move |args| lookup.run(args, args.get(0)?).map(|v| vec![v])))
}

fn category_mapper(node: &Node<'_>) -> Result<Kernel, OpError> {
    let (words, numbers) =
        (texts(node.texts("cats_strings")?), Elements::Int64(node.ints("cats_int64s")?.to_vec()));
    let default_int = Elements::Int64(vec![node.int("default_int64", -1)?]);
    let default_text =
        Elements::Bytes(vec![Bytes::copy_from_slice(node.text("default_string", "_Unused")?.as_bytes())]);
    let to_numbers = Lookup::new(&words, numbers.clone(), default_int)?;
    let to_words = Lookup::new(&numbers, words, default_text)?;
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let lookup = if x.data.datatype() == DataType::Bytes { &to_numbers } else { &to_words };
        lookup.run(args, x).map(|v| vec![v])
    }))
}

fn one_hot(node: &Node<'_>) -> Result<Kernel, OpError> {
    let words = node.texts("cats_strings")?;
    let categories =
        if words.is_empty() { Elements::Int64(node.ints("cats_int64s")?.to_vec()) } else { texts(words) };
    let zeros = node.int("zeros", 1)? != 0;
    let width = categories.len();
    let by_text = !words.is_empty();
    let places: HashMap<Key, usize> =
        keys(&categories).unwrap_or_default().into_iter().enumerate().map(|(i, k)| (k, i)).collect();
    Ok(Box::new(move |args| {
        let x = args.get(0)?;
        let wanted = match (x.data, by_text) {
            (Elements::Bytes(_), true) | (Elements::Int64(_) | Elements::Int32(_), false) => {
                keys(x.data).unwrap_or_default()
            }
            (Elements::Bytes(_), false) | (_, true) => return Err(unsupported_type(0, &x)),
            (other, false) => {
                let values = other.to_f64().ok_or_else(|| unsupported_type(0, &x))?;
                values.iter().map(|&v| Key::Int(v as i64)).collect()
            }
        };
        let mut shape = x.shape.to_vec();
        shape.push(width);
        let mut result = vec![0.0f32; args.room(&shape)?];
        for (i, key) in args.watch.polled(wanted.iter().enumerate()) {
            match places.get(key).copied() {
                Some(at) => {
                    if let Some(slot) = result.get_mut(i * width + at) {
                        *slot = 1.0;
                    }
                }
                None if zeros => {}
                None => return Err(OpError::Value("a category is unknown, and `zeros` is 0".to_owned())),
            }
        }
        Ok(vec![Value::f32(shape, result)])
    }))
}

/// Picks positions along the last axis.
fn extract(args: &Args<'_>) -> Result<Value, OpError> {
    let (x, indices) = (args.get(0)?, args.get(1)?);
    let width =
        x.shape.last().copied().ok_or_else(|| OpError::Shape("a scalar has no columns".to_owned()))?;
    let wanted: Vec<usize> = indices
        .integers()?
        .iter()
        .map(|&i| {
            usize::try_from(i)
                .ok()
                .filter(|&i| i < width)
                .ok_or_else(|| OpError::Value(format!("column {i} is outside 0..{width}")))
        })
        .collect::<Result<_, _>>()?;
    let rows = x.len().checked_div(width).unwrap_or(0);
    let mut shape =
        if x.rank() == 1 { vec![1] } else { x.shape.iter().take(x.rank() - 1).copied().collect() };
    shape.push(wanted.len());
    args.room_like(&shape, x.data)?;
    let wanted = &wanted;
    let from = (0..rows).flat_map(move |r| wanted.iter().map(move |&c| r * width + c));
    Ok(Value::new(shape, pick(args.watch, x.data, from)))
}
