//! Model files of this format: a parsed model can be evaluated.
#![no_main]

use gantry_trees::{Format, Model, Output, Rows};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(model) = Model::from_bytes(input, Format::LightgbmText) else { return };
    if model.features() <= 4096 {
        let values = vec![0.5f32; model.features() * 2];
        if let Ok(rows) = Rows::f32(&values, 2, model.features()) {
            for output in [Output::Predict, Output::Margin, Output::Class, Output::Leaf] {
                let _ = model.predict(rows, output);
            }
        }
    }
});
