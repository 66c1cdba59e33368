//! Output selection.

use crate::{Error, InferRequest, InferTensor};
use bytes::Bytes;
use gantry_tensor::{Elements, Tensor};
use std::cmp::Ordering;

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
        for row in scores.chunks(classes) {
            let mut order: Vec<(usize, f64)> = row.iter().copied().enumerate().collect();
            order.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal));
            best.extend(
                order.into_iter().take(kept).map(|(class, score)| Bytes::from(format!("{score:.6}:{class}"))),
            );
        }
    }
    let shape = if tensor.shape().len() < 2 { vec![kept] } else { vec![rows, kept] };
    Tensor::new(name, shape, Elements::Bytes(best))
        .map_err(|e| Error::internal(format!("output {name}: {e}")))
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

    #[test]
    fn classification_returns_top_classes() {
        let request = InferRequest {
            outputs: vec![RequestedOutput {
                name: "p".into(),
                classification: Some(2),
                ..Default::default()
            }],
            ..Default::default()
        };
        let chosen = select(scores(), &request).unwrap();
        let expected = ["0.500000:1", "0.250000:0", "1.000000:2", "0.000000:0"].map(Bytes::from).to_vec();
        assert_eq!(chosen[0].tensor, Tensor::new("p", [2, 2], Elements::Bytes(expected)).unwrap());
    }
}
