//! Sources and secrets: a displayed URI parses again.
#![no_main]

use gantry_artifacts::{Secret, Uri};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = Secret::parse(text);
    if let Ok(uri) = Uri::parse(text) {
        let _ = Uri::parse(&uri.to_string());
    }
});
