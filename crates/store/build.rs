//! Compiles etcd's API with protox, so that a build needs no protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    // Values are slices of the received buffer. The server is for tests.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
