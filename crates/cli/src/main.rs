//! The binary `gantry`.
fn main() {}
