//! gRPC codec: messages and unary framing.
//!
//! A message has raw contents (as sent by tritonclient) or typed contents, never both; `FP16` and `BF16` are raw
//! only. A response has the form of its request.

mod convert;
mod frame;
mod peek;
mod typed;

pub(crate) use convert::parameters_to_proto;
pub use convert::{decode_infer_answer, decode_request, decode_response, encode_request, encode_response};
pub use frame::{
    PREFIX, decode_frame, encode_frame, frame_message, percent_decode, percent_encode, status,
    status_trailers,
};
pub use peek::{
    NameScanner, RequestFields, SequenceId, frame_start, peek_frame_name, peek_name, peek_request,
    peek_start, replace_leading_name, replace_name,
};

/// Path prefix of all methods.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";
/// Path of unary inference.
pub const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
