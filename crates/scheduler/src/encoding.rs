//! Encoding of stored records.

use crate::{
    convert::{self, Invalid},
    definitions::{Definitions, Encoded},
};
use gantry_core::scheduling::{
    Endpoint, ExperimentRecord, Kind, ModelRecord, Owner, PipelineRecord, PipelineVersionRecord,
    PolicyRecord, Replica, ReplicaId, RolloutRecord, ServerRecord, ServiceRecord, VersionRecord,
};
use gantry_proto::{
    gantry::{
        RolloutPolicy, ServiceRoute, StoredExperiment, StoredModel, StoredPipeline, StoredRollout,
        StoredServer, stored_model, stored_pipeline, stored_server,
    },
    scheduler as pb,
};
use prost::Message as _;
use std::sync::Arc;

/// Version of the record form. Form 0 had no owners and placements.
const RECORD_FORM: u32 = 1;

pub(crate) fn encode_model(record: &ModelRecord, definitions: &Definitions) -> Vec<u8> {
    let versions = record
        .versions
        .iter()
        .map(|v| stored_model::Version {
            number: v.number,
            definition: definitions.model(&v.definition).map(|bytes| bytes.to_vec()).unwrap_or_default(),
            served: v.served,
            scaled: v.scaled,
            server: v.server.as_deref().unwrap_or_default().to_owned(),
            replicas: v.replicas.clone(),
            leaving: v
                .leaving
                .iter()
                .map(|id| stored_model::Place { server: id.server.to_string(), replica: id.index })
                .collect(),
        })
        .collect();
    let manager = name_of(record.owner.as_ref());
    let ModelRecord { deleted, unloaded, .. } = *record;
    let rollout = encode_rollout(record.rollout.as_ref());
    StoredModel { deleted, versions, manager, form: RECORD_FORM, unloaded, rollout }.encode_to_vec()
}

pub(crate) fn decode_model(bytes: &[u8], definitions: &mut Definitions) -> Result<ModelRecord, Invalid> {
    let stored = StoredModel::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    check_form(stored.form)?;
    let latest = stored.versions.last().map(|v| v.number);
    let mut versions = Vec::with_capacity(stored.versions.len());
    for v in stored.versions {
        let message = pb::Model::decode(&*v.definition).map_err(|e| Invalid::new(e.to_string()))?;
        let Encoded { definition, bytes } = convert::definition(message)?;
        definitions.insert((Kind::Model, definition.name.clone(), definition.content), bytes);
        versions.push(VersionRecord {
            number: v.number,
            definition: Arc::new(definition),
            served: v.served || (stored.form == 0 && Some(v.number) != latest),
            scaled: v.scaled,
            server: Some(v.server).filter(|s| !s.is_empty()).map(Arc::from),
            replicas: v.replicas,
            leaving: v
                .leaving
                .into_iter()
                .map(|place| ReplicaId { server: place.server.into(), index: place.replica })
                .collect(),
        });
    }
    let StoredModel { deleted, unloaded, rollout, .. } = stored;
    let rollout = decode_rollout(rollout)?;
    Ok(ModelRecord { deleted, unloaded, owner: owner(&stored.manager), versions, rollout })
}

fn encode_rollout(record: Option<&RolloutRecord>) -> Option<StoredRollout> {
    let RolloutRecord { policy, state } = record?;
    // Serialization into memory cannot fail.
    let state = serde_json::to_vec(state).unwrap_or_default();
    Some(StoredRollout { policy: policy.to_string(), state })
}

fn decode_rollout(stored: Option<StoredRollout>) -> Result<Option<RolloutRecord>, Invalid> {
    let Some(StoredRollout { policy, state }) = stored else { return Ok(None) };
    let state = serde_json::from_slice(&state).map_err(|e| Invalid::new(format!("rollout: {e}")))?;
    Ok(Some(RolloutRecord { policy: policy.into(), state }))
}

pub(crate) fn encode_server(record: &ServerRecord) -> Vec<u8> {
    let announced = record.expected.map(|expected| pb::ServerNotify {
        name: record.name.to_string(),
        expected_replicas: expected.replicas,
        shared: record.shared,
        kubernetes_meta: record.namespace.as_ref().map(|namespace| pb::KubernetesMeta {
            namespace: namespace.clone(),
            generation: expected.generation.unwrap_or(0),
        }),
        min_replicas: expected.min,
        max_replicas: expected.max,
    });
    let replicas = record
        .replicas
        .iter()
        .map(|(index, r)| stored_server::Replica {
            index: *index,
            host: r.endpoint.host.clone(),
            http_port: r.endpoint.http_port.into(),
            grpc_port: r.endpoint.grpc_port.into(),
            capabilities: r.capabilities.clone(),
            memory_total: r.memory_total,
            memory_free: r.memory_free,
            over_commit: r.over_commit,
            draining: r.draining,
        })
        .collect();
    StoredServer {
        announced,
        manager: name_of(record.owner.as_ref()),
        replicas,
        name: record.name.to_string(),
        shared: record.shared,
    }
    .encode_to_vec()
}

