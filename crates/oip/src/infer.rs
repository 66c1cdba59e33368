//! Inference requests and responses, independent of the wire form.

use gantry_tensor::Tensor;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    Bool(bool),
    I64(i64),
    F64(f64),
    String(String),
}

pub type Parameters = BTreeMap<String, Parameter>;

/// A tensor with its parameters, such as `content_type`.
#[derive(Clone, Debug, PartialEq)]
pub struct InferTensor {
    pub tensor: Tensor,
    /// Without wire-level parameters such as `binary_data_size`.
    pub parameters: Parameters,
}

impl From<Tensor> for InferTensor {
    fn from(tensor: Tensor) -> Self {
        Self { tensor, parameters: Parameters::new() }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedOutput {
    pub name: String,
    /// Requests binary data (REST); `None` defers to [`InferRequest::binary_data_output`].
    pub binary: Option<bool>,
    /// Requests the top classes as `BYTES` instead of the tensor.
    pub classification: Option<u32>,
    pub parameters: Parameters,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// Empty over REST, where the path contains it.
    pub model_name: String,
    /// Often empty.
    pub model_version: String,
    /// Returned in the response; may be empty.
    pub id: String,
    /// Without `binary_data_output`.
    pub parameters: Parameters,
    /// Names are unique.
    pub inputs: Vec<InferTensor>,
    /// Requested outputs; empty means all.
    pub outputs: Vec<RequestedOutput>,
    /// REST: default for outputs without `binary`.
    pub binary_data_output: bool,
    /// gRPC: the inputs were raw contents, so the outputs will be, too.
    pub raw_contents: bool,
}

impl InferRequest {
    pub fn wants_binary(&self, output: &str) -> bool {
        self.outputs
            .iter()
            .find(|o| o.name == output)
            .and_then(|o| o.binary)
            .unwrap_or(self.binary_data_output)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    pub model_name: String,
    /// May be empty.
    pub model_version: String,
    /// ID of the request; may be empty.
    pub id: String,
    pub parameters: Parameters,
    pub outputs: Vec<InferTensor>,
}
