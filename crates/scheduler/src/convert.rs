//! Conversion of gRPC messages into core types.

mod experiment;
mod pipeline;
mod rollout;
mod service;

pub(crate) use experiment::{accepted_experiment, experiment};
pub(crate) use pipeline::{accepted_pipeline, pipeline};
pub(crate) use rollout::{rollout_policy, rollout_target, steer, version_traffic};
pub(crate) use service::{accepted_service, service, service_key};

use crate::definitions::{Encoded, EncodedDefinition, digest};
use gantry_api::check_name;
use gantry_core::scheduling::{Command, Definition, Digest, ExpectedReplicas, Needs, Owner, Scaling};
use gantry_proto::scheduler as pb;
use prost::Message as _;
use std::sync::Arc;

/// A validation error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(String);

impl Invalid {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

fn invalid<T>(message: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid(message.into()))
}

pub(crate) fn definition(mut model: pb::Model) -> Result<EncodedDefinition, Invalid> {
    let Some(meta) = &model.meta else { return invalid("model.meta is missing: it holds the model's name") };
    if let Err(problem) = check_name(&meta.name) {
        return invalid(format!("model name {problem}"));
    }
    let name: Arc<str> = meta.name.as_str().into();
    let generation = meta.kubernetes_meta.as_ref().map(|k| k.generation).filter(|g| *g > 0);
    let Some(spec) = &mut model.model_spec else {
        return invalid(format!("model {name}: modelSpec is missing"));
    };
    if spec.uri.trim().is_empty() {
        return invalid(format!(
            "model {name}: modelSpec.uri is empty: set it to the location of the model artifact"
        ));
    }
    for requirement in &mut spec.requirements {
        *requirement = requirement.trim().to_owned();
    }
    if spec.requirements.iter().any(String::is_empty) {
        return invalid(format!("model {name}: a requirement is empty: name a capability, such as onnx"));
    }
    let needs = Needs {
        requirements: spec.requirements.clone(),
        memory: spec.memory_bytes.unwrap_or(0),
        server: spec.server.as_deref().filter(|s| !s.is_empty()).map(Arc::from),
        explainer: matches!(spec.model_spec, Some(pb::model_spec::ModelSpec::Explainer(_))),
    };
    let scaling = scaling(&name, model.deployment_spec.as_ref())?;
    let bytes: Arc<[u8]> = model.encode_to_vec().into();
    let Some(spec) = spec_digest(&model) else { return invalid("modelSpec is missing") };
    let definition =
        Definition { name, spec, content: digest(&bytes), needs, scaling, generation, replaces: None };
    Ok(Encoded { definition, bytes })
}

/// Digest of what a replica loads; `None` without a spec.
pub(crate) fn spec_digest(model: &pb::Model) -> Option<Digest> {
    let spec_only = pb::Model {
        meta: None,
        // Runtime info is reported by agents and not part of the desired state.
        model_spec: Some(pb::ModelSpec { model_runtime_info: None, ..model.model_spec.clone()? }),
        deployment_spec: None,
        stream_spec: model.stream_spec.clone(),
        dataflow_spec: None,
    };
    Some(digest(&spec_only.encode_to_vec()))
}

/// Seldon's operator and CLI send the largest number for a maximum that is not set; in the API 0 means unset.
const fn max_replicas(requested: u32) -> u32 {
    if requested == u32::MAX { 0 } else { requested }
}

fn scaling(name: &str, deployment: Option<&pb::DeploymentSpec>) -> Result<Scaling, Invalid> {
    let Some(d) = deployment else { return Ok(Scaling { replicas: 1, min: 0, max: 0 }) };
    let max = if d.max_replicas == 0 { u32::MAX } else { d.max_replicas };
    if d.min_replicas > max {
        return invalid(format!(
            "model {name}: minReplicas {} is more than maxReplicas {max}",
            d.min_replicas
        ));
    }
    if d.replicas < d.min_replicas {
        return invalid(format!(
            "model {name}: replicas {} is fewer than minReplicas {}",
            d.replicas, d.min_replicas
        ));
    }
    if d.replicas > max {
        return invalid(format!("model {name}: replicas {} is more than maxReplicas {max}", d.replicas));
    }
    Ok(Scaling { replicas: d.replicas, min: d.min_replicas, max: max_replicas(d.max_replicas) })
}

pub(crate) fn expected_replicas(server: &pb::ServerNotify) -> Result<ExpectedReplicas, Invalid> {
    if let Err(problem) = check_name(&server.name) {
        return invalid(format!("server name {problem}"));
    }
    Ok(ExpectedReplicas {
        replicas: server.expected_replicas,
        min: server.min_replicas,
        max: max_replicas(server.max_replicas),
        generation: server.kubernetes_meta.as_ref().map(|k| k.generation),
    })
}

pub(crate) fn upsert_server(server: pb::ServerNotify, by: Owner) -> Result<Command, Invalid> {
    let expected = expected_replicas(&server)?;
    Ok(Command::UpsertServer {
        name: server.name.into(),
        expected,
        shared: server.shared,
        namespace: server.kubernetes_meta.map(|k| k.namespace),
        by,
    })
}

/// The gRPC message of a definition.
pub(crate) fn decode(definition: &[u8]) -> pb::Model {
    // Encoded by `definition`, so decoding cannot fail.
    pb::Model::decode(definition).unwrap_or_default()
}

/// The namespace of the InferenceService that the definition is of; empty for a Model.
pub(crate) fn service_namespace(definition: &[u8]) -> String {
    /// The first field of [`pb::Model`].
    #[derive(Clone, PartialEq, prost::Message)]
    struct MetaOnly {
        #[prost(message, optional, tag = "1")]
        meta: Option<pb::MetaData>,
    }
    let meta = MetaOnly::decode(definition).ok().and_then(|model| model.meta);
    let service = meta.filter(|meta| meta.kind.as_deref() == Some(gantry_api::INFERENCE_SERVICE));
    service.and_then(|meta| meta.kubernetes_meta).map(|kubernetes| kubernetes.namespace).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_max_replicas_means_unset() {
        for (requested, max) in [(0, 0), (3, 3), (u32::MAX, 0)] {
            let spec = pb::DeploymentSpec { replicas: 1, max_replicas: requested, ..Default::default() };
            assert_eq!(scaling("iris", Some(&spec)).unwrap().max, max);
            let server = pb::ServerNotify { name: "a".into(), max_replicas: requested, ..Default::default() };
            assert_eq!(expected_replicas(&server).unwrap().max, max);
        }
    }

    #[test]
    fn service_namespace_is_that_of_inference_services() {
        for (kind, namespace, expected) in [
            (Some("InferenceService"), Some("ml"), "ml"),
            (Some("InferenceService"), None, ""),
            (Some("Model"), Some("ml"), ""),
            (None, Some("ml"), ""),
        ] {
            let kubernetes_meta =
                namespace.map(|n| pb::KubernetesMeta { namespace: String::from(n), generation: 3 });
            let meta = pb::MetaData {
                name: "iris".into(),
                kind: kind.map(Into::into),
                version: None,
                kubernetes_meta,
            };
            let spec = pb::ModelSpec { uri: "s3://b/m".into(), ..Default::default() };
            let model = pb::Model { meta: Some(meta), model_spec: Some(spec), ..Default::default() };
            assert_eq!(service_namespace(&model.encode_to_vec()), expected, "{kind:?}");
        }
        assert_eq!(service_namespace(b"\xff"), "");
    }
}