pub(crate) fn decode_server(bytes: &[u8]) -> Result<ServerRecord, Invalid> {
    let stored = StoredServer::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    let expected = stored.announced.as_ref().map(convert::expected_replicas).transpose()?;
    let (name, shared) = match &stored.announced {
        // Form 0 consists of the server notification only.
        Some(announced) => (announced.name.as_str(), announced.shared),
        None if stored.name.is_empty() => return Err(Invalid::new("empty record")),
        None => (stored.name.as_str(), stored.shared),
    };
    let mut replicas = Vec::with_capacity(stored.replicas.len());
    for r in stored.replicas {
        let port = |port: u32| {
            u16::try_from(port)
                .map_err(|_| Invalid::new(format!("replica {}: {port} is not a port", r.index)))
        };
        let replica = Replica {
            endpoint: Endpoint {
                http_port: port(r.http_port)?,
                grpc_port: port(r.grpc_port)?,
                host: r.host.clone(),
            },
            capabilities: r.capabilities,
            memory_total: r.memory_total,
            memory_free: r.memory_free,
            over_commit: r.over_commit,
            draining: r.draining,
            ..Replica::default()
        };
        replicas.push((r.index, replica));
    }
    Ok(ServerRecord {
        name: Arc::from(name),
        expected,
        shared,
        namespace: stored.announced.and_then(|a| a.kubernetes_meta).map(|k| k.namespace),
        owner: owner(&stored.manager),
        replicas,
    })
}

pub(crate) fn encode_pipeline(record: &PipelineRecord, definitions: &Definitions) -> Vec<u8> {
    let versions = record.versions.iter().map(|v| stored_pipeline::Version {
        number: v.number,
        uid: v.uid.to_string(),
        definition: definitions
            .pipeline(&v.definition.name, v.definition.content)
            .map(|bytes| bytes.to_vec())
            .unwrap_or_default(),
        was_ready: v.was_ready,
    });
    StoredPipeline {
        deleted: record.deleted,
        versions: versions.collect(),
        manager: name_of(record.owner.as_ref()),
        form: RECORD_FORM,
        rollout: encode_rollout(record.rollout.as_ref()),
    }
    .encode_to_vec()
}

/// Stored definitions are not validated again: rules may have become stricter since they were accepted.
pub(crate) fn decode_pipeline(
    bytes: &[u8],
    definitions: &mut Definitions,
) -> Result<PipelineRecord, Invalid> {
    let stored = StoredPipeline::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    check_form(stored.form)?;
    let mut versions = Vec::with_capacity(stored.versions.len());
    for v in stored.versions {
        let message = pb::Pipeline::decode(&*v.definition).map_err(|e| Invalid::new(e.to_string()))?;
        let Encoded { definition, bytes } = convert::accepted_pipeline(message);
        definitions.insert((Kind::Pipeline, definition.name.clone(), definition.content), bytes);
        let (uid, definition) = (v.uid.into(), Arc::new(definition));
        versions.push(PipelineVersionRecord { number: v.number, uid, definition, was_ready: v.was_ready });
    }
    let rollout = decode_rollout(stored.rollout)?;
    Ok(PipelineRecord { deleted: stored.deleted, owner: owner(&stored.manager), versions, rollout })
}

pub(crate) fn encode_experiment(record: &ExperimentRecord, definitions: &Definitions) -> Vec<u8> {
    let definition = definitions.experiment(&record.definition.name, record.definition.content);
    StoredExperiment {
        deleted: record.deleted,
        definition: definition.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        manager: name_of(record.owner.as_ref()),
        form: RECORD_FORM,
    }
    .encode_to_vec()
}

pub(crate) fn decode_experiment(
    bytes: &[u8],
    definitions: &mut Definitions,
) -> Result<ExperimentRecord, Invalid> {
    let stored = StoredExperiment::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    check_form(stored.form)?;
    let message = pb::Experiment::decode(&*stored.definition).map_err(|e| Invalid::new(e.to_string()))?;
    if message.name.is_empty() {
        return Err(Invalid::new("empty record"));
    }
    let Encoded { definition, bytes } = convert::accepted_experiment(message)?;
    definitions.insert((Kind::Experiment, definition.name.clone(), definition.content), bytes);
    let (deleted, definition) = (stored.deleted, Arc::new(definition));
    Ok(ExperimentRecord { deleted, owner: owner(&stored.manager), definition })
}

/// As it was put, with the rollout.
pub(crate) fn encode_service(record: &ServiceRecord) -> Vec<u8> {
    let mut bytes = record.route.to_vec();
    if let Some(rollout) = encode_rollout(record.rollout.as_ref()) {
        // Messages in a row are one message with the fields of all.
        let with_rollout = ServiceRoute { rollout: Some(rollout), ..ServiceRoute::default() };
        bytes.extend(with_rollout.encode_to_vec());
    }
    bytes
}

/// Not validated again, as a pipeline.
pub(crate) fn decode_service(bytes: &[u8]) -> Result<ServiceRecord, Invalid> {
    let mut route = ServiceRoute::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    if route.name.is_empty() {
        return Err(Invalid::new("empty record"));
    }
    let rollout = decode_rollout(route.rollout.take())?;
    Ok(ServiceRecord { rollout, ..convert::accepted_service(&route)? })
}

/// Stored as it was put.
pub(crate) fn decode_policy(bytes: &[u8]) -> Result<PolicyRecord, Invalid> {
    let policy = RolloutPolicy::decode(bytes).map_err(|e| Invalid::new(e.to_string()))?;
    convert::rollout_policy(policy)
}

fn check_form(form: u32) -> Result<(), Invalid> {
    if form > RECORD_FORM {
        return Err(Invalid::new(format!(
            "unknown record form {form}; this version reads forms up to {RECORD_FORM}"
        )));
    }
    Ok(())
}

fn name_of(owner: Option<&Owner>) -> String {
    owner.map(Owner::record).unwrap_or_default()
}

fn owner(name: &str) -> Option<Owner> {
    let Ok(owner) = name.parse();
    Some(owner).filter(|_| !name.is_empty())
}
