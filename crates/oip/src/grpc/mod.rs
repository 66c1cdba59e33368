//! gRPC codec: messages and unary framing.
//!
//! A message has raw contents (as sent by tritonclient) or typed contents, never both; `FP16` and `BF16` are raw
//! only. A response has the form of its request.

mod convert;
mod frame;
mod peek;
mod typed;

pub(crate) use convert::parameters_to_proto;
pub use convert::{decode_request, decode_response, encode_request, encode_response};
pub use frame::{
    PREFIX, decode_frame, encode_frame, frame_message, percent_decode, percent_encode, status_trailers,
};
pub use peek::{peek_name, replace_name};

/// Path prefix of all methods.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";
