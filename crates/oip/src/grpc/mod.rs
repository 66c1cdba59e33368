//! The protocol over gRPC: messages and unary framing.
//!
//! Tensors travel as raw contents (what tritonclient sends) or as typed contents, never both in one message;
//! `FP16` and `BF16` exist only as raw contents. A response has the form of its request.

mod convert;
mod frame;
mod peek;
mod typed;

pub(crate) use convert::parameters_to_proto;
pub use convert::{decode_request, decode_response, encode_request, encode_response};
pub use frame::{decode_frame, encode_frame, frame_message, percent_decode, percent_encode, status_trailers};
pub use peek::{peek_name, replace_name};

/// The path in front of each method's name.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";
