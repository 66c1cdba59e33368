//! The V1 inference protocol of KServe and TensorFlow Serving: `{"instances":[…]}` and `{"predictions":[…]}`.
//!
//! A V1 request has rows without names, shapes and datatypes. They come from the model's metadata, so that a request is
//! decoded into the same [`InferRequest`](crate::InferRequest) as one of the Open Inference Protocol.

mod batch;
mod columns;
mod decode;
mod encode;

pub use batch::{Instances, encode_batched, join_instances, read_instances, split_predictions};
pub use decode::decode_request;
pub use encode::{encode_names, encode_response};
