//! Predictions compared with committed ones of scikit-learn and ONNX Runtime.

use crate::support::{Case, built_in, cases};
use gantry_onnx::{Engine, EngineChoice, Options, Session};
use gantry_tensor::{DataType, Elements, Tensor};

/// The largest difference of floats, and how far it is over what is allowed; other types must be equal.
fn compare(case: &str, got: &Tensor, want: &Tensor, allowed: &dyn Fn(f64) -> f64) -> Result<f64, String> {
    let output = want.name();
    if got.shape() != want.shape() {
        return Err(format!("{case} {output}: shape {:?}, expected {:?}", got.shape(), want.shape()));
    }
    match want.elements() {
        Elements::Fp32(_) | Elements::Fp64(_) => {
            let (got, want) = (got.elements().to_f64().unwrap(), want.elements().to_f64().unwrap());
            let mut worst = 0f64;
            for (i, (&g, &w)) in got.iter().zip(want.iter()).enumerate() {
                if g == w || (g.is_nan() && w.is_nan()) {
                    continue;
                }
                let difference = (g - w).abs();
                if difference > allowed(w) || difference.is_nan() {
                    return Err(format!("{case} {output}[{i}]: {g}, expected {w}, off by {difference:e}"));
                }
                worst = worst.max(difference);
            }
            Ok(worst)
        }
        // scikit-learn's labels may be narrower integers; their values must be equal.
        Elements::Int32(want) if got.datatype() == DataType::Int64 => {
            let want = Elements::Int64(want.iter().map(|&v| i64::from(v)).collect());
            compare(case, got, &Tensor::new(output, got.shape(), want).unwrap(), allowed)
        }
        want => {
            if got.elements() == want {
                Ok(0.0)
            } else {
                Err(format!("{case} {output}: {:?}, expected {want:?}", got.elements()))
            }
        }
    }
}

fn run(case: &Case, options: &Options) -> Result<(Session, Vec<Tensor>), String> {
    let session = Session::load(&case.model, options).map_err(|e| format!("{}: {e}", case.name))?;
    let names: Vec<&str> = case.outputs.iter().map(|o| o.tensor.name()).collect();
    let results = session.run(&case.inputs, &names).map_err(|e| format!("{}: {e}", case.name))?;
    Ok((session, results))
}

/// 1e-6 of the value's size, and as much again as ONNX Runtime is away: its f32 arithmetic is the yardstick.
fn check_sklearn(case: &Case, options: &Options) -> Result<f64, String> {
    let (_, results) = run(case, options)?;
    let mut worst = 0f64;
    for (got, want) in results.iter().zip(&case.outputs) {
        let allowed = |w: f64| 1e-6 * w.abs().max(1.0) + want.ort;
        worst = worst.max(compare(&case.name, got, &want.tensor, &allowed)?);
    }
    Ok(worst)
}

#[test]
fn scikit_learn_models_match_scikit_learn() {
    let cases = cases("sklearn");
    assert!(cases.len() >= 90, "only {} cases are there", cases.len());
    let mut faults = Vec::new();
    for case in &cases {
        match check_sklearn(case, &built_in()) {
            Ok(worst) => println!("{:36} off by {worst:.1e}", case.name),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn single_row_and_batch_give_equal_results() {
    let mut tried = 0;
    for case in cases("sklearn") {
        let session = Session::load(&case.model, &built_in()).unwrap();
        if !session.batchable() {
            continue;
        }
        let all = session.run(&case.inputs, &[]).unwrap();
        let first: Vec<Tensor> = case.inputs.iter().map(first_row).collect();
        let alone = session.run(&first, &[]).unwrap();
        for (all, alone) in all.iter().zip(&alone) {
            let all = first_row(all);
            compare(&case.name, alone, &all, &|w| 1e-6 * w.abs().max(1.0)).unwrap();
        }
        tried += 1;
    }
    assert!(tried > 60, "only {tried} models take batches");
}

fn first_row(tensor: &Tensor) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    let width = tensor.elements().len() / shape[0];
    shape[0] = 1;
    let elements = match tensor.elements() {
        Elements::Fp32(v) => Elements::Fp32(v[..width].to_vec()),
        Elements::Fp64(v) => Elements::Fp64(v[..width].to_vec()),
        Elements::Int64(v) => Elements::Int64(v[..width].to_vec()),
        Elements::Bytes(v) => Elements::Bytes(v[..width].to_vec()),
        other => panic!("{}", other.datatype()),
    };
    Tensor::new(tensor.name(), shape, elements).unwrap()
}

/// Single operators and small networks, against ONNX Runtime: a few units in the last place.
#[test]
fn operators_and_networks_match_onnx_runtime() {
    let cases = cases("nets");
    assert!(cases.len() >= 100, "only {} cases are there", cases.len());
    let mut faults = Vec::new();
    for case in &cases {
        let check = |options: &Options| -> Result<(), String> {
            let (_, results) = run(case, options)?;
            for (got, want) in results.iter().zip(&case.outputs) {
                compare(&case.name, got, &want.tensor, &|w| 2e-6 * w.abs().max(1.0))?;
            }
            Ok(())
        };
        faults.extend(check(&built_in()).err());
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}

#[test]
fn engine_is_chosen_by_operators() {
    let rten = Options { engine: EngineChoice::Rten, ..built_in() };
    for case in cases("nets").iter().filter(|c| !c.name.starts_with("ops_")) {
        let (session, results) = run(case, &built_in()).unwrap();
        let native = case.name != "depthwise";
        assert_eq!(
            *session.engine(),
            if native { Engine::Native } else { Engine::Rten },
            "{}",
            session.why()
        );
        let (session, by_rten) = run(case, &rten).unwrap();
        assert_eq!(*session.engine(), Engine::Rten);
        for (a, b) in results.iter().zip(&by_rten) {
            compare(&case.name, a, b, &|w| 2e-6 * w.abs().max(1.0)).unwrap();
        }
        let threads = Options { threads: 2, ..rten.clone() };
        let (_, by_threads) = run(case, &threads).unwrap();
        compare(&case.name, &by_threads[0], &by_rten[0], &|w| 2e-6 * w.abs().max(1.0)).unwrap();
    }
}
