//! The route to an `InferenceService`: Gantry's own gateway, an Ingress, `HTTPRoutes` of the Gateway API, a `VirtualService`
//! of Istio, or none outside the cluster.

mod gateway;
mod virtual_service;

pub(in crate::controllers) use gateway::{Admission, admission};
use virtual_service::uses_istio;
pub(super) use virtual_service::{authority, not_reconciled};

use super::{
    component::{Component, ComponentKind},
    config::Config,
    delivery::Delivery,
    pod::set,
    snapshot::Snapshot,
    template::Placeholders,
};
use crate::{
    cluster::{Desired, Key, OwnedObject, ResourceKind},
    workload::{OwnedObjects, Owner},
};
use gantry_proto::gantry::ServiceRoute;
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Pairs = BTreeMap<String, String>;

/// The label of services without a route outside the cluster.
const VISIBILITY: (&str, &str) = ("networking.kserve.io/visibility", "cluster-local");
pub(super) const EXPLAIN_PATH: &str = r"^/v1/models/[\w-]+:explain$";
/// Seconds until a request fails.
const DEFAULT_TIMEOUT: i64 = 60;

/// How requests reach a service.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub objects: Vec<Desired>,
    /// The route of Gantry's own gateway.
    pub service: Option<ServiceRoute>,
    /// URL of the service.
    pub url: String,
    /// URL inside the cluster.
    pub address: String,
    /// URLs of the components.
    pub components: BTreeMap<ComponentKind, String>,
}

/// What carries requests from outside the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    None,
    Gateway,
    HttpRoute,
    VirtualService,
    Ingress,
}

/// What a route is built from.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouteBuilder<'a> {
    pub key: &'a Key,
    pub owner: Owner<'a>,
    pub labels: &'a Pairs,
    pub annotations: &'a Pairs,
    pub config: &'a Config,
    pub components: &'a [Component],
    pub snapshot: &'a Snapshot,
    /// Services of the predictor and their shares of its traffic.
    pub backends: &'a [(String, i32)],
    /// Milliseconds without requests until components are scaled to zero, as in [`super::scale_to_zero::enable`].
    pub idle_timeout: Option<u64>,
    /// Whether they are.
    pub is_down: bool,
    /// Under a rollout policy.
    pub delivery: Option<&'a Delivery>,
}

/// Whether Gantry's gateway is the route of a service with these labels.
pub(super) fn is_gateway(config: &Config, labels: Option<&Pairs>, snapshot: &Snapshot) -> bool {
    let none = Pairs::new();
    provider(config, labels.unwrap_or(&none), snapshot).is_ok_and(|provider| provider == Provider::Gateway)
}

/// What carries requests from outside the cluster.
fn provider(config: &Config, labels: &Pairs, snapshot: &Snapshot) -> Result<Provider, String> {
    let ingress = &config.ingress;
    let is_local = ingress.disable_ingress_creation
        || ingress.ingress_domain == "svc.cluster.local"
        || labels.get(VISIBILITY.0).is_some_and(|value| value == VISIBILITY.1);
    let is_ours = !ingress.is_configured || ingress.ingress_class_name.as_deref() == Some(gateway::CLASS);
    let problem = match (is_local, ingress.enable_gateway_api, is_ours) {
        (true, ..) => return Ok(Provider::None),
        (_, true, _) if snapshot.has_http_routes => return Ok(Provider::HttpRoute),
        (_, true, _) => {
            "the ConfigMap inferenceservice-config enables the Gateway API, but the cluster has no HTTPRoutes: install \
             the CRDs of the Gateway API, or set ingress.enableGatewayApi to false"
        }
        (_, _, false) if uses_istio(config, snapshot) => return Ok(Provider::VirtualService),
        (_, _, false) => return Ok(Provider::Ingress),
        (..) if snapshot.scheduler.is_some() => return Ok(Provider::Gateway),
        (..) if !ingress.is_configured => return Ok(Provider::None),
        (..) => {
            "ingress.ingressClassName of the ConfigMap inferenceservice-config is gantry, but there is no scheduler with \
             gateways: create a SeldonRuntime in this namespace or in that of the operator"
        }
    };
    Err(problem.into())
}

