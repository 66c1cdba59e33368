//! Which models fit into the memory of their service.

use crate::cluster::{Custom, TrainedModel};
use gantry_api::kserve::PredictorSpec;
use std::{collections::BTreeSet, sync::Arc};

/// Names of the models that fit into the memory limit of the predictor; all without a limit. The oldest first, so that a newer
/// model never displaces one that serves.
pub(in crate::controllers) fn allocated(
    predictor: &PredictorSpec,
    models: &[Arc<Custom<TrainedModel>>],
) -> BTreeSet<String> {
    let created = |model: &Custom<TrainedModel>| model.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let mut models: Vec<&Arc<Custom<TrainedModel>>> = models.iter().collect();
    models.sort_by(|a, b| created(a).cmp(&created(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name)));
    let mut left = predictor.memory_limit().map_or(u64::MAX, |limit| limit.bytes());
    let mut fitting = BTreeSet::new();
    for model in models {
        let Ok(spec) = &model.spec else { continue };
        if let Some(rest) = left.checked_sub(spec.model.memory.bytes()) {
            left = rest;
            fitting.extend(model.metadata.name.clone());
        }
    }
    fitting
}
