//! The Open Inference Protocol, version 2, as values and codecs: no sockets, no runtime, no models.
//!
//! [`InferRequest`] and [`InferResponse`] are what a server works with. [`rest`] and [`grpc`] turn the bytes of a
//! client into them and back, refusing what breaks the protocol or a [`Limits`] with an [`Error`] that says what
//! is wrong. [`server`] is the contract of an inference server that runs in the same process.

pub mod error;
pub mod fuzz;
pub mod grpc;
mod infer;
mod json;
mod limits;
mod metadata;
mod outputs;
mod raw;
pub mod rest;
pub mod server;

pub use error::{Code, Error};
pub use infer::{InferRequest, InferResponse, InferTensor, Parameter, Parameters, RequestedOutput};
pub use limits::Limits;
pub use metadata::{Duration, IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata};
pub use outputs::select;
