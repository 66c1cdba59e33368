//! Manifests: valid models round-trip through the scheduler's messages.
#![no_main]

use gantry_api::{Model, Object, parse};

libfuzzer_sys::fuzz_target!(|text: &str| {
    for parsed in parse("fuzz.yaml", text).into_iter().flatten() {
        if let Object::Model(model) = parsed.object {
            let sent = model.to_proto();
            assert_eq!(Model::from_proto(&sent).to_proto(), sent);
        }
    }
});
