//! Conditions of inference graphs: the first line is the path, the rest the document.
#![no_main]

use gantry_core::inference_graph::{Path, is_valid};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (path, document) = input.split_at(end);
    is_valid(document);
    if let Ok(path) = Path::parse(&String::from_utf8_lossy(path)) {
        path.exists(document);
    }
});
