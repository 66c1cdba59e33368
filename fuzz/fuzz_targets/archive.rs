//! Archives: no writes outside the directory or beyond the limits.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gantry_artifacts::fuzz::unpack(input));
