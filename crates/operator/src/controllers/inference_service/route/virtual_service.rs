//! The route as a `VirtualService` of Istio: one object with a match per host.

use super::{DEFAULT_TIMEOUT, EXPLAIN_PATH, RouteBuilder};
use crate::{
    cluster::{Desired, Key, OwnedObject, ResourceKind},
    controllers::inference_service::{
        component::{Component, ComponentKind},
        config::Config,
        pod::set,
        snapshot::Snapshot,
    },
};
use serde_json::{Value, json};

pub(super) fn uses_istio(config: &Config, snapshot: &Snapshot) -> bool {
    let ingress = &config.ingress;
    snapshot.has(ResourceKind::VIRTUAL_SERVICE)
        && !ingress.enable_gateway_api
        && ingress.disable_istio_virtual_host == Some(false)
        && !ingress.ingress_gateway.is_empty()
        && ingress.ingress_class_name.is_none()
}

impl RouteBuilder<'_> {
    /// Whether Istio gets the route: the cluster has its CRDs, and the `ConfigMap` names its gateway and no class of Ingresses.
    pub(super) fn virtual_service(&self, host: &str) -> Result<Desired, String> {
        let mut hosts = vec![host.to_owned()];
        for domain in &self.config.ingress.additional_ingress_domains {
            hosts.push(self.host_in(&self.key.name, domain)?);
        }
        let explainer = self.components.iter().find(|c| c.kind == ComponentKind::Explainer);
        let mut routes: Vec<Value> =
            explainer.into_iter().map(|e| self.istio_route(&hosts, Some(EXPLAIN_PATH), e)).collect();
        routes.push(self.istio_route(&hosts, None, self.front()));
        for component in self.stable() {
            let own = self.host(&self.host_name(component))?;
            routes.push(self.istio_route(std::slice::from_ref(&own), None, component));
            hosts.push(own);
        }
        let gateways = [&self.config.ingress.ingress_gateway];
        let spec = json!({ "hosts": hosts, "gateways": gateways, "http": routes });
        let body = json!({ "metadata": self.metadata(), "spec": spec });
        Ok(Desired::new(ResourceKind::VIRTUAL_SERVICE, self.key.clone(), body))
    }

    fn istio_route(&self, hosts: &[String], path: Option<&str>, component: &Component) -> Value {
        let Key { namespace, name } = self.key;
        let of_host = |host: &String| {
            let mut matched = json!({ "authority": { "regex": authority(host) } });
            if let Some(path) = path {
                set(&mut matched, "uri", json!({ "regex": path }));
            }
            matched
        };
        let destination = |(service, weight): (String, i32)| {
            let host = format!("{service}.{namespace}.svc.cluster.local");
            json!({ "destination": { "host": host, "port": { "number": 80 } }, "weight": weight })
        };
        let mut route = json!({
            "match": hosts.iter().map(of_host).collect::<Vec<_>>(),
            "route": self.backends_of(component).into_iter().map(destination).collect::<Vec<_>>(),
            "headers": { "request": { "set": { "KServe-Isvc-Name": name, "KServe-Isvc-Namespace": namespace } } },
        });
        if !self.config.ingress.disable_http_route_timeout {
            let seconds = component.spec.timeout.unwrap_or(DEFAULT_TIMEOUT);
            set(&mut route, "timeout", format!("{seconds}s").into());
        }
        route
    }
}

/// Matches a host with or without a port.
pub(in crate::controllers::inference_service) fn authority(host: &str) -> String {
    format!(r"^{}(?::\d{{1,5}})?$", regex::escape(host))
}

/// Istio reports whether it could use a `VirtualService`, where its status is on.
pub(in crate::controllers::inference_service) fn not_reconciled(
    live: &OwnedObject,
    name: &str,
) -> Option<(String, String)> {
    let conditions = live.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let text = |c: &Value, field: &str| c.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let refused =
        conditions.iter().find(|c| text(c, "type") == "Reconciled" && text(c, "status") == "False")?;
    Some((
        "VirtualServiceNotReconciled".into(),
        format!("VirtualService {name}: {}", text(refused, "message")),
    ))
}
