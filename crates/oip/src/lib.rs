//! Open Inference Protocol v2 and KServe's V1 protocol: types and codecs, without sockets, runtime or models.
//!
//! [`InferRequest`] and [`InferResponse`] are the types of a server. [`rest`], [`grpc`] and [`v1`] decode and encode them;
//! input that violates the protocol or the [`Limits`] is rejected with an [`Error`]. [`server`] is the interface of
//! an in-process inference server.

#![allow(missing_docs, reason = "internal crate: names document themselves")]

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
pub mod v1;

pub use error::{Code, Error};
pub use infer::{InferRequest, InferResponse, InferTensor, Parameter, Parameters, RequestedOutput};
pub use limits::Limits;
pub use metadata::{Duration, IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata};
pub use outputs::select;
