//! Tensors of a run.

use gantry_core::pipeline::Tensor;
use gantry_oip::InferTensor;
use gantry_transport::memory::{ConnectionMemory, Exhausted, Held};
use std::sync::Arc;

/// A tensor that steps share: clones copy no elements, and its memory is charged until the last one is dropped.
#[derive(Clone)]
pub(crate) struct StepTensor {
    tensor: InferTensor,
    held: Option<Arc<Held>>,
}

impl StepTensor {
    /// Charges the tensors of a request or a response.
    pub(crate) fn hold(
        tensors: Vec<InferTensor>,
        memory: &Arc<ConnectionMemory>,
    ) -> Result<Vec<Self>, Exhausted> {
        tensors
            .into_iter()
            .map(|InferTensor { tensor, parameters }| {
                let held = memory.hold(tensor.elements().raw_len())?.map(Arc::new);
                Ok(Self { tensor: InferTensor { tensor: tensor.shared(), parameters }, held })
            })
            .collect()
    }

    /// The same tensors, charged to another budget.
    pub(super) fn hold_again(
        tensors: Vec<Self>,
        memory: &Arc<ConnectionMemory>,
    ) -> Result<Vec<Self>, Exhausted> {
        Self::hold(tensors.into_iter().map(Self::into_tensor).collect(), memory)
    }

    /// The same tensor, charged elsewhere.
    pub(super) fn uncharged(&self) -> Self {
        Self { tensor: self.tensor.clone(), held: None }
    }

    pub(super) fn all_uncharged(tensors: &[Self]) -> Vec<Self> {
        tensors.iter().map(Self::uncharged).collect()
    }

    /// The first dimension; `None` for a scalar.
    pub(super) fn rows(&self) -> Option<usize> {
        self.tensor.tensor.shape().first().copied()
    }

    pub(super) fn can_concat(&self, other: &Self) -> bool {
        self.tensor.tensor.can_concat(&other.tensor.tensor)
            && self.tensor.parameters == other.tensor.parameters
    }

    /// The rows of all tensors; the result is charged elsewhere.
    pub(super) fn concat<'a>(tensors: impl Iterator<Item = &'a Self> + Clone) -> Option<Self> {
        let parameters = tensors.clone().next()?.tensor.parameters.clone();
        let tensor = gantry_tensor::Tensor::concat(tensors.map(|t| &t.tensor.tensor))?;
        Some(Self { tensor: InferTensor { tensor, parameters }, held: None })
    }

    pub(super) fn bytes(&self) -> usize {
        self.tensor.tensor.elements().raw_len()
    }

    /// The tensor, and the charge to keep while it is in use.
    pub(super) fn split(self) -> (InferTensor, Option<Arc<Held>>) {
        (self.tensor, self.held)
    }

    pub(crate) fn into_tensor(self) -> InferTensor {
        self.tensor
    }
}

impl Tensor for StepTensor {
    fn name(&self) -> &str {
        self.tensor.tensor.name()
    }

    fn renamed(mut self, name: &Arc<str>) -> Self {
        self.tensor.tensor = self.tensor.tensor.renamed(&**name);
        self
    }
}
