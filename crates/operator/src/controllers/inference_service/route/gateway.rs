//! Gantry's own gateway: the scheduler gets the route with the ready pods, and reports whether gateways serve it.

use super::RouteBuilder;
use crate::{
    cluster::{Key, OwnedObject, ResourceKind},
    controllers::inference_service::{
        component::{Component, ComponentKind},
        delivery::Delivery,
        objects, plan, scale_to_zero,
        snapshot::RouteScheduler,
    },
    plan::Known,
};
use gantry_core::scheduling::NO_GATEWAY;
use gantry_proto::gantry::{
    PodEndpoint, ServiceBackend, ServiceComponent, ServiceRoute, service_component::Role,
};
use serde_json::Value;
use std::time::Duration;

/// The `ingressClassName` of this provider.
pub(super) const CLASS: &str = "gantry";
/// How long an unreachable scheduler does not change the status: restarts are shorter.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);
const MAX_REASON: usize = 1_000;

impl RouteBuilder<'_> {
    /// The hosts of the service and of its components, and the ready pods of each.
    pub(super) fn service(&self, host: &str) -> Result<ServiceRoute, String> {
        let mut hosts = vec![host.to_owned()];
        for domain in &self.config.ingress.additional_ingress_domains {
            hosts.push(self.host_in(&self.key.name, domain)?);
        }
        for component in self.stable() {
            hosts.push(self.host(&self.host_name(component))?);
        }
        let Key { namespace, name } = self.key.clone();
        let timeout = self.front().spec.timeout.and_then(|seconds| u64::try_from(seconds).ok());
        Ok(ServiceRoute {
            namespace,
            name,
            hosts,
            components: self.stable().map(|component| self.service_component(component)).collect(),
            timeout_ms: timeout.unwrap_or_default().saturating_mul(1_000),
            predict_path: self.predict_path(),
            idle_timeout_ms: self.idle_timeout,
            models: self.snapshot.trained_models.clone(),
            delivery: self.delivery.map(Delivery::route),
            ..ServiceRoute::default()
        })
    }

    /// The path that graphs call; empty for that of V1.
    fn predict_path(&self) -> String {
        let is_v2 = self.stable().next().is_some_and(|predictor| predictor.is_v2);
        if is_v2 { format!("/v2/models/{}/infer", self.key.name) } else { String::new() }
    }

    fn service_component(&self, component: &Component) -> ServiceComponent {
        // Transformers and explainers call the predictor past the gateway: their requests wait for it too.
        let behind = self.stable().next().filter(|_| component.kind != ComponentKind::Predictor);
        let behind = behind.filter(|predictor| predictor.scales_to_zero);
        let on_demand = || std::iter::once(component).filter(|c| c.scales_to_zero).chain(behind);
        let is_held = (self.is_down && on_demand().next().is_some())
            || behind.is_some_and(|predictor| self.ready_pods(&predictor.key.name).is_empty());
        let delivery = self.delivery.filter(|_| component.kind == ComponentKind::Predictor);
        let backend = |(service, weight): (String, i32)| {
            let backend = ServiceBackend {
                weight: u32::try_from(weight).unwrap_or_default(),
                pods: if is_held { Vec::new() } else { self.ready_pods(&service) },
                name: service,
                ..ServiceBackend::default()
            };
            match delivery {
                Some(delivery) => delivery.describe(backend),
                None => backend,
            }
        };
        let backends: Vec<ServiceBackend> = self.backends_of(component).into_iter().map(backend).collect();
        let is_empty = backends.iter().all(|backend| backend.pods.is_empty());
        let failure = std::iter::once(component)
            .chain(behind)
            .find_map(|c| plan::component_failure(self.snapshot, c))
            .filter(|_| !self.is_down);
        let sleeps = is_empty && on_demand().next().is_some() && failure.is_none();
        let message = match failure {
            _ if !is_empty => String::new(),
            _ if sleeps => scale_to_zero::MESSAGE.into(),
            Some(failure) => failure.message,
            None => plan::component_fact(self.snapshot, component).message,
        };
        let reason = message.chars().take(MAX_REASON).collect();
        let role = match component.kind {
            ComponentKind::Predictor => Role::Predictor,
            ComponentKind::Transformer => Role::Transformer,
            ComponentKind::Explainer => Role::Explainer,
        };
        ServiceComponent { role: role.into(), backends, reason, sleeps }
    }

    /// The ready pods behind a Service, by name.
    fn ready_pods(&self, service: &str) -> Vec<PodEndpoint> {
        let (http_port, grpc_port) = self.ports(service);
        let app = format!("isvc.{service}");
        let is_of = |pod: &OwnedObject| {
            pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")) == Some(&app)
        };
        let pods = self.snapshot.pods.iter().filter(|pod| is_of(pod) && is_ready(pod));
        let endpoint = |pod: &std::sync::Arc<OwnedObject>| {
            let host = pod.data.pointer("/status/podIP").and_then(Value::as_str)?;
            let name = pod.metadata.name.clone()?;
            Some(PodEndpoint { name, host: host.to_owned(), http_port, grpc_port })
        };
        let mut endpoints: Vec<PodEndpoint> = pods.filter_map(endpoint).collect();
        endpoints.sort_by(|a, b| a.name.cmp(&b.name));
        endpoints
    }

    /// The ports of the pods behind a Service, for HTTP and for gRPC. Those of one that is replaced or held are not in the
    /// spec any more.
    fn ports(&self, service: &str) -> (u32, u32) {
        let component = self.components.iter().find(|component| component.key.name == service);
        let live = || self.snapshot.owned.get(ResourceKind::SERVICE, service);
        let of_live =
            || live().and_then(|live| live.data.pointer("/spec/ports")).and_then(Value::as_array).cloned();
        let of_spec = component.filter(|component| !component.is_held).map(objects::ports);
        let ports = of_spec.or_else(of_live).or_else(|| component.map(objects::ports)).unwrap_or_default();
        let number = |is_grpc: bool| {
            let of_kind = |port: &&Value| port.get("appProtocol").is_some() == is_grpc;
            let number = ports.iter().find(of_kind).and_then(|port| port.get("targetPort")?.as_u64());
            number.and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
        };
        let (http, grpc) = (number(false), number(true));
        let of_runtime = component.and_then(|component| component.grpc_port).unwrap_or_default();
        (http, if grpc == 0 { of_runtime } else { grpc })
    }
}

