//! InferenceGraphs: compiled when their route arrives.

use super::{Endpoint, Inner, service::Service};
use crate::inference_graph::{CallTarget, HeaderPatterns, InferenceGraph, compile};
use gantry_proto::gantry as pb;
use http::{HeaderValue, Uri, uri::PathAndQuery};
use std::{collections::HashMap, sync::Arc};

/// An InferenceGraph that can be executed.
pub(crate) struct GraphRoute {
    pub(crate) graph: InferenceGraph,
    /// Of the steps with `serviceUrl`; the error of one that cannot be called.
    pub(crate) urls: HashMap<Arc<str>, Result<StepUrl, String>>,
}

/// A `serviceUrl`.
pub(crate) struct StepUrl {
    pub(crate) host: String,
    pub(crate) authority: HeaderValue,
    pub(crate) path: PathAndQuery,
    /// For a host that is none of the gateway's services.
    pub(crate) endpoint: Arc<Endpoint>,
}

/// What a graph is compiled from.
#[derive(PartialEq, Eq)]
pub(super) struct Source {
    json: Vec<u8>,
    propagated: Vec<String>,
}

/// The graph, or why it cannot be executed.
pub(crate) type Compiled = Arc<Result<GraphRoute, String>>;

impl Inner {
    /// A graph that has not changed is not compiled again.
    pub(super) fn graph(
        &self,
        key: &Arc<str>,
        wanted: &pb::ServiceRoute,
        old: Option<&Service>,
    ) -> Option<(Source, Compiled)> {
        if wanted.graph.is_empty() {
            return None;
        }
        let source = Source { json: wanted.graph.clone(), propagated: wanted.propagated_headers.clone() };
        let known = old.and_then(|old| old.graph.as_ref()).filter(|(known, _)| *known == source);
        if let Some((_, compiled)) = known {
            return Some((source, Arc::clone(compiled)));
        }
        let (propagated, errors) = HeaderPatterns::new(source.propagated.iter().map(String::as_str));
        for error in errors {
            tracing::warn!(graph = &**key, error, "a header pattern is left out");
        }
        let compiled = compile(key, &source.json, propagated).map(|graph| {
            let urls = graph.graph.targets().filter_map(|target| match target {
                CallTarget::Url(url) => Some((Arc::clone(url), self.step_url(url))),
                CallTarget::Service(_) => None,
            });
            GraphRoute { urls: urls.collect(), graph }
        });
        Some((source, Arc::new(compiled)))
    }

    fn step_url(&self, url: &str) -> Result<StepUrl, String> {
        let uri: Uri = url.parse().map_err(|error| format!("serviceUrl {url} is invalid: {error}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(format!("serviceUrl {url} needs a scheme and a host: http://host/path"));
        };
        if scheme != "http" {
            return Err(format!("serviceUrl {url}: the gateway calls http only"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = authority.port_u16().unwrap_or(80);
        let endpoint = pb::Endpoint {
            server: format!("http://{host}:{port}"),
            host: host.clone(),
            http_port: port.into(),
            ..pb::Endpoint::default()
        };
        Ok(StepUrl {
            authority: HeaderValue::from_str(authority.as_str().rsplit('@').next().unwrap_or_default())
                .map_err(|_| format!("serviceUrl {url} has an invalid host"))?,
            path: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            endpoint: self.registry.endpoint(&endpoint, &self.metrics),
            host,
        })
    }
}
