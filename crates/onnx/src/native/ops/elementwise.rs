//! Operators that work element by element, with broadcasting.

use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value, View, broadcast, broadcast_indices, unsupported_type};
use gantry_tensor::Elements;

/// Applies `f` to two tensors stretched to each other.
pub(crate) fn zip<T: Copy, U>(
    args: &Args<'_>,
    (a, a_shape): (&[T], &[usize]),
    (b, b_shape): (&[T], &[usize]),
    f: impl Fn(T, T) -> U,
) -> Result<(Vec<usize>, Vec<U>), OpError> {
    if a_shape == b_shape {
        return Ok((a_shape.to_vec(), args.watch.zip(a, b, |&x, &y| f(x, y))?));
    }
    let shape = broadcast(a_shape, b_shape)?;
    let total = args.room(&shape)?;
    let result = match (a, b) {
        (_, &[y]) if a.len() == total => args.watch.map(a, |&x| f(x, y))?,
        (&[x], _) if b.len() == total => args.watch.map(b, |&y| f(x, y))?,
        // A bias: the last dimensions again and again.
        _ if a.len() == total && !b.is_empty() && shape.ends_with(b_shape) => {
            let mut result = Vec::with_capacity(total);
            for row in a.chunks(b.len()) {
                result.extend(row.iter().zip(b).map(|(&x, &y)| f(x, y)));
                args.watch.spend(row.len())?;
            }
            result
        }
        _ => {
            let left = broadcast_indices(args.watch, a_shape, &shape);
            let right = broadcast_indices(args.watch, b_shape, &shape);
            args.watch.check()?;
            let pairs = args.watch.polled(left.into_iter().zip(right));
            pairs.filter_map(|(i, j)| Some(f(*a.get(i)?, *b.get(j)?))).collect()
        }
    };
    Ok((shape, result))
}

macro_rules! arithmetic {
    ($args:expr, $a:expr, $b:expr, |$x:ident, $y:ident| $float:expr, $int:expr) => {{
        let (args, a, b) = ($args, $a, $b);
        match (a.data, b.data) {
            (Elements::Fp32(x), Elements::Fp32(y)) => {
                zip(args, (x, a.shape), (y, b.shape), |$x: f32, $y: f32| $float)
                    .map(|(s, v)| Value::new(s, Elements::Fp32(v)))
            }
            (Elements::Fp64(x), Elements::Fp64(y)) => {
                zip(args, (x, a.shape), (y, b.shape), |$x: f64, $y: f64| $float)
                    .map(|(s, v)| Value::new(s, Elements::Fp64(v)))
            }
            (Elements::Int64(x), Elements::Int64(y)) => {
                zip(args, (x, a.shape), (y, b.shape), |$x: i64, $y: i64| $int)
                    .map(|(s, v)| Value::new(s, Elements::Int64(v)))
            }
            (Elements::Int32(x), Elements::Int32(y)) => {
                zip(args, (x, a.shape), (y, b.shape), |$x: i32, $y: i32| $int)
                    .map(|(s, v)| Value::new(s, Elements::Int32(v)))
            }
            _ => Err(mismatch(&a, &b)),
        }
    }};
}

fn mismatch(a: &View<'_>, b: &View<'_>) -> OpError {
    if a.data.datatype() == b.data.datatype() {
        unsupported_type(0, a)
    } else {
        OpError::Shape(format!(
            "the inputs are {} and {}: both must have one datatype",
            a.data.datatype(),
            b.data.datatype()
        ))
    }
}

fn add(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    arithmetic!(args, a, b, |x, y| x + y, x.wrapping_add(y))
}
fn sub(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    arithmetic!(args, a, b, |x, y| x - y, x.wrapping_sub(y))
}
fn mul(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    arithmetic!(args, a, b, |x, y| x * y, x.wrapping_mul(y))
}
fn div(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    // Division by an integer zero has no answer; 0 keeps the run going as the other engines do.
    arithmetic!(args, a, b, |x, y| x / y, x.checked_div(y).unwrap_or(0))
}
fn min(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    // A NaN on either side is the answer.
    arithmetic!(args, a, b, |x, y| if x < y || x.is_nan() { x } else { y }, x.min(y))
}
fn max(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    arithmetic!(args, a, b, |x, y| if x > y || x.is_nan() { x } else { y }, x.max(y))
}
fn modulo(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    arithmetic!(
        args,
        a,
        b,
        |x, y| x % y,
        x.checked_rem_euclid(y).map_or(0, |r| if y < 0 && r != 0 { r.wrapping_add(y) } else { r })
    )
}

