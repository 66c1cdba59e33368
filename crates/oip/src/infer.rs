//! A request and a response, whichever way they came.

use gantry_tensor::Tensor;
use std::collections::BTreeMap;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    I64(i64),
    /// Any other number.
    F64(f64),
    /// A text.
    String(String),
}

/// Parameters by name.
pub type Parameters = BTreeMap<String, Parameter>;

/// A tensor and what was said about it besides its elements (`content_type`, for one).
#[derive(Clone, Debug, PartialEq)]
pub struct InferTensor {
    /// The tensor.
    pub tensor: Tensor,
    /// Its parameters, without those that only describe the wire form (`binary_data_size`).
    pub parameters: Parameters,
}

impl From<Tensor> for InferTensor {
    fn from(tensor: Tensor) -> Self {
        Self { tensor, parameters: Parameters::new() }
    }
}

/// An output that the client asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedOutput {
    /// The output's name.
    pub name: String,
    /// Whether it shall be binary (REST); `None` leaves it to [`InferRequest::binary_data_output`].
    pub binary: Option<bool>,
    /// Asks for the best so many classes as `BYTES` instead of the tensor itself.
    pub classification: Option<u32>,
    /// The remaining parameters.
    pub parameters: Parameters,
}

/// What a client asks a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// The model; empty over REST, where the path names it.
    pub model_name: String,
    /// The version; often empty.
    pub model_version: String,
    /// The client's id of the request, given back in the response; may be empty.
    pub id: String,
    /// Parameters of the request, without `binary_data_output`.
    pub parameters: Parameters,
    /// The input tensors; no two have the same name.
    pub inputs: Vec<InferTensor>,
    /// The outputs wanted; all of them when empty.
    pub outputs: Vec<RequestedOutput>,
    /// REST: outputs shall be binary unless one says otherwise.
    pub binary_data_output: bool,
    /// gRPC: the inputs came as raw contents, so the outputs go back the same way.
    pub raw_contents: bool,
}

impl InferRequest {
    /// Whether the client wants this output as binary data (REST).
    pub fn wants_binary(&self, output: &str) -> bool {
        self.outputs
            .iter()
            .find(|o| o.name == output)
            .and_then(|o| o.binary)
            .unwrap_or(self.binary_data_output)
    }
}

/// What a model answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// The model that answered.
    pub model_name: String,
    /// Its version; may be empty.
    pub model_version: String,
    /// The id of the request; may be empty.
    pub id: String,
    /// Parameters of the response.
    pub parameters: Parameters,
    /// The output tensors.
    pub outputs: Vec<InferTensor>,
}
