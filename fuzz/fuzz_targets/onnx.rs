//! ONNX files: a loaded model can be run.
#![no_main]

use gantry_onnx::{EngineChoice, Options, Session};
use gantry_tensor::{DataType, Elements, Tensor};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let options = Options { engine: EngineChoice::Native, max_run_bytes: 1 << 24, ..Options::default() };
    let Ok(session) = Session::from_bytes(input, &options) else { return };
    let inputs: Option<Vec<Tensor>> = session
        .inputs()
        .iter()
        .map(|spec| {
            let shape: Vec<usize> = spec.shape.iter().map(|d| usize::try_from(*d).unwrap_or(2)).collect();
            let count = gantry_tensor::shape_product(&shape).filter(|n| *n <= 4096)?;
            let elements = match spec.datatype {
                DataType::Fp32 => Elements::Fp32(vec![0.5; count]),
                DataType::Fp64 => Elements::Fp64(vec![0.5; count]),
                DataType::Int64 => Elements::Int64(vec![1; count]),
                DataType::Bytes => Elements::Bytes(vec!["a".into(); count]),
                _ => return None,
            };
            Tensor::new(&spec.name, shape, elements).ok()
        })
        .collect();
    if let Some(inputs) = inputs {
        let _ = session.run(&inputs, &[]);
    }
});
