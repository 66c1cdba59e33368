//! Pods of InferenceServices, and their routes.

use super::{FakeLocal, FakeRemote, Running, event};
use bytes::Bytes;
use gantry_gateway::Removed;
use gantry_oip::server::{Reply, json};
use gantry_proto::gantry::{
    PodEndpoint, ServiceBackend, ServiceComponent, ServiceName, ServiceRoute, route_event::Event,
    service_component::Role,
};
use http::{Request, Response, StatusCode};
use std::{net::SocketAddr, sync::Arc};

/// Says who it is and what it got.
pub(crate) struct FakePod {
    pub(crate) name: &'static str,
    pub(crate) local: Arc<FakeLocal>,
    pub(crate) remote: FakeRemote,
}

impl FakePod {
    pub(crate) async fn start(name: &'static str) -> Self {
        let pod = Self::of(name, FakeLocal::new()).await;
        pod.local.respond_by(move |request| echo(name, request));
        pod
    }

    /// Responds with this status to every request: `{"pod": name, "got": body}`.
    pub(crate) async fn responding(name: &'static str, status: u16) -> Self {
        let pod = Self::of(name, FakeLocal::new()).await;
        pod.local.respond_by(move |request| {
            let got: serde_json::Value = serde_json::from_slice(request.body()).unwrap_or_default();
            let body = serde_json::json!({ "pod": name, "got": got, "predictions": [name] });
            Some(json(StatusCode::from_u16(status).unwrap(), body.to_string().into()))
        });
        pod
    }

    /// Responds when its gate has permits.
    pub(crate) async fn held(name: &'static str) -> Self {
        Self::of(name, FakeLocal::held()).await
    }

    async fn of(name: &'static str, local: Arc<FakeLocal>) -> Self {
        Self { name, remote: FakeRemote::start(Arc::clone(&local)).await, local }
    }

    pub(crate) fn endpoint(&self) -> PodEndpoint {
        endpoint(self.name, self.remote.address)
    }
}

pub(crate) fn endpoint(name: &str, address: SocketAddr) -> PodEndpoint {
    let port = u32::from(address.port());
    PodEndpoint { name: name.into(), host: address.ip().to_string(), http_port: port, grpc_port: port }
}

fn echo(name: &str, request: &Request<Bytes>) -> Option<Response<Reply>> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap());
    if header("content-type").is_some_and(|value| value.starts_with("application/grpc")) {
        return None;
    }
    if header("x-respond").is_some() {
        let mut response = Response::new(Reply::new("no such page".into()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        response.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        response.headers_mut().insert("x-of-pod", "kept".parse().unwrap());
        return Some(response);
    }
    let mut names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let body = serde_json::json!({
        "pod": name,
        "request": format!("{} {}", request.method(), request.uri()),
        "host": header("host"),
        "headers": names.join(" "),
        "bytes": request.body().len(),
    });
    Some(json(StatusCode::OK, body.to_string().into()))
}

pub(crate) fn backend(name: &str, weight: u32, pods: &[&FakePod]) -> ServiceBackend {
    let pods = pods.iter().map(|pod| pod.endpoint()).collect();
    ServiceBackend { name: name.into(), weight, pods, ..ServiceBackend::default() }
}

pub(crate) fn component(role: Role, backends: Vec<ServiceBackend>) -> ServiceComponent {
    ServiceComponent { role: role.into(), backends, ..ServiceComponent::default() }
}

/// A service of the namespace `default`.
pub(crate) fn service(name: &str, components: Vec<ServiceComponent>) -> ServiceRoute {
    ServiceRoute { namespace: "default".into(), name: name.into(), components, ..ServiceRoute::default() }
}

/// A graph of the namespace `default`.
pub(crate) fn graph(name: &str, spec: &serde_json::Value) -> ServiceRoute {
    ServiceRoute { graph: spec.to_string().into_bytes(), ..service(name, vec![]) }
}

impl Running {
    pub(crate) fn service(&self, route: ServiceRoute) -> Removed {
        self.routes.apply(event(Event::UpsertService(route)))
    }

    pub(crate) fn delete_service(&self, name: &str) -> Removed {
        let name = ServiceName { namespace: "default".into(), name: name.into() };
        self.routes.apply(event(Event::DeleteService(name)))
    }

    /// Routes a service with one backend, named as KServe's Service.
    pub(crate) fn predictor(&self, name: &str, pods: &[&FakePod]) -> Removed {
        let backends = vec![backend(&format!("{name}-predictor"), 100, pods)];
        self.service(service(name, vec![component(Role::Predictor, backends)]))
    }
}
