//! REST bodies: requests of both protocols, responses, compressed ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    gantry_oip::fuzz::rest_request(input);
    gantry_oip::fuzz::rest_response(input);
    gantry_oip::fuzz::v1_request(input);
    gantry_oip::fuzz::compressed(input);
});
