//! Statuses and routes as gRPC messages.

mod experiment;
mod pipeline;
mod rollout;
mod service;

pub(crate) use experiment::{experiment, experiment_route};
pub(crate) use pipeline::{pipeline, pipeline_route};
pub(crate) use rollout::rollout;
pub(crate) use service::{is_algorithm, service, service_name, service_route};

use crate::{convert, read_model::ModelSnapshot};
use gantry_core::rollout::ObservedTensor;
use gantry_core::scheduling::{
    Millis, Mirror, Model, ModelState, Owner, ReplicaId, ReplicaState, ReplicaStatus, Route, Server, State,
    Version, VersionStatus,
};
use gantry_proto::{gantry as own, redact, scheduler as pb};

fn timestamp(at: Millis) -> prost_types::Timestamp {
    let seconds = i64::try_from(at / 1000).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos: i32::try_from(at % 1000).unwrap_or(0) * 1_000_000 }
}

const fn state_number(state: ModelState) -> i32 {
    state as i32
}

const fn replica_number(state: ReplicaState) -> i32 {
    state as i32
}

/// Status of the latest version, or of all versions.
pub(crate) fn model(name: &str, snapshot: &ModelSnapshot, all_versions: bool) -> pb::ModelStatusResponse {
    let model = &snapshot.model;
    let versions = model
        .versions
        .iter()
        .zip(&snapshot.definitions)
        .rev()
        .take(if all_versions { usize::MAX } else { 1 })
        .map(|(v, definition)| version(model, v, definition))
        .collect();
    pb::ModelStatusResponse {
        model_name: name.to_owned(),
        versions,
        deleted: model.deleted,
        keep_topics: false,
        timestamp: model.latest().map_or(0, |v| v.since),
        operation: if model.deleted {
            pb::model_status_response::ModelOperation::ModelDelete as i32
        } else {
            pb::model_status_response::ModelOperation::ModelCreate as i32
        },
        manager: model.owner.as_ref().map(Owner::to_string).unwrap_or_default(),
    }
}

fn version(model: &Model, version: &Version, definition: &[u8]) -> pb::ModelVersionStatus {
    let VersionStatus { state, reason, code, available, unavailable } = model.version_status(version);
    let mut definition = convert::decode(definition);
    redact(&mut definition);
    pb::ModelVersionStatus {
        version: version.number,
        server_name: version.server.as_deref().unwrap_or_default().to_owned(),
        kubernetes_meta: definition.meta.as_ref().and_then(|m| m.kubernetes_meta.clone()),
        model_replica_state: version
            .replicas
            .iter()
            .map(|(&index, replica)| (i32::try_from(index).unwrap_or(i32::MAX), replica_status(replica)))
            .collect(),
        state: Some(pb::ModelStatus {
            state: state_number(state),
            reason,
            available_replicas: available,
            unavailable_replicas: unavailable,
            last_change_timestamp: Some(timestamp(version.since)),
            // There is no separate model gateway: it is ready when the model is.
            model_gw_state: state_number(state),
            model_gw_reason: String::new(),
            reason_code: code.map(|c| c.to_string()).unwrap_or_default(),
        }),
        model_defn: Some(definition),
    }
}

fn replica_status(replica: &ReplicaStatus) -> pb::ModelReplicaStatus {
    pb::ModelReplicaStatus {
        state: replica_number(replica.state),
        reason: replica.reason.clone(),
        last_change_timestamp: Some(timestamp(replica.since)),
    }
}

/// `loaded` returns the number of model replicas on a server replica.
pub(crate) fn server(name: &str, server: &Server, loaded: impl Fn(u32) -> usize) -> pb::ServerStatusResponse {
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let resources: Vec<pb::ServerReplicaResources> = server
        .replicas
        .iter()
        .map(|(&index, replica)| pb::ServerReplicaResources {
            replica_idx: index,
            total_memory_bytes: replica.memory_total,
            available_memory_bytes: replica.memory_free,
            num_loaded_models: count(loaded(index)),
            over_commit_percentage: replica.over_commit,
        })
        .collect();
    let available = server.replicas.values().filter(|r| r.disconnected_since.is_none()).count();
    pb::ServerStatusResponse {
        server_name: name.to_owned(),
        expected_replicas: server
            .expected
            .map_or(count(server.replicas.len()), |e| i32::try_from(e.replicas).unwrap_or(i32::MAX)),
        available_replicas: count(available),
        num_loaded_model_replicas: resources.iter().map(|r| r.num_loaded_models).sum(),
        resources,
        kubernetes_meta: server.namespace.as_ref().map(|namespace| pb::KubernetesMeta {
            namespace: namespace.clone(),
            generation: server.expected.and_then(|e| e.generation).unwrap_or(0),
        }),
        r#type: pb::server_status_response::Type::StatusUpdate as i32,
        manager: server.owner.as_ref().map(Owner::to_string).unwrap_or_default(),
    }
}

/// Asks the server's owner to scale it.
pub(crate) fn scaling_request(server: &pb::ServerStatusResponse, requested: u32) -> pb::ServerStatusResponse {
    pb::ServerStatusResponse {
        expected_replicas: i32::try_from(requested).unwrap_or(i32::MAX),
        r#type: pb::server_status_response::Type::ScalingRequest as i32,
        ..server.clone()
    }
}

/// `None` when gateways must not know the model.
pub(crate) fn route(
    name: &str,
    model: &Model,
    summary: Option<&VersionStatus>,
    state: &State,
    service_namespace: String,
) -> Option<own::Route> {
    if model.deleted {
        return None;
    }
    let Route { versions, scaled_to_zero, rollout_generation, observed, mirror } = Route::of(model);
    let observed = observed.as_ref().map(observed_tensor);
    let versions = versions
        .into_iter()
        .map(|v| own::RouteVersion {
            version: v.version,
            weight: v.weight,
            endpoints: v.replicas.iter().filter_map(|id| endpoint(id, state)).collect(),
        })
        .collect();
    let reason = summary.map(|s| s.reason.clone()).unwrap_or_default();
    let failed = summary.is_some_and(|s| s.state == ModelState::Failed);
    let (model, sleeps) = (name.to_owned(), scaled_to_zero);
    Some(own::Route {
        model,
        versions,
        reason,
        sleeps,
        failed,
        service_namespace,
        rollout_generation,
        observed,
        mirror: mirror.map(|Mirror { version, percent, tolerance }| own::Mirror {
            version,
            percent,
            tolerance,
        }),
    })
}

pub(crate) fn observed_tensor(tensor: &ObservedTensor) -> own::ObservedTensor {
    own::ObservedTensor { name: tensor.name.to_string(), input: tensor.is_input }
}

fn endpoint(id: &ReplicaId, state: &State) -> Option<own::Endpoint> {
    let replica = state.servers().get(&id.server)?.replicas.get(&id.index)?;
    Some(own::Endpoint {
        server: id.server.to_string(),
        replica: id.index,
        host: replica.endpoint.host.clone(),
        http_port: u32::from(replica.endpoint.http_port),
        grpc_port: u32::from(replica.endpoint.grpc_port),
        disconnected: replica.disconnected_since.is_some(),
    })
}