fn pow(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    // The exponent may have another datatype: the result has that of the base.
    match a.data {
        Elements::Fp32(x) => {
            let y = b.floats()?;
            let (s, v) = zip(args, (x, a.shape), (&y, b.shape), |x: f32, y: f32| {
                #[allow(clippy::float_cmp, reason = "exact small exponents have an exact, faster way")]
                if y == 2.0 {
                    x * x
                } else if y == 3.0 {
                    x * x * x
                } else {
                    x.powf(y)
                }
            })?;
            Ok(Value::f32(s, v))
        }
        Elements::Fp64(x) => {
            let y = b.data.to_f64().ok_or_else(|| unsupported_type(1, &b))?;
            let (s, v) = zip(args, (x, a.shape), (&y, b.shape), f64::powf)?;
            Ok(Value::new(s, Elements::Fp64(v)))
        }
        Elements::Int64(x) => {
            let y = b.integers()?;
            let (s, v) = zip(args, (x, a.shape), (&y, b.shape), |x, y| {
                u32::try_from(y).map_or(0, |y| x.wrapping_pow(y))
            })?;
            Ok(Value::i64(s, v))
        }
        _ => Err(unsupported_type(0, &a)),
    }
}

macro_rules! comparison {
    ($name:ident, $op:tt) => {
        fn $name(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
            let (shape, result) = match (a.data, b.data) {
                (Elements::Fp32(x), Elements::Fp32(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x $op y)?,
                (Elements::Fp64(x), Elements::Fp64(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x $op y)?,
                (Elements::Int64(x), Elements::Int64(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x $op y)?,
                (Elements::Int32(x), Elements::Int32(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x $op y)?,
                _ => return Err(mismatch(&a, &b)),
            };
            Ok(Value::new(shape, Elements::Bool(result)))
        }
    };
}
comparison!(less, <);
comparison!(less_or_equal, <=);
comparison!(greater, >);
comparison!(greater_or_equal, >=);

#[allow(clippy::float_cmp, reason = "the operator asks for exact equality")]
fn equal(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    let (shape, result) = match (a.data, b.data) {
        (Elements::Fp32(x), Elements::Fp32(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x == y)?,
        (Elements::Fp64(x), Elements::Fp64(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x == y)?,
        (Elements::Int64(x), Elements::Int64(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x == y)?,
        (Elements::Int32(x), Elements::Int32(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x == y)?,
        (Elements::Bool(x), Elements::Bool(y)) => zip(args, (x, a.shape), (y, b.shape), |x, y| x == y)?,
        (Elements::Bytes(x), Elements::Bytes(y)) => {
            let x: Vec<&[u8]> = x.iter().map(AsRef::as_ref).collect();
            let y: Vec<&[u8]> = y.iter().map(AsRef::as_ref).collect();
            zip(args, (&x, a.shape), (&y, b.shape), |x, y| x == y)?
        }
        _ => return Err(mismatch(&a, &b)),
    };
    Ok(Value::new(shape, Elements::Bool(result)))
}

fn logical(args: &Args<'_>, a: View<'_>, b: View<'_>, f: fn(bool, bool) -> bool) -> Result<Value, OpError> {
    let (Elements::Bool(x), Elements::Bool(y)) = (a.data, b.data) else {
        return Err(mismatch(&a, &b));
    };
    let (shape, result) = zip(args, (x, a.shape), (y, b.shape), f)?;
    Ok(Value::new(shape, Elements::Bool(result)))
}
fn and(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    logical(args, a, b, |x, y| x && y)
}
fn or(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    logical(args, a, b, |x, y| x || y)
}
fn xor(args: &Args<'_>, a: View<'_>, b: View<'_>) -> Result<Value, OpError> {
    logical(args, a, b, |x, y| x != y)
}

type Binary = fn(&Args<'_>, View<'_>, View<'_>) -> Result<Value, OpError>;

/// Operators of two inputs.
pub(crate) fn binary(node: &Node<'_>) -> Option<Kernel> {
    let f: Binary = match node.proto.op_type {
        "Add" => add,
        "Sub" => sub,
        "Mul" => mul,
        "Div" => div,
        "Pow" => pow,
        "Mod" => modulo,
        "Less" => less,
        "LessOrEqual" => less_or_equal,
        "Greater" => greater,
        "GreaterOrEqual" => greater_or_equal,
        "Equal" => equal,
        "And" => and,
        "Or" => or,
        "Xor" => xor,
        _ => return None,
    };
    Some(Box::new(move |args| f(args, args.get(0)?, args.get(1)?).map(|v| vec![v])))
}

/// Operators of any number of inputs that fold them with one of two.
pub(crate) fn variadic(node: &Node<'_>) -> Option<Kernel> {
    let (f, mean): (Binary, bool) = match node.proto.op_type {
        "Sum" => (add, false),
        "Mean" => (add, true),
        "Min" => (min, false),
        "Max" => (max, false),
        _ => return None,
    };
    Some(Box::new(move |args| {
        let mut total = args.get(0)?.to_value();
        for i in 1..args.inputs.len() {
            total = f(args, total.view(), args.get(i)?)?;
        }
        if mean && let Elements::Fp32(v) = &mut total.data {
            let n = args.inputs.len() as f32;
            for x in v.iter_mut() {
                *x /= n;
            }
        }
        Ok(vec![total])
    }))
}
