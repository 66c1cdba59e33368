//! Experiments.

use super::{Invalid, invalid};
use crate::definitions::{Encoded, digest};
use gantry_api::check_name;
use gantry_core::scheduling::{ExperimentDefinition, Resource};
use gantry_proto::scheduler as pb;
use prost::Message as _;

/// Core checks candidates, mirror and default.
pub(crate) fn experiment(message: pb::Experiment) -> Result<Encoded<ExperimentDefinition>, Invalid> {
    if let Err(problem) = check_name(&message.name) {
        return invalid(format!("experiment name {problem}"));
    }
    let mirror = message.mirror.iter().map(|mirror| &mirror.name);
    if message.candidates.iter().map(|candidate| &candidate.name).chain(mirror).any(String::is_empty) {
        return invalid(format!("experiment {}: a candidate or the mirror has no name", message.name));
    }
    if let Some(mirror) = message.mirror.as_ref().filter(|mirror| mirror.percent > 100) {
        return invalid(format!(
            "experiment {}: mirror.percent is {}, at most 100 is possible",
            message.name, mirror.percent
        ));
    }
    accepted_experiment(message)
}

/// A definition that was validated when it was accepted.
pub(crate) fn accepted_experiment(message: pb::Experiment) -> Result<Encoded<ExperimentDefinition>, Invalid> {
    let resource = match pb::ResourceType::try_from(message.resource_type) {
        Ok(pb::ResourceType::Model) => Resource::Model,
        Ok(pb::ResourceType::Pipeline) => Resource::Pipeline,
        Err(_) => {
            let (name, number) = (&message.name, message.resource_type);
            return invalid(format!("experiment {name}: unknown resource type {number}"));
        }
    };
    let bytes = message.encode_to_vec();
    let spec = pb::Experiment { kubernetes_meta: None, ..message.clone() };
    let definition = ExperimentDefinition {
        name: message.name.as_str().into(),
        spec: digest(&spec.encode_to_vec()),
        content: digest(&bytes),
        resource,
        default: message.default.filter(|default| !default.is_empty()).map(Into::into),
        candidates: message.candidates.into_iter().map(|c| (c.name.into(), c.weight)).collect(),
        mirror: message.mirror.map(|mirror| (mirror.name.into(), mirror.percent)),
        generation: message.kubernetes_meta.map(|k| k.generation).filter(|g| *g > 0),
        replaces: None,
    };
    Ok(Encoded { definition, bytes: bytes.into() })
}
