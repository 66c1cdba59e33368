//! `Scan`: a graph run once for each slice of its inputs. skl2onnx writes distances between rows this way.

use super::node::{Kernel, Node};
use super::ops::cast::widen;
use super::plan::{Constants, Plan};
use super::value::{OpError, Value, View, pick};
use super::watch::Watch;

/// Prepares `Scan`, for slices along the first axis taken from front to back.
pub(crate) fn build(node: &Node<'_>) -> Result<Kernel, OpError> {
    for name in ["scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"] {
        if node.ints(name)?.iter().any(|&v| v != 0) {
            return Err(OpError::attribute(name, "may only hold zeros here"));
        }
    }
    let graph = node.graph("body")?;
    let scanned = usize::try_from(node.int("num_scan_inputs", 0)?)
        .ok()
        .filter(|&n| n > 0 && n <= graph.inputs.len())
        .ok_or_else(|| OpError::attribute("num_scan_inputs", "does not fit the body's inputs"))?;
    let states = graph.inputs.len() - scanned;
    if graph.outputs.len() < states {
        return Err(OpError::attribute("body", "has fewer outputs than states"));
    }
    let mut constants = Constants::new();
    for tensor in &graph.initializers {
        let (shape, data) = tensor.load(None).map_err(|e| OpError::attribute("body", e.to_string()))?;
        constants.insert(tensor.name.to_owned(), Value::new(shape, widen(data)));
    }
    let names: Vec<&str> = graph.inputs.iter().map(|i| i.name).collect();
    let plan = Plan::within(graph, node.opsets, constants, &names, node.watch)
        .map_err(|e| OpError::attribute("body", format!("cannot be run: {e}")))?;
    Ok(Box::new(move |args| {
        let inputs = args.all()?;
        if inputs.len() != states + scanned {
            return Err(OpError::Shape(format!(
                "{} inputs for {} of the body",
                inputs.len(),
                states + scanned
            )));
        }
        let (first, rest) = inputs.split_at(states);
        let mut carried: Vec<Value> = first.iter().map(|v| v.to_value()).collect();
        let rounds = rest.first().and_then(|v| v.shape.first().copied()).unwrap_or(0);
        if rest.iter().any(|v| v.shape.first() != Some(&rounds)) {
            return Err(OpError::Shape("scanned inputs differ in their first dimension".to_owned()));
        }
        let mut stacked: Vec<Vec<Value>> = Vec::new();
        let mut bytes = 0usize;
        for round in 0..rounds {
            let slices: Vec<Value> = rest.iter().map(|v| slice(args.watch, v, round)).collect();
            let views: Vec<View<'_>> = carried.iter().chain(&slices).map(Value::view).collect();
            // A body without nodes has no steps.
            args.watch.spend(1 + views.len())?;
            let limit = args.limit.saturating_sub(bytes);
            let results = plan.run(&views, limit, args.watch).map_err(|e| match e.error {
                stop @ (OpError::Cancelled | OpError::TimeLimit(_)) => stop,
                error => OpError::Value(format!("in the body, node `{}` ({}): {error}", e.node, e.op)),
            })?;
            let mut results = results.into_iter();
            carried = results.by_ref().take(states).collect();
            for (i, value) in results.enumerate() {
                bytes = bytes.saturating_add(value.bytes());
                if stacked.len() <= i {
                    stacked.push(Vec::with_capacity(rounds));
                }
                if let Some(stack) = stacked.get_mut(i) {
                    stack.push(value);
                }
            }
        }
        for values in stacked {
            carried.push(stack(values)?);
        }
        Ok(carried)
    }))
}

fn slice(watch: &Watch<'_>, view: &View<'_>, index: usize) -> Value {
    let shape = view.shape.get(1..).unwrap_or(&[]).to_vec();
    let length: usize = shape.iter().product();
    Value::new(shape, pick(watch, view.data, index * length..(index + 1) * length))
}

fn stack(values: Vec<Value>) -> Result<Value, OpError> {
    use gantry_tensor::Elements;
    let rounds = values.len();
    let mut values = values.into_iter();
    let mut all = values.next().ok_or_else(|| OpError::Shape("nothing to stack".to_owned()))?;
    for value in values {
        if value.shape != all.shape {
            return Err(OpError::Shape("the body's results differ in shape".to_owned()));
        }
        match (&mut all.data, value.data) {
            (Elements::Fp32(a), Elements::Fp32(b)) => a.extend(b),
            (Elements::Fp64(a), Elements::Fp64(b)) => a.extend(b),
            (Elements::Int64(a), Elements::Int64(b)) => a.extend(b),
            (Elements::Bool(a), Elements::Bool(b)) => a.extend(b),
            (_, other) => {
                return Err(OpError::Datatype { index: 0, got: other.datatype() });
            }
        }
    }
    let mut shape = vec![rounds];
    shape.extend(&all.shape);
    Ok(Value::new(shape, all.data))
}
