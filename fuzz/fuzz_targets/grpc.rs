//! gRPC messages: requests and responses.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    gantry_oip::fuzz::grpc_request(input);
    gantry_oip::fuzz::grpc_response(input);
});
