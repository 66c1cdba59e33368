//! Status of objects as commands print them.

mod experiment;
mod model;
mod pipeline;
mod rollout_policy;
mod server;

pub(crate) use experiment::ExperimentView;
pub(crate) use model::{ModelView, Readiness, VersionView};
pub(crate) use pipeline::{PipelineVersionView, PipelineView};
pub(crate) use rollout_policy::{PolicyView, targets};
pub(crate) use server::ServerView;

use crate::object_ref::ObjectRef;
use gantry_api::Kind;
use serde_json::Value;

/// An object of any kind.
#[derive(Clone, Debug)]
pub(crate) enum Resource {
    Model(ModelView),
    Server(ServerView),
    Pipeline(PipelineView),
    Experiment(ExperimentView),
    RolloutPolicy(PolicyView),
}

impl Resource {
    pub(crate) fn object_ref(&self) -> ObjectRef {
        let (kind, name) = match self {
            Self::Model(model) => (Kind::Model, &model.name),
            Self::Server(server) => (Kind::Server, &server.name),
            Self::Pipeline(pipeline) => (Kind::Pipeline, &pipeline.name),
            Self::Experiment(experiment) => (Kind::Experiment, &experiment.name),
            Self::RolloutPolicy(policy) => (Kind::RolloutPolicy, &policy.name),
        };
        ObjectRef { kind, name: name.clone() }
    }

    /// The gateway's path of an InferenceService.
    pub(crate) fn service_path(&self) -> Option<String> {
        let Self::Model(model) = self else { return None };
        let meta = model.latest()?.definition.meta.as_ref()?;
        let namespace = &meta.kubernetes_meta.as_ref()?.namespace;
        let is_service = meta.kind.as_deref() == Some(gantry_api::INFERENCE_SERVICE);
        is_service.then(|| format!("/serving/{namespace}/{}", model.name))
    }

    pub(crate) fn document(&self, all_versions: bool) -> Value {
        match self {
            Self::Model(model) => model.document(all_versions),
            Self::Server(server) => server.document(),
            Self::Pipeline(pipeline) => pipeline.document(all_versions),
            Self::Experiment(experiment) => experiment.document(),
            Self::RolloutPolicy(policy) => policy.document(),
        }
    }

    /// Deleted, with nothing left of it.
    pub(crate) fn is_terminated(&self) -> bool {
        match self {
            Self::Model(model) => model.is_terminated(),
            Self::Server(server) => server.is_terminated(),
            Self::Pipeline(pipeline) => pipeline.is_terminated(),
            Self::Experiment(experiment) => experiment.deleted,
            Self::RolloutPolicy(_) => false,
        }
    }

    /// Deleted, perhaps with something left of it.
    pub(crate) fn is_deleted(&self) -> bool {
        match self {
            Self::Model(model) => model.deleted,
            Self::Server(server) => server.is_draining(),
            Self::Pipeline(pipeline) => pipeline.readiness() == Readiness::Deleted,
            Self::Experiment(experiment) => experiment.deleted,
            Self::RolloutPolicy(_) => false,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Model(model) => model.latest().map_or(Readiness::Progressing, VersionView::readiness),
            Self::Server(server) => server.readiness(),
            Self::Pipeline(pipeline) => pipeline.readiness(),
            Self::Experiment(experiment) => experiment.readiness(),
            Self::RolloutPolicy(_) => Readiness::Ready,
        }
    }

    /// The state in the scheduler's API, such as `ModelAvailable`; only models and pipelines have one.
    pub(crate) fn state(&self) -> Option<&'static str> {
        match self {
            Self::Model(model) => model.latest().map(|v| v.state.as_str_name()),
            Self::Pipeline(pipeline) => pipeline.latest().map(|v| v.status.as_str_name()),
            Self::Server(_) | Self::Experiment(_) | Self::RolloutPolicy(_) => None,
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Self::Model(model) => model.latest().map(VersionView::message).unwrap_or_default(),
            Self::Server(server) => server.message(),
            Self::Pipeline(pipeline) => pipeline.message(),
            Self::Experiment(experiment) => experiment.message(),
            Self::RolloutPolicy(policy) => policy.summary(),
        }
    }
}
