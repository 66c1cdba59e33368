//! `GRU` as ONNX defines it by default: the reset gate is applied before the product (`linear_before_reset` 0). rten
//! has the other form.

use super::matmul::{Weights, turned};
use super::unary::as_f32;
use crate::native::node::{Kernel, Node};
use crate::native::value::{Args, OpError, Value};

/// The operators of this file.
pub(crate) fn build(node: &Node<'_>) -> Result<Option<Kernel>, OpError> {
    if node.proto.op_type != "GRU" || node.int("linear_before_reset", 0)? != 0 {
        return Ok(None);
    }
    // Other activations, clipping, other layouts and sequences of several lengths are not supported.
    let given = |i: usize| node.proto.inputs.get(i).is_some_and(|name| !name.is_empty());
    let usual = node.texts("activations")?.chunks(2).all(|pair| pair == [&b"Sigmoid"[..], b"Tanh"]);
    if !usual || node.has("clip") || node.int("layout", 0)? != 0 || given(4) {
        return Ok(None);
    }
    let (Some(w), Some(r)) = (node.constant(1), node.constant(2)) else { return Ok(None) };
    if given(3) && node.constant(3).is_none() {
        return Ok(None);
    }
    let reversed: &[bool] = match node.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(OpError::attribute("direction", format!("is {other:?}"))),
    };
    let (&[directions, gates, inputs], &[_, _, hidden]) = (w.shape.as_slice(), r.shape.as_slice()) else {
        return Err(OpError::Shape("the weights do not have three dimensions".to_owned()));
    };
    let fits = directions == reversed.len()
        && hidden.checked_mul(3) == Some(gates)
        && r.shape == [directions, gates, hidden];
    if !fits || hidden == 0 {
        return Err(OpError::Shape(format!("weights {:?} and {:?} do not fit", w.shape, r.shape)));
    }
    let bias = match node.constant(3) {
        None => vec![0.0; directions * 2 * gates],
        Some(b) if b.shape == [directions, 2 * gates] => as_f32(&b.view(), 3)?.to_vec(),
        Some(b) => return Err(OpError::Shape(format!("a bias of shape {:?}", b.shape))),
    };
    let (w, r) = (as_f32(&w.view(), 1)?, as_f32(&r.view(), 2)?);
    // Weights have a row for each output of a gate; the gates are update, reset and hidden.
    let weights = |rows: &[f32], columns: usize| {
        let outputs = rows.len() / columns.max(1);
        Weights::new(columns, outputs, turned(rows, outputs, columns))
    };
    let parts = w.chunks((gates * inputs).max(1)).zip(r.chunks(gates * hidden)).zip(bias.chunks(2 * gates));
    let layers = parts
        .zip(reversed)
        .map(|(((w, r), bias), &reversed)| {
            let (both, candidate) = r.split_at(2 * hidden * hidden);
            let (input_bias, state_bias) = bias.split_at(gates);
            Ok(Direction {
                reversed,
                input: weights(w, inputs)?,
                gates: weights(both, hidden)?,
                candidate: weights(candidate, hidden)?,
                bias: input_bias.iter().zip(state_bias).map(|(a, b)| a + b).collect(),
            })
        })
        .collect::<Result<Vec<_>, OpError>>()?;
    if layers.len() != directions {
        return Err(OpError::Shape("the weights are empty".to_owned()));
    }
    (1..=3).for_each(|i| node.absorb(i));
    let gru = Gru { inputs, hidden, directions: layers };
    Ok(Some(Box::new(move |args| gru.run(args))))
}

struct Gru {
    inputs: usize,
    hidden: usize,
    directions: Vec<Direction>,
}

struct Direction {
    reversed: bool,
    input: Weights,
    /// Of the previous state, for the update and the reset gate.
    gates: Weights,
    /// Of the reset state.
    candidate: Weights,
    /// Of both products, for all gates.
    bias: Vec<f32>,
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Gru {
    fn run(&self, args: &Args<'_>) -> Result<Vec<Value>, OpError> {
        let x = args.get(0)?;
        let &[steps, batch, inputs] = x.shape else {
            return Err(OpError::Shape(format!("expected [steps,batch,inputs], got shape {:?}", x.shape)));
        };
        if inputs != self.inputs {
            return Err(OpError::Shape(format!("{inputs} inputs, the weights have {}", self.inputs)));
        }
        let (count, hidden) = (self.directions.len(), self.hidden);
        let shape = [steps, count, batch, hidden];
        let total = args.room(&shape)?;
        let last_shape = [count, batch, hidden];
        let mut last = match args.optional(5) {
            Some(initial) if initial.shape == last_shape => as_f32(&initial, 5)?.to_vec(),
            Some(initial) => return Err(OpError::Shape(format!("an initial state {:?}", initial.shape))),
            None => vec![0.0; args.room(&last_shape)?],
        };
        args.room(&[steps, batch, 3 * hidden])?;
        let data = as_f32(&x, 0)?;
        let mut all = vec![0.0; total];
        let size = batch * hidden;
        for (index, (direction, state)) in
            self.directions.iter().zip(last.chunks_mut(size.max(1))).enumerate()
        {
            let products =
                direction.input.multiply(args.watch, data, steps * batch, Some(&direction.bias))?;
            for step in 0..steps {
                args.watch.spend(1)?;
                let step = if direction.reversed { steps - 1 - step } else { step };
                let products = products.get(step * size * 3..(step + 1) * size * 3).unwrap_or_default();
                direction.step(args, products, state, batch, hidden)?;
                let start = (step * count + index) * size;
                if let Some(to) = all.get_mut(start..start + size) {
                    to.copy_from_slice(state);
                }
            }
        }
        Ok(vec![Value::f32(shape, all), Value::f32(last_shape, last)])
    }
}

impl Direction {
    /// Updates the state by one step; `products` are the inputs times their weights, with the bias.
    fn step(
        &self,
        args: &Args<'_>,
        products: &[f32],
        state: &mut [f32],
        batch: usize,
        hidden: usize,
    ) -> Result<(), OpError> {
        let mut gates = self.gates.multiply(args.watch, state, batch, None)?;
        let rows = products.chunks_exact(3 * hidden);
        for (gates, products) in gates.chunks_exact_mut(2 * hidden).zip(rows.clone()) {
            gates.iter_mut().zip(products).for_each(|(g, p)| *g = sigmoid(*g + p));
        }
        let halves = |row: &[f32]| -> (Vec<f32>, Vec<f32>) {
            let (update, reset) = row.split_at(hidden);
            (update.to_vec(), reset.to_vec())
        };
        let (update, reset): (Vec<_>, Vec<_>) = gates.chunks_exact(2 * hidden).map(halves).unzip();
        let reset: Vec<f32> = reset.iter().flatten().zip(&*state).map(|(r, h)| r * h).collect();
        let candidates = self.candidate.multiply(args.watch, &reset, batch, None)?;
        let inputs = rows.flat_map(|row| row.iter().skip(2 * hidden));
        let states = state.iter_mut().zip(update.iter().flatten());
        for ((h, z), (c, p)) in states.zip(candidates.iter().zip(inputs)) {
            *h = (1.0 - z) * (c + p).tanh() + z * *h;
        }
        Ok(())
    }
}
