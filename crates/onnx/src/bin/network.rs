//! The process of one network, alone. `gantry` starts itself for that; this is for the tests of this crate, which have no
//! `gantry`.

fn main() -> std::io::Result<()> {
    gantry_onnx::serve_apart()
}
