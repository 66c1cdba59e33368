//! REST codec: JSON with the binary tensor extension.
//!
//! A body is JSON only, or JSON of `Inference-Header-Content-Length` bytes followed by the tensors with a
//! `binary_data_size`. JSON has no NaN and no infinity: requests with them are rejected, responses contain `null`;
//! binary tensors and gRPC support them.

pub(crate) mod data;
mod decode;
mod document;
mod encode;
mod encoding;

pub use crate::metadata::rest::{
    encode_index, encode_model_metadata, encode_server_metadata, encode_statistics,
};
pub use decode::{decode_request, decode_response, header_length};
pub(crate) use document::{SHARED_MEMORY, requested_output, shared_memory_unsupported};
pub use encode::{Encoded, encode_request, encode_response, error_body};
pub(crate) use encode::{write_data, write_parameters};
pub(crate) use encoding::decompress_start;
pub use encoding::{Encoding, compress, decompress};

/// Length of the JSON before the binary tensors.
pub const HEADER_LENGTH: &str = "inference-header-content-length";
