//! Whether predictions of two programs agree.

use gantry_tensor::{Elements, Tensor};

/// Converted models compute in single precision; a row close to a threshold may take the other branch.
const ABSOLUTE: f64 = 1e-4;
const RELATIVE: f64 = 1e-3;
/// Share of values that may differ.
const TOLERATED: f64 = 0.01;

/// A sentence about the agreement; the error is one about the difference.
pub(super) fn compare(expected: &[Tensor], got: &[Tensor]) -> Result<String, String> {
    let mut parts = Vec::new();
    for (index, wanted) in expected.iter().enumerate() {
        let by_name = got.iter().find(|tensor| tensor.name() == wanted.name());
        let Some(answer) = by_name.or_else(|| got.get(index)) else {
            return Err(format!("the converted model has no output for {}", wanted.name()));
        };
        parts.push(compare_one(wanted, answer)?);
    }
    if parts.is_empty() {
        return Err("the library gave no predictions to compare".into());
    }
    let rows = expected.first().and_then(|tensor| tensor.shape().first().copied()).unwrap_or_default();
    Ok(format!("compared on {rows} rows: {}", parts.join(", ")))
}

fn compare_one(wanted: &Tensor, answer: &Tensor) -> Result<String, String> {
    let name = wanted.name();
    let (expected, got) = (wanted.elements(), answer.elements());
    if expected.len() != got.len() {
        let shapes = format!("{:?} instead of {:?}", answer.shape(), wanted.shape());
        return Err(format!("output {name} of the converted model has the shape {shapes}"));
    }
    let count = expected.len().max(1);
    let is_exact =
        !matches!(expected, Elements::Fp16(_) | Elements::Bf16(_) | Elements::Fp32(_) | Elements::Fp64(_));
    let (different, most) = match (expected, got) {
        (Elements::Bytes(a), Elements::Bytes(b)) => (a.iter().zip(b).filter(|(a, b)| a != b).count(), 0.0),
        _ => match (expected.to_f64(), got.to_f64()) {
            (Some(a), Some(b)) => differences(&a, &b, is_exact),
            _ => {
                return Err(format!(
                    "output {name} is {}, and {} in the library",
                    answer.datatype(),
                    wanted.datatype()
                ));
            }
        },
    };
    if different as f64 > count as f64 * TOLERATED {
        let by = if is_exact { String::new() } else { format!(" by up to {most:.1e}") };
        return Err(format!(
            "predictions differ: {name} in {different} of {count} values{by}. Generated rows can be unlike real ones: try \
             --sample with rows of your data"
        ));
    }
    Ok(if is_exact {
        format!("{name} equal in {} of {count}", count - different)
    } else {
        format!("{name} differs by at most {most:.1e}")
    })
}

/// The number of values that differ, and the largest difference.
fn differences(expected: &[f64], got: &[f64], exact: bool) -> (usize, f64) {
    let (mut different, mut most) = (0, 0.0_f64);
    for (a, b) in expected.iter().zip(got) {
        if a.is_nan() && b.is_nan() || a.total_cmp(b).is_eq() {
            continue;
        }
        let by = (a - b).abs();
        most = most.max(by);
        let close = !exact && by <= ABSOLUTE + RELATIVE * a.abs();
        different += usize::from(!close);
    }
    (different, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, values: Elements) -> Tensor {
        Tensor::new(name, [values.len()], values).unwrap()
    }

    #[test]
    fn close_predictions_agree_and_others_are_described() {
        let labels = |values: &[i64]| tensor("label", Elements::Int64(values.to_vec()));
        let scores = |values: &[f64]| tensor("scores", Elements::Fp64(values.to_vec()));
        let single = |values: &[f32]| tensor("scores", Elements::Fp32(values.to_vec()));
        let report =
            compare(&[labels(&[1, 0]), scores(&[0.25, 1.0])], &[labels(&[1, 0]), single(&[0.25, 1.00001])]);
        let report = report.unwrap();
        assert!(
            report.starts_with("compared on 2 rows: label equal in 2 of 2, scores differs by at most 1"),
            "{report}"
        );
        for (expected, got, reason) in [
            (labels(&[1, 0]), labels(&[1, 1]), "predictions differ: label in 1 of 2 values."),
            (scores(&[1.0]), single(&[1.1]), "scores in 1 of 1 values by up to 1.0e-1"),
            (scores(&[1.0]), single(&[1.0, 2.0]), "has the shape [2] instead of [1]"),
            (scores(&[1.0]), tensor("x", Elements::Bytes(vec!["a".into()])), "is BYTES, and FP64"),
        ] {
            let error = compare(&[expected], &[got]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(compare(&[], &[]).is_err() && compare(&[labels(&[1])], &[]).is_err());
        // One row near a threshold does not fail a large comparison.
        let many: Vec<i64> = vec![1; 200];
        let mut other = many.clone();
        other[0] = 0;
        assert_eq!(
            compare(&[labels(&many)], &[labels(&other)]).unwrap(),
            "compared on 200 rows: label equal in 199 of 200"
        );
    }
}
