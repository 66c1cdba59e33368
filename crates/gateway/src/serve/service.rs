//! Requests to InferenceServices, by host or by path.
//!
//! An InferenceService is served by the model of its name, or by pods of its own. Its hosts are `{name}-{namespace}.{domain}`
//! and, in a cluster, `{name}.{namespace}.svc.cluster.local`; its path is `/serving/{namespace}/{name}`. A component's name,
//! such as `-predictor`, after that of the service names the component, as KServe's components have hosts of their own.

use super::{Worker, destination::Wanted, path::Path, rest::json_response};
use crate::{
    body::ResponseBody,
    routes::{Role, Service},
};
use gantry_oip::{Error, v1};
use gantry_transport::Protocol;
use http::{HeaderValue, Response, header, request::Parts};
use std::sync::Arc;

const PREFIX: &str = "/serving/";
const COMPONENTS: [(&str, Role); 3] =
    [("-predictor", Role::Predictor), ("-transformer", Role::Transformer), ("-explainer", Role::Explainer)];
/// Ends of the hosts of Services in a cluster.
const CLUSTER_LOCAL: [&str; 2] = [".svc.cluster.local", ".svc"];
/// Of a DNS name.
const MAX_HOST: usize = 253;

/// What a request names by host or path.
pub(super) enum Named<'a> {
    /// The gateway itself.
    Gateway,
    /// An InferenceService that the model of its name serves.
    Model { name: &'a str, namespace: &'a str },
    /// An InferenceService in pods of its own, and the component that the host names; or an InferenceGraph.
    Service(Arc<Service>, Option<Role>),
}

/// Namespace and name of a path below `/serving`, and the rest of the path.
fn split_prefix(path: &str) -> Option<(&str, &str, &str)> {
    let (namespace, rest) = path.strip_prefix(PREFIX)?.split_once('/')?;
    let (name, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (!namespace.is_empty() && !name.is_empty()).then_some((namespace, name, rest))
}

/// The path without the prefix of an InferenceService.
pub(super) fn below_prefix(path: &str) -> &str {
    split_prefix(path).map_or(path, |(_, _, rest)| rest)
}

impl Worker {
    /// What the request names, and the path below it. Hosts cost nothing while there is no InferenceService.
    pub(super) fn named<'a>(&self, parts: &'a Parts) -> Result<(Named<'a>, &'a str), Error> {
        let path = parts.uri.path();
        if let Some((namespace, name, rest)) = split_prefix(path) {
            let named = self.service(name, namespace).ok_or_else(|| {
                unknown(&format!("{namespace}/{name}"), "use /serving/{namespace}/{name}/…")
            })?;
            return Ok((named, rest));
        }
        Ok((self.host(parts)?.unwrap_or(Named::Gateway), path))
    }

    /// The InferenceService of the request's host.
    pub(super) fn host<'a>(&self, parts: &'a Parts) -> Result<Option<Named<'a>>, Error> {
        if !self.shared.routes.has_services() {
            return Ok(None);
        }
        let header = || parts.headers.get(header::HOST).map(HeaderValue::to_str)?.ok();
        let host = parts.uri.authority().map(http::uri::Authority::as_str).or_else(header);
        match host.map(without_port) {
            Some(host) if host.len() <= MAX_HOST => self.service_of_host(host),
            _ => Ok(None),
        }
    }

    /// `None` for a host of the gateway itself.
    pub(super) fn service_of_host<'a>(&self, host: &'a str) -> Result<Option<Named<'a>>, Error> {
        if let Some(service) = self.shared.routes.service_by_host(&host.to_ascii_lowercase()) {
            return Ok(Some(Named::Service(service, None)));
        }
        if let Some(inside) = CLUSTER_LOCAL.iter().find_map(|end| host.strip_suffix(end)) {
            // Other Services of the cluster may be in front of the gateway.
            return Ok(inside.split_once('.').and_then(|(name, namespace)| self.service(name, namespace)));
        }
        let domain = &self.shared.config.ingress_domain;
        let Some(label) = host.len().checked_sub(domain.len()).and_then(|at| host.split_at_checked(at))
        else {
            return Ok(None);
        };
        let (label, end) = label;
        let Some(label) = label.strip_suffix('.').filter(|_| end.eq_ignore_ascii_case(domain)) else {
            return Ok(None);
        };
        // Both parts may contain hyphens.
        let mut splits = label.match_indices('-').filter_map(|(at, _)| {
            let (name, namespace) = (label.get(..at)?, label.get(at + 1..)?);
            self.service(name, namespace)
        });
        splits.next().map(Some).ok_or_else(|| unknown(host, "hosts are {name}-{namespace}.{domain}"))
    }

    /// The InferenceService of this name, else the component.
    fn service<'a>(&self, name: &'a str, namespace: &'a str) -> Option<Named<'a>> {
        let routes = &self.shared.routes;
        if let Some(service) = routes.service(namespace, name) {
            return Some(Named::Service(service, None));
        }
        if routes.is_service(name, namespace) {
            return Some(Named::Model { name, namespace });
        }
        let (name, role) =
            COMPONENTS.iter().find_map(|(end, role)| Some((name.strip_suffix(end)?, *role)))?;
        if let Some(service) = routes.service(namespace, name).filter(|s| s.component(role).is_some()) {
            return Some(Named::Service(service, Some(role)));
        }
        let is_model = role == Role::Predictor && routes.is_service(name, namespace);
        is_model.then_some(Named::Model { name, namespace })
    }

    /// What a service answers differently from the gateway; `None` for requests to its model.
    pub(super) fn service_endpoint(
        &self,
        name: &str,
        path: Path<'_>,
    ) -> Result<Option<Response<ResponseBody>>, Error> {
        match path {
            Path::Alive | Path::ServerMetadata | Path::Live => Ok(None),
            Path::Names => Ok(Some(json_response(v1::encode_names(&[name.to_owned()])))),
            Path::Ready => {
                self.server_ready()?;
                drop(self.acquire(Wanted::new(name).with_version(true), None, Protocol::Rest)?);
                Ok(Some(json_response("{\"ready\":true}")))
            }
            Path::Model { model, .. } if model == name => Ok(None),
            Path::Model { model, .. } => {
                let shown: String = model.chars().take(100).collect();
                Err(Error::not_found(format!(
                    "InferenceService {name} has no model {shown:?}, only {name:?}"
                )))
            }
            Path::OpenApi
            | Path::ModelList
            | Path::AllStatistics
            | Path::Index
            | Path::Load(_)
            | Path::Unload(_)
            | Path::Pipeline { .. } => {
                Err(Error::not_found("this path belongs to the gateway, not to an InferenceService"))
            }
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn unknown(named: &str, remedy: &str) -> Error {
    let shown: String = named.chars().take(200).collect();
    Error::not_found(format!("there is no InferenceService {shown}: {remedy}"))
}
