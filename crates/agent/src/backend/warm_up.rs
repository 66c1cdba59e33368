//! Warm-up: one inference with zeros, so that a model that fails every request is not reported as loaded.

use gantry_proto::inference::{
    ModelInferRequest, ModelMetadataResponse, model_infer_request::InferInputTensor,
};
use tonic::{Code, Status};

/// Larger requests are not sent.
const MAX_BYTES: usize = 64 << 20;
/// A string is its length in four bytes, then its text.
const EMPTY_STRING_BYTES: usize = 4;

pub(super) struct WarmUp {
    pub(super) request: ModelInferRequest,
    /// Models of text often fail on empty strings, so that their failure shows nothing.
    has_strings: bool,
}

impl WarmUp {
    /// `None` when the metadata does not describe the inputs. Dynamic dimensions become 1.
    pub(super) fn new(name: &str, metadata: ModelMetadataResponse) -> Option<Self> {
        let mut request = ModelInferRequest { model_name: name.to_owned(), ..Default::default() };
        let (mut has_strings, mut left) = (false, MAX_BYTES);
        for input in metadata.inputs {
            let shape: Vec<i64> = input.shape.iter().map(|&size| if size < 0 { 1 } else { size }).collect();
            has_strings |= input.datatype == "BYTES";
            let mut bytes = element_bytes(&input.datatype)?;
            for size in &shape {
                bytes = bytes.checked_mul(usize::try_from(*size).ok()?)?;
            }
            left = left.checked_sub(bytes)?;
            request.raw_input_contents.push(vec![0; bytes].into());
            let (name, datatype) = (input.name, input.datatype);
            request.inputs.push(InferInputTensor { name, datatype, shape, ..Default::default() });
        }
        (!request.inputs.is_empty()).then_some(Self { request, has_strings })
    }

    /// Whether an error shows that the model cannot serve. A request that is rejected as invalid, for example by a
    /// decoupled or a stateful model, is an answer.
    pub(super) fn shows_failure(&self, status: &Status) -> bool {
        let server_error = matches!(status.code(), Code::Internal | Code::Unknown | Code::DataLoss);
        let no_answer = matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted
        );
        no_answer || (server_error && !self.has_strings)
    }
}

fn element_bytes(datatype: &str) -> Option<usize> {
    Some(match datatype {
        "BOOL" | "INT8" | "UINT8" => 1,
        "FP16" | "BF16" | "INT16" | "UINT16" => 2,
        "FP32" | "INT32" | "UINT32" => 4,
        "FP64" | "INT64" | "UINT64" => 8,
        "BYTES" => EMPTY_STRING_BYTES,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::inference::model_metadata_response::TensorMetadata;

    fn metadata(inputs: &[(&str, &[i64])]) -> ModelMetadataResponse {
        let inputs = inputs.iter().map(|(datatype, shape)| TensorMetadata {
            name: "x".into(),
            datatype: (*datatype).into(),
            shape: shape.to_vec(),
            ..Default::default()
        });
        ModelMetadataResponse { inputs: inputs.collect(), ..Default::default() }
    }

    #[test]
    fn request_has_zeros_for_described_inputs_only() {
        let warm_up = WarmUp::new("m_1", metadata(&[("FP32", &[-1, 4]), ("BYTES", &[2])])).unwrap();
        let shapes: Vec<_> = warm_up.request.inputs.iter().map(|i| i.shape.clone()).collect();
        assert_eq!(shapes, [vec![1, 4], vec![2]]);
        assert_eq!(warm_up.request.raw_input_contents, [vec![0u8; 16], vec![0; 8]]);
        let unusable: [&[(&str, &[i64])]; 4] =
            [&[], &[("FP32", &[1]), ("JSON", &[1])], &[("FP32", &[1 << 40])], &[("FP32", &[i64::MAX, 2])]];
        for inputs in unusable {
            assert!(WarmUp::new("m_1", metadata(inputs)).is_none(), "{inputs:?}");
        }
    }

    #[test]
    fn only_server_errors_show_a_failure() {
        for (datatype, code, expected) in [
            ("FP32", Code::Internal, true),
            ("FP32", Code::Unknown, true),
            ("FP32", Code::Unavailable, true),
            ("FP32", Code::DeadlineExceeded, true),
            ("FP32", Code::InvalidArgument, false),
            ("FP32", Code::Unimplemented, false),
            ("FP32", Code::FailedPrecondition, false),
            ("BYTES", Code::Internal, false),
            ("BYTES", Code::Unavailable, true),
        ] {
            let warm_up = WarmUp::new("m", metadata(&[(datatype, &[1])])).unwrap();
            assert_eq!(warm_up.shows_failure(&Status::new(code, "")), expected, "{datatype} {code:?}");
        }
    }
}
