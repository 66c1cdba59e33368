//! Output selection.

use crate::{Error, InferRequest, InferTensor};
use bytes::Bytes;
use gantry_tensor::{Elements, Tensor};
use std::{cmp::Ordering, fmt::Display};

/// The requested tensors in request order, or all of them.
///
/// With the classification extension an output becomes `BYTES` of `score:class`, best first.
pub fn select(tensors: Vec<Tensor>, request: &InferRequest) -> Result<Vec<InferTensor>, Error> {
    if request.outputs.is_empty() {
        return Ok(tensors.into_iter().map(InferTensor::from).collect());
    }
    let known = || tensors.iter().map(Tensor::name).collect::<Vec<_>>().join(", ");
    let mut chosen = Vec::with_capacity(request.outputs.len());
    for wanted in &request.outputs {
        let Some(tensor) = tensors.iter().find(|t| t.name() == wanted.name) else {
            return Err(Error::invalid(format!(
                "the model has no output {:?}; it has {}",
                wanted.name,
                known()
            )));
        };
        chosen.push(match wanted.classification {
            None => tensor.clone().into(),
            Some(classes) => classify(tensor, classes as usize)?.into(),
        });
    }
    Ok(chosen)
}

fn classify(tensor: &Tensor, wanted: usize) -> Result<Tensor, Error> {
    let name = tensor.name();
    let Some(scores) = tensor.elements().to_f64() else {
        return Err(Error::invalid(format!("output {name} is BYTES: it has no scores to classify by")));
    };
    let (rows, classes) = match tensor.shape() {
        [] => (1, 1),
        [classes] => (1, *classes),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
    };
    let kept = wanted.min(classes);
    let mut best = Vec::new();
    if classes > 0 {
        for (row, scores) in scores.chunks(classes).enumerate() {
            let mut order: Vec<(usize, f64)> = scores.iter().copied().enumerate().collect();
            if kept < order.len() {
                order.select_nth_unstable_by(kept, by_score);
                order.truncate(kept);
            }
            order.sort_unstable_by(by_score);
            best.extend(
                order.into_iter().map(|(class, score)| label(tensor, row * classes + class, class, score)),
            );
        }
    }
    let shape = if tensor.shape().len() < 2 { vec![kept] } else { vec![rows, kept] };
    Tensor::new(name, shape, Elements::Bytes(best))
        .map_err(|e| Error::internal(format!("output {name}: {e}")))
}

/// Best first, NaN last, equal scores by class: a total order, which sorting needs.
fn by_score(a: &(usize, f64), b: &(usize, f64)) -> Ordering {
    let unordered = || a.1.is_nan().cmp(&b.1.is_nan());
    b.1.partial_cmp(&a.1).unwrap_or_else(unordered).then(a.0.cmp(&b.0))
}

/// `score:class`; whole numbers without decimals.
fn label(tensor: &Tensor, index: usize, class: usize, score: f64) -> Bytes {
    fn whole<T: Copy + Display>(values: &[T], index: usize, class: usize) -> Bytes {
        values.get(index).map(|score| format!("{score}:{class}").into()).unwrap_or_default()
    }
    match tensor.elements() {
        Elements::Uint8(v) => whole(v, index, class),
        Elements::Uint16(v) => whole(v, index, class),
        Elements::Uint32(v) => whole(v, index, class),
        Elements::Uint64(v) => whole(v, index, class),
        Elements::Int8(v) => whole(v, index, class),
        Elements::Int16(v) => whole(v, index, class),
        Elements::Int32(v) => whole(v, index, class),
        Elements::Int64(v) => whole(v, index, class),
        _ => format!("{score:.6}:{class}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestedOutput;

    fn scores() -> Vec<Tensor> {
        vec![
            Tensor::new("p", [2, 3], Elements::Fp32(vec![0.25, 0.5, 0.25, 0.0, 0.0, 1.0])).unwrap(),
            Tensor::new("label", [2], Elements::Int64(vec![1, 2])).unwrap(),
        ]
    }

    #[test]
    fn select_keeps_request_order() {
        let asked = |names: &[&str]| InferRequest {
            outputs: names
                .iter()
                .map(|n| RequestedOutput { name: (*n).into(), ..Default::default() })
                .collect(),
            ..Default::default()
        };
        let names = |r: Vec<InferTensor>| r.iter().map(|t| t.tensor.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(select(scores(), &asked(&[])).unwrap()), ["p", "label"]);
        assert_eq!(names(select(scores(), &asked(&["label", "p"])).unwrap()), ["label", "p"]);
        let error = select(scores(), &asked(&["q"])).unwrap_err();
        assert_eq!(error.message, "the model has no output \"q\"; it has p, label");
    }

    fn classify(tensor: Tensor, classes: u32) -> Vec<String> {
        let output = RequestedOutput {
            name: tensor.name().into(),
            classification: Some(classes),
            ..Default::default()
        };
        let request = InferRequest { outputs: vec![output], ..Default::default() };
        let chosen = select(vec![tensor], &request).unwrap();
        let Elements::Bytes(labels) = chosen[0].tensor.elements() else { panic!("{chosen:?}") };
        labels.iter().map(|l| String::from_utf8(l.to_vec()).unwrap()).collect()
    }

    #[test]
    fn classification_returns_top_classes() {
        let [scores, _] = scores().try_into().unwrap();
        assert_eq!(classify(scores, 2), ["0.500000:1", "0.250000:0", "1.000000:2", "0.000000:0"]);
    }

    #[test]
    fn whole_scores_have_no_decimals() {
        let scores = Tensor::new("n", [3], Elements::Int32(vec![-7, 5, 5])).unwrap();
        assert_eq!(classify(scores, 9), ["5:1", "5:2", "-7:0"]);
        let scores = Tensor::new("n", [2], Elements::Int64(vec![1, i64::MAX])).unwrap();
        assert_eq!(classify(scores, 1), ["9223372036854775807:1"]);
    }

    #[test]
    fn scores_that_are_not_numbers_come_last() {
        let scores: Vec<f32> =
            (0..50).map(|i| if i % 3 == 0 { f32::NAN } else { (i * 7 % 50) as f32 }).collect();
        let labels = classify(Tensor::new("p", [50], Elements::Fp32(scores)).unwrap(), 50);
        let values: Vec<f64> = labels.iter().map(|l| l.split_once(':').unwrap().0.parse().unwrap()).collect();
        let (numbers, rest) = values.split_at(33);
        assert!(numbers.is_sorted_by(|a, b| a >= b) && rest.iter().all(|v| v.is_nan()), "{labels:?}");
        let scores = vec![f64::NAN, 0.0, f64::NEG_INFINITY, -0.0, f64::NAN];
        let labels = classify(Tensor::new("p", [5], Elements::Fp64(scores)).unwrap(), 4);
        assert_eq!(labels, ["0.000000:1", "-0.000000:3", "-inf:2", "NaN:0"]);
    }
}
