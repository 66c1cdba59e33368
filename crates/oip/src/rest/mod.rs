//! The protocol over REST: JSON, with the binary tensor extension.
//!
//! A body is JSON alone, or JSON of `Inference-Header-Content-Length` bytes followed by the bytes of the tensors
//! that have a `binary_data_size`. JSON has no NaN and no infinity: in a request they are refused, in a response
//! they are written as `null`; binary tensors and gRPC carry them.

mod data;
mod decode;
mod document;
mod encode;
mod encoding;

pub use crate::metadata::rest::{
    encode_index, encode_model_metadata, encode_server_metadata, encode_statistics,
};
pub use decode::{decode_request, decode_response};
pub(crate) use document::requested_output;
pub(crate) use encode::write_parameters;
pub use encode::{Encoded, encode_request, encode_response, error_body};
pub use encoding::{Encoding, compress, decompress};

/// The header that says how long the JSON before the binary tensors is.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
