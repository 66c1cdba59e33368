//! Statuses and routes of pipelines.

use super::{observed_tensor, timestamp};
use crate::read_model::PipelineSnapshot;
use gantry_core::scheduling::{Owner, PipelineStatus, PipelineVersion};
use gantry_proto::{gantry as own, scheduler as pb};
use prost::Message as _;

fn definition(version: &PipelineVersion, encoded: &[u8]) -> pb::Pipeline {
    // Encoded by `convert::pipeline`, so decoding cannot fail.
    let definition = pb::Pipeline::decode(encoded).unwrap_or_default();
    pb::Pipeline { uid: version.uid.to_string(), version: version.number, ..definition }
}

/// Status of the latest version, or of all versions.
pub(crate) fn pipeline(
    name: &str,
    snapshot: &PipelineSnapshot,
    all_versions: bool,
) -> pb::PipelineStatusResponse {
    use pb::pipeline_status_response::PipelineOperation;
    let pipeline = &snapshot.pipeline;
    let versions = pipeline
        .versions
        .iter()
        .zip(&snapshot.definitions)
        .rev()
        .take(if all_versions { usize::MAX } else { 1 })
        .map(|(version, encoded)| pb::PipelineWithState {
            pipeline: Some(definition(version, encoded)),
            state: Some(version_state(version, pipeline.version_status(version))),
        })
        .collect();
    let operation =
        if pipeline.deleted { PipelineOperation::PipelineDelete } else { PipelineOperation::PipelineCreate };
    pb::PipelineStatusResponse {
        pipeline_name: name.to_owned(),
        versions,
        timestamp: pipeline.latest().map_or(0, |v| v.since),
        operation: operation as i32,
        manager: pipeline.owner.as_ref().map(Owner::to_string).unwrap_or_default(),
    }
}

fn version_state(version: &PipelineVersion, status: PipelineStatus) -> pb::PipelineVersionState {
    let PipelineStatus { state, reason, models_ready, gateway_reason } = status;
    pb::PipelineVersionState {
        pipeline_version: version.number,
        status: state as i32,
        reason,
        last_change_timestamp: Some(timestamp(version.since)),
        models_ready,
        // Gateways execute pipelines: there is no other component to wait for.
        pipeline_gw_status: state as i32,
        pipeline_gw_reason: gateway_reason,
    }
}

/// `None` when gateways must not know the pipeline.
pub(crate) fn pipeline_route(name: &str, snapshot: &PipelineSnapshot) -> Option<own::PipelineRoute> {
    let pipeline = &snapshot.pipeline;
    if pipeline.deleted {
        return None;
    }
    let shown = pipeline.shown()?;
    let mut split = pipeline.split().into_iter().filter_map(|(routed, percent)| {
        let mut versions = pipeline.versions.iter().zip(&snapshot.definitions);
        let (version, encoded) = versions.find(|(version, _)| version.uid == routed.uid)?;
        Some((definition(version, encoded), percent))
    });
    let routed = split.next().map(|(definition, _)| definition);
    let (candidate, candidate_percent) = split.next().unzip();
    let reason = shown.unready_step();
    Some(own::PipelineRoute {
        pipeline: name.to_owned(),
        ready: routed.is_some() && reason.is_none(),
        definition: routed,
        reason: reason.unwrap_or_default(),
        rollout_generation: pipeline.rollout_generation(),
        candidate,
        candidate_percent: candidate_percent.unwrap_or(0),
        observed: pipeline.observed_tensor().map(observed_tensor),
    })
}
