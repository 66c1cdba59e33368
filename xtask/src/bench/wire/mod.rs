//! The least that is needed to speak HTTP/1.1, gRPC and protobuf: nothing to install, little to compile, and a load
//! generator that costs less than what it measures.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod protobuf;
