//! Compiles `.proto` files with protox, so that a build needs no protoc.

use prost::Message as _;
use std::{env, error::Error, fs, path::Path};

const PROTO_FILES: [&str; 7] = [
    "scheduler.proto",
    "chainer.proto",
    "agent.proto",
    "agent_debug.proto",
    "health_check.proto",
    "inference.proto",
    "gantry.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTO_FILES, ["proto"])?;
    // For gRPC reflection.
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Tensors stay slices of the request buffer, without a copy.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .bytes(".inference.InferTensorContents.bytes_contents")
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