impl RouteBuilder<'_> {
    pub(super) fn build(&self) -> Result<Route, String> {
        let Key { namespace, name } = self.key;
        let ingress = &self.config.ingress;
        let front = self.front();
        if self.backends.len() > 1 {
            self.check_split()?;
        }
        let in_cluster = |service: &str| format!("http://{service}.{namespace}.svc.cluster.local");
        let address = in_cluster(&self.backend_of(front));
        let provider = self.provider()?;
        if provider == Provider::None {
            let components = self.stable().map(|c| (c.kind, in_cluster(&c.key.name))).collect();
            let (objects, url) = (Vec::new(), address.clone());
            return Ok(Route { objects, service: None, url, address, components });
        }
        let url = |host: String| format!("{}://{host}", ingress.url_scheme);
        let host = self.host(name)?;
        let mut components = BTreeMap::new();
        for component in self.stable() {
            components.insert(component.kind, url(self.host(&self.host_name(component))?));
        }
        let (mut objects, mut service) = (Vec::new(), None);
        match provider {
            Provider::Gateway => service = Some(self.service(&host)?),
            Provider::HttpRoute => objects = self.http_routes(&host)?,
            Provider::VirtualService => objects.push(self.virtual_service(&host)?),
            Provider::Ingress => objects.push(self.ingress(&host)?),
            Provider::None => {}
        }
        Ok(Route { objects, service, url: url(host), address, components })
    }

    /// Whether Gantry's gateway is the route.
    pub(super) fn is_gateway(&self) -> bool {
        self.provider().is_ok_and(|provider| provider == Provider::Gateway)
    }

    fn provider(&self) -> Result<Provider, String> {
        provider(self.config, self.labels, self.snapshot)
    }

    /// An Ingress has no weights; the others have them only for requests that they send to the predictor themselves.
    fn check_split(&self) -> Result<(), String> {
        let problem = if self.front().kind == ComponentKind::Transformer {
            "a canary cannot get a share of the traffic behind a transformer: set its percentage to 0, or remove the \
             transformer"
        } else if !matches!(
            self.provider()?,
            Provider::Gateway | Provider::HttpRoute | Provider::VirtualService
        ) {
            "a canary needs a route with weights: set ingress.ingressClassName of the ConfigMap inferenceservice-config to \
             gantry, or its ingress.enableGatewayApi to true, or its percentage to 0"
        } else {
            return Ok(());
        };
        Err(problem.into())
    }

    /// The component without its canaries.
    fn stable(&self) -> impl Iterator<Item = &Component> {
        self.components.iter().filter(|component| component.canary.is_none())
    }

    /// The Services of a component, with weights.
    fn backends_of(&self, component: &Component) -> Vec<(String, i32)> {
        match component.kind {
            ComponentKind::Predictor => self.backends.to_vec(),
            ComponentKind::Transformer | ComponentKind::Explainer => vec![(component.key.name.clone(), 100)],
        }
    }

    /// The first Service of a component, where there are no weights.
    fn backend_of(&self, component: &Component) -> String {
        let first = self.backends_of(component).into_iter().next();
        first.map_or_else(|| component.key.name.clone(), |(service, _)| service)
    }

    /// The component that requests reach first.
    fn front(&self) -> &Component {
        let transformer = self.components.iter().find(|c| c.kind == ComponentKind::Transformer);
        // There is always a predictor, and it is the first one.
        #[allow(clippy::indexing_slicing, reason = "a service has a predictor")]
        transformer.unwrap_or(&self.components[0])
    }

    /// The name of a component in hosts and routes: without the name of a predictor, so that it survives a promotion.
    fn host_name(&self, component: &Component) -> String {
        format!("{}-{}", self.key.name, component.kind.as_str())
    }

    fn host(&self, name: &str) -> Result<String, String> {
        self.host_in(name, &self.config.ingress.ingress_domain)
    }

    fn host_in(&self, name: &str, domain: &str) -> Result<String, String> {
        service_host(self.config, self.key, name, domain, self.labels, self.annotations)
    }

    fn metadata(&self) -> Value {
        let inherits = &self.config.inference_service;
        let kept = |pairs: &Pairs, is_kept: &dyn Fn(&str) -> bool| -> Pairs {
            let kept = pairs.iter().filter(|(name, _)| is_kept(name) && !name.starts_with("gantry.dev/"));
            kept.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let labels = kept(self.labels, &|name| inherits.inherits_label(name));
        let annotations = kept(self.annotations, &|name| inherits.inherits_annotation(name));
        let mut metadata = json!({ "labels": labels, "ownerReferences": self.owner.references() });
        if !annotations.is_empty() {
            set(&mut metadata, "annotations", json!(annotations));
        }
        metadata
    }

    /// One Ingress with a rule per host.
    fn ingress(&self, host: &str) -> Result<Desired, String> {
        let rule = |host: &str, service: &str| {
            let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
            json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend }] } })
        };
        let front = self.backend_of(self.front());
        let mut rules = vec![rule(host, &front)];
        for component in self.stable() {
            rules.push(rule(&self.host(&self.host_name(component))?, &self.backend_of(component)));
        }
        for domain in &self.config.ingress.additional_ingress_domains {
            rules.push(rule(&self.host_in(&self.key.name, domain)?, &front));
        }
        let mut spec = json!({ "rules": rules });
        if let Some(class) = &self.config.ingress.ingress_class_name {
            set(&mut spec, "ingressClassName", class.as_str().into());
        }
        let body = json!({ "metadata": self.metadata(), "spec": spec });
        Ok(Desired::new(ResourceKind::INGRESS, self.key.clone(), body))
    }

    /// A route of the service, and one of each component.
    fn http_routes(&self, host: &str) -> Result<Vec<Desired>, String> {
        let mut hosts = vec![host.to_owned()];
        for domain in &self.config.ingress.additional_ingress_domains {
            hosts.push(self.host_in(&self.key.name, domain)?);
        }
        let explainer = self.components.iter().find(|c| c.kind == ComponentKind::Explainer);
        let mut rules: Vec<Value> = explainer.into_iter().map(|e| self.rule(EXPLAIN_PATH, e)).collect();
        rules.push(self.rule("^/.*$", self.front()));
        let mut routes = vec![self.http_route(self.key.clone(), &hosts, &rules)?];
        for component in self.stable() {
            let name = self.host_name(component);
            let host = self.host(&name)?;
            let key = Key::new(self.key.namespace.clone(), name);
            routes.push(self.http_route(key, &[host], &[self.rule("^/.*$", component)])?);
        }
        Ok(routes)
    }

    fn rule(&self, path: &str, component: &Component) -> Value {
        let Key { namespace, name } = self.key;
        let headers = json!([
            { "name": "KServe-Isvc-Name", "value": name },
            { "name": "KServe-Isvc-Namespace", "value": namespace },
        ]);
        let backend = |(service, weight): (String, i32)| {
            json!({
                "group": "", "kind": "Service", "name": service, "namespace": namespace, "port": 80, "weight": weight,
            })
        };
        let backends: Vec<Value> = self.backends_of(component).into_iter().map(backend).collect();
        let mut rule = json!({
            "matches": [{ "path": { "type": "RegularExpression", "value": path } }],
            "filters": [{ "type": "RequestHeaderModifier", "requestHeaderModifier": { "set": headers } }],
            "backendRefs": backends,
        });
        if !self.config.ingress.disable_http_route_timeout {
            let seconds = component.spec.timeout.unwrap_or(DEFAULT_TIMEOUT);
            set(&mut rule, "timeouts", json!({ "request": format!("{seconds}s") }));
        }
        rule
    }

    fn http_route(&self, key: Key, hosts: &[String], rules: &[Value]) -> Result<Desired, String> {
        let gateway = &self.config.ingress.kserve_ingress_gateway;
        let (namespace, name) = gateway.split_once('/').ok_or_else(|| {
            format!("ingress.kserveIngressGateway of the ConfigMap inferenceservice-config is {gateway}: write NAMESPACE/NAME")
        })?;
        let parent = json!({
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": namespace, "name": name,
        });
        let spec = json!({ "hostnames": hosts, "rules": rules, "parentRefs": [parent] });
        let body = json!({ "metadata": self.metadata(), "spec": spec });
        Ok(Desired::new(ResourceKind::HTTP_ROUTE, key, body))
    }
}