/// Ready, and not terminating.
fn is_ready(pod: &OwnedObject) -> bool {
    let conditions = pod.data.pointer("/status/conditions").and_then(Value::as_array);
    let is = |condition: &Value, field: &str, value: &str| {
        condition.get(field).and_then(Value::as_str) == Some(value)
    };
    let is_ready = |condition: &Value| is(condition, "type", "Ready") && is(condition, "status", "True");
    pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(|all| all.iter().any(is_ready))
}

/// Whether gateways serve a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controllers) enum Admission {
    Admitted,
    /// For this reason, with a message.
    Refused(&'static str, String),
    /// It is on its way, or the scheduler has just disconnected: a service that was ready stays ready for this long.
    Pending(&'static str, String, Option<Duration>),
}

pub(in crate::controllers) fn admission(scheduler: &RouteScheduler, desired: &ServiceRoute) -> Admission {
    const UNREACHABLE: &str = "SchedulerUnreachable";
    const NOT_ADMITTED: &str = "RouteNotAdmitted";
    let namespace = &scheduler.namespace;
    let view = match &scheduler.service {
        Known::Unknown(reason) => {
            let message = format!("the scheduler in namespace {namespace} cannot be reached: {reason}");
            let left = UNREACHABLE_GRACE.saturating_sub(scheduler.unreachable_for.unwrap_or_default());
            return if left.is_zero() {
                Admission::Refused(UNREACHABLE, message)
            } else {
                Admission::Pending(UNREACHABLE, message, Some(left))
            };
        }
        Known::Present(view) if view.route == *desired => view,
        Known::Present(_) | Known::Absent => {
            let message = format!("the scheduler in namespace {namespace} does not have the route yet");
            let pending = Admission::Pending(NOT_ADMITTED, message, None);
            let Some((last, _)) = &scheduler.last_request else { return pending };
            return match (&last.rejection, &last.failure) {
                (Some(why), _) => {
                    Admission::Refused(NOT_ADMITTED, format!("the scheduler refused it: {why}"))
                }
                (_, Some(why)) => Admission::Refused(UNREACHABLE, why.clone()),
                _ => pending,
            };
        }
    };
    if view.admitted {
        Admission::Admitted
    } else if view.reason == NO_GATEWAY {
        let message = format!(
            "no gateway is connected to the scheduler in namespace {namespace}: check that the pods of seldon-gateway run \
             there"
        );
        Admission::Refused("GatewayNotConnected", message)
    } else {
        Admission::Pending(NOT_ADMITTED, view.reason.clone(), None)
    }
}
