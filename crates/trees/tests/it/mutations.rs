//! Mutated files never make the readers or the evaluation panic or hang.

use std::fs;
use std::sync::LazyLock;

use gantry_trees::{Format, Model, Output, Rows};
use proptest::prelude::*;

use crate::golden::directory;
use crate::random::{Random, cases};

const FORMATS: [Format; 3] = [Format::XgboostJson, Format::XgboostUbjson, Format::LightgbmText];

/// All golden models, read once.
static FILES: LazyLock<Vec<(Format, Vec<u8>)>> = LazyLock::new(|| {
    let mut paths: Vec<_> = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let model = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension != "expected");
    paths.retain(model);
    let read = |path| {
        let bytes = fs::read(path).unwrap();
        (Format::sniff(&bytes).unwrap(), bytes)
    };
    paths.into_iter().map(read).collect()
});

/// Loads the bytes and, if that works, evaluates rows of several shapes.
fn exercise(bytes: &[u8], format: Format) {
    let Ok(model) = Model::from_bytes(bytes, format) else { return };
    let features = model.features();
    if features > 1000 {
        return;
    }
    for rows in [1, 40] {
        let values: Vec<f32> = (0..rows * features)
            .map(|at| if at % 7 == 0 { f32::NAN } else { (at as f32 * 0.37) % 5.0 - 2.0 })
            .collect();
        let rows = Rows::f32(&values, rows, features).unwrap();
        for output in [Output::Predict, Output::Margin, Output::Leaf, Output::Class] {
            if model.outputs_per_row(output) < 100_000 {
                // An error is as good an answer as any here.
                let _ = model.predict_with_threads(rows, output, 2);
            }
        }
    }
    assert!(model.memory_bytes() < 1 << 26, "a small file became {} bytes", model.memory_bytes());
}

/// Changes, removes, repeats or moves some bytes; digits tend to become other digits so that files stay readable.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes[at] = random.below(256) as u8,
            2 => {
                let end = (at + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                let end = (at + random.below(40)).min(bytes.len());
                let copy: Vec<u8> = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => {
                let digit = (at..bytes.len()).find(|at| bytes[*at].is_ascii_digit());
                if let Some(at) = digit {
                    bytes[at] = b"0123456789-"[random.below(11)];
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Format::sniff(&bytes);
        for format in FORMATS {
            exercise(&bytes, format);
        }
    }

    #[test]
    fn arbitrary_markup_never_panics(text in "[\\[\\]{}\",:0-9a-zA-Z#$ \n=-]{0,200}") {
        let _ = Format::sniff(text.as_bytes());
        for format in FORMATS {
            exercise(text.as_bytes(), format);
        }
    }

    #[test]
    fn mutated_models_never_panic(seed: u64) {
        let mut random = Random::new(seed);
        let (format, bytes) = &FILES[random.below(FILES.len())];
        let mut bytes = bytes.clone();
        mutate(&mut bytes, &mut random);
        exercise(&bytes, *format);
    }
}

#[test]
fn every_truncation_of_a_model_is_rejected() {
    for wanted in FORMATS {
        let (_, bytes) =
            FILES.iter().filter(|file| file.0 == wanted).min_by_key(|file| file.1.len()).unwrap();
        let end = if wanted == Format::LightgbmText {
            let marker = b"end of trees";
            bytes.windows(marker.len()).position(|window| window == marker).unwrap() + marker.len()
        } else {
            bytes.len()
        };
        for length in (0..end).step_by(3) {
            assert!(Model::from_bytes(&bytes[..length], wanted).is_err(), "{wanted:?} cut at {length}");
        }
    }
}