/// The host of a name in a domain.
pub(in crate::controllers) fn service_host(
    config: &Config,
    key: &Key,
    name: &str,
    domain: &str,
    labels: &Pairs,
    annotations: &Pairs,
) -> Result<String, String> {
    let placeholders =
        Placeholders { name, namespace: &key.namespace, ingress_domain: domain, labels, annotations };
    let host = placeholders.fill(&config.ingress.domain_template).map_err(|error| {
        format!("ingress.domainTemplate of the ConfigMap inferenceservice-config: {error}")
    })?;
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if host.len() > 253 || !host.split('.').all(is_label) {
        return Err(format!(
            "ingress.domainTemplate of the ConfigMap inferenceservice-config gives the host {host}, which is not valid: \
             shorten the name, or change the template"
        ));
    }
    Ok(host)
}

/// Why a route does not carry requests yet: reason and message.
pub(super) fn not_admitted(route: &Route, owned: &OwnedObjects) -> Option<(String, String)> {
    route.objects.iter().find_map(|desired| {
        let (kind, name) = (desired.kind, &desired.key.name);
        match owned.get(kind, name) {
            None => Some((format!("{kind}Missing"), format!("{kind} {name} is being created"))),
            Some(live) if kind == ResourceKind::HTTP_ROUTE => not_accepted(live, name),
            Some(live) if kind == ResourceKind::VIRTUAL_SERVICE => not_reconciled(live, name),
            // The Ingress API does not report whether a controller has accepted a rule.
            Some(_) => None,
        }
    })
}

