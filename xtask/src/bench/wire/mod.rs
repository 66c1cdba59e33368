//! Minimal HTTP/1.1, gRPC and protobuf clients: little to compile, and a load generator that costs less than the measured
//! server (docs/decisions/bench-client.md).

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod protobuf;
