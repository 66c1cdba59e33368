//! A deterministic world to break the control plane in.
#![allow(dead_code)]
mod entropy;
mod net;
mod plan;
mod rng;
mod trace;

fn main() {}
