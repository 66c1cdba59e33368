//! Statuses and routes of experiments.

use crate::read_model::ExperimentSnapshot;
use gantry_core::scheduling::{ExperimentStatus, Owner};
use gantry_proto::{gantry as own, scheduler as pb};
use prost::Message as _;

fn definition(snapshot: &ExperimentSnapshot) -> pb::Experiment {
    // Encoded by `convert::experiment`, so decoding cannot fail.
    pb::Experiment::decode(&*snapshot.definition).unwrap_or_default()
}

pub(crate) fn experiment(name: &str, snapshot: &ExperimentSnapshot) -> pb::ExperimentStatusResponse {
    let experiment = &snapshot.experiment;
    let ExperimentStatus { active, candidates_ready, mirror_ready, description } = experiment.status();
    let definition = definition(snapshot);
    pb::ExperimentStatusResponse {
        experiment_name: name.to_owned(),
        active,
        candidates_ready,
        mirror_ready,
        status_description: description,
        kubernetes_meta: definition.kubernetes_meta.clone(),
        manager: experiment.owner.as_ref().map(Owner::to_string).unwrap_or_default(),
        definition: Some(definition),
        deleted: experiment.deleted,
    }
}

/// `None` when gateways must not know the experiment.
pub(crate) fn experiment_route(snapshot: &ExperimentSnapshot) -> Option<own::ExperimentRoute> {
    if snapshot.experiment.deleted {
        return None;
    }
    let obstacle = snapshot.experiment.obstacle();
    Some(own::ExperimentRoute {
        definition: Some(definition(snapshot)),
        active: obstacle.is_none(),
        reason: obstacle.unwrap_or_default(),
    })
}
