//! Where a request goes: a model, or a pipeline, possibly chosen by an experiment.

use super::{Worker, headers};
use crate::routes::{Experiment, Kind, Pipeline};
use gantry_oip::{Code, Error};
use gantry_transport::Protocol;
use http::{HeaderMap, HeaderValue};
use std::{ops::Deref, sync::Arc};

/// What a request names; the header `seldon-model` denotes pipelines and experiments by a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    Model(&'a str),
    Pipeline(&'a str),
    Experiment(&'a str),
}

impl<'a> Name<'a> {
    /// The name in the header, else `model`.
    pub(super) fn of(headers: &'a HeaderMap, model: &'a str) -> Result<Self, Error> {
        match headers.get(headers::MODEL).map(HeaderValue::to_str) {
            None => Ok(Self::Model(model)),
            Some(Ok(name)) => Ok(Self::parse(name)),
            Some(Err(_)) => Err(Error::invalid("header seldon-model: invalid model name")),
        }
    }

    /// The name in the header if it is that of a pipeline or an experiment, else `pipeline`.
    pub(super) fn of_pipeline(headers: &'a HeaderMap, pipeline: &'a str) -> Result<Self, Error> {
        Ok(match Self::of(headers, "")? {
            Self::Model(_) => Self::Pipeline(pipeline),
            named => named,
        })
    }

    fn parse(name: &'a str) -> Self {
        if let Some(pipeline) = name.strip_suffix(".pipeline") {
            return Self::Pipeline(pipeline);
        }
        name.strip_suffix(".experiment").map_or(Self::Model(name), Self::Experiment)
    }
}

pub(super) enum Destination<'a> {
    Model(Wanted<'a>),
    Pipeline(Box<WantedPipeline>),
}

/// A pipeline, and the experiment that chose it.
pub(super) struct WantedPipeline {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) experiment: Option<Arc<Experiment>>,
}

/// A model to select a replica of.
pub(crate) struct Wanted<'a> {
    pub(super) model: ModelName<'a>,
    /// The experiment that chose the model.
    pub(super) experiment: Option<Arc<Experiment>>,
    /// No experiment takes the request over.
    pub(super) is_chosen: bool,
    /// Whether the request is admitted for this call alone: its slot is free while it waits for a replica.
    pub(super) is_admitted: bool,
    /// The name is that of a component of an InferenceService.
    pub(super) is_component: bool,
}

pub(crate) enum ModelName<'a> {
    Named(&'a str),
    Chosen(Arc<str>),
}

impl Deref for ModelName<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::Chosen(name) => name,
        }
    }
}

impl<'a> Wanted<'a> {
    pub(super) const fn new(model: &'a str) -> Self {
        Self {
            model: ModelName::Named(model),
            experiment: None,
            is_chosen: false,
            is_admitted: true,
            is_component: false,
        }
    }

    /// A component of an InferenceService that runs in pods of its own.
    pub(super) fn component(entry: &'a str) -> Self {
        Self { is_component: true, is_chosen: true, ..Self::new(entry) }
    }

    /// A call of the gateway itself: a step of a pipeline, or a mirror.
    pub(crate) fn internal(model: &'a str, is_chosen: bool) -> Self {
        Self { is_chosen, is_admitted: false, ..Self::new(model) }
    }

    /// A client that names a version means this model.
    pub(super) const fn with_version(mut self, is_named: bool) -> Self {
        self.is_chosen |= is_named;
        self
    }

    /// Replaces the model by a candidate; `false` if no candidate has a weight.
    pub(super) fn choose(&mut self, experiment: Arc<Experiment>, sticky: Option<&[u8]>) -> bool {
        let Some(candidate) = experiment.pick(sticky, fastrand::u64(..)) else { return false };
        self.model = ModelName::Chosen(Arc::clone(&candidate.name));
        self.experiment = Some(experiment);
        self.is_chosen = true;
        true
    }
}

impl Worker {
    /// Looks up pipelines and experiments; an experiment that takes over a model's name is found when the model is.
    pub(super) fn destination<'a>(
        &self,
        name: Name<'a>,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
    ) -> Result<Destination<'a>, Error> {
        let routes = &self.shared.routes;
        match name {
            Name::Model(model) => Ok(Destination::Model(Wanted::new(model))),
            Name::Pipeline(name) => {
                let pipeline = self.pipeline(name, protocol)?;
                match &pipeline.experiment {
                    Some(experiment) => self.choose_pipeline(Arc::clone(experiment), sticky, protocol),
                    None => {
                        Ok(Destination::Pipeline(Box::new(WantedPipeline { pipeline, experiment: None })))
                    }
                }
            }
            Name::Experiment(name) => {
                let experiment = routes
                    .experiment(name)
                    .ok_or_else(|| unknown("experiment", name, routes.nearest_experiment(name), protocol))?;
                if !experiment.active {
                    let reason = if experiment.reason.is_empty() { "" } else { ": " };
                    let message = format!("experiment {name} is not active{reason}{}", experiment.reason);
                    return Err(Error::unavailable(message, 1));
                }
                if experiment.kind == Kind::Pipeline {
                    return self.choose_pipeline(experiment, sticky, protocol);
                }
                let mut wanted = Wanted::new("");
                if !wanted.choose(Arc::clone(&experiment), sticky.map(HeaderValue::as_bytes)) {
                    return Err(no_candidate(&experiment));
                }
                Ok(Destination::Model(wanted))
            }
        }
    }

    pub(super) fn pipeline(&self, name: &str, protocol: Protocol) -> Result<Arc<Pipeline>, Error> {
        let routes = &self.shared.routes;
        routes
            .pipeline(name)
            .ok_or_else(|| unknown("pipeline", name, routes.nearest_pipeline(name), protocol))
    }

    fn choose_pipeline(
        &self,
        experiment: Arc<Experiment>,
        sticky: Option<&HeaderValue>,
        protocol: Protocol,
    ) -> Result<Destination<'static>, Error> {
        let picked = experiment.pick(sticky.map(HeaderValue::as_bytes), fastrand::u64(..));
        let candidate = picked.ok_or_else(|| no_candidate(&experiment))?;
        let pipeline = self.pipeline(&candidate.name, protocol)?;
        Ok(Destination::Pipeline(Box::new(WantedPipeline { pipeline, experiment: Some(experiment) })))
    }
}

pub(super) fn no_candidate(experiment: &Experiment) -> Error {
    let name = &experiment.name;
    Error::unavailable(format!("experiment {name} has no candidate with a weight above 0"), 1)
}

fn unknown(kind: &str, name: &str, nearest: Option<String>, protocol: Protocol) -> Error {
    // As Seldon's gateway does.
    let code = if protocol == Protocol::Grpc { Code::Unimplemented } else { Code::NotFound };
    let shown: String = name.chars().take(100).collect();
    let hint = nearest.map(|name| format!(": did you mean {name:?}?")).unwrap_or_default();
    Error::new(code, format!("there is no {kind} {shown:?}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffix_of_the_header_denotes_the_kind() {
        for (header, expected) in [
            ("iris", Name::Model("iris")),
            ("join.pipeline", Name::Pipeline("join")),
            ("half.experiment", Name::Experiment("half")),
            ("pipeline", Name::Model("pipeline")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(headers::MODEL, HeaderValue::from_static(header));
            assert_eq!(Name::of(&headers, "path"), Ok(expected), "{header}");
        }
        assert_eq!(Name::of(&HeaderMap::new(), "path"), Ok(Name::Model("path")));
    }
}
