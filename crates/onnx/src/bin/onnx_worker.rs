//! A worker process for the tests of this crate; `gantry` starts itself as the worker.

fn main() -> std::io::Result<()> {
    gantry_onnx::serve_worker()
}
