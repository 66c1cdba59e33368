//! Compiles the contracts with protox, so that a Rust toolchain is all a build needs.

use prost::Message as _;
use std::{env, error::Error, fs, path::Path};

const CONTRACTS: [&str; 7] = [
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
    let descriptors = protox::compile(CONTRACTS, ["proto"])?;
    // Served by reflection, so that grpcurl and generated clients need no files of ours.
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // Tensors stay slices of the request's buffer instead of being copied out of it.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .bytes(".inference.InferTensorContents.bytes_contents")
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