/// A Gateway accepts a route, in its latest generation, with conditions per parent. Only those of the Gateway API count:
/// implementations add others, such as one for backends without pods.
fn not_accepted(live: &OwnedObject, name: &str) -> Option<(String, String)> {
    let parents = live.data.pointer("/status/parents").and_then(Value::as_array);
    let conditions: Vec<&Value> = parents
        .into_iter()
        .flatten()
        .filter_map(|parent| parent.get("conditions").and_then(Value::as_array))
        .flatten()
        .collect();
    let text = |condition: &Value, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let is_current = |condition: &&&Value| {
        condition.get("observedGeneration").and_then(Value::as_i64).unwrap_or_default()
            >= live.metadata.generation.unwrap_or_default()
    };
    let decides = |c: &&&Value| ["Accepted", "ResolvedRefs"].contains(&text(c, "type").as_str());
    let mut deciding = conditions.iter().filter(is_current).filter(decides);
    if let Some(refused) = deciding.find(|c| text(c, "status") == "False") {
        let message = format!("HTTPRoute {name}: {}", text(refused, "message"));
        return Some((text(refused, "reason"), message));
    }
    let is_accepted = |c: &&&Value| text(c, "type") == "Accepted" && text(c, "status") == "True";
    if conditions.iter().filter(is_current).any(|c| is_accepted(&c)) {
        return None;
    }
    let message = format!("no Gateway has accepted HTTPRoute {name} yet: check ingress.kserveIngressGateway");
    Some(("ParentStatusNotAvailable".into(), message))
}
