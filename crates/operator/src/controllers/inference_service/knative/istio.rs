//! The host of a service in front of its Services of Knative: a `VirtualService` and a Service with an external name.

use super::{
    super::{
        component::{Component, ComponentKind, Components},
        config::Config,
        objects::owner,
        pod::set,
        route::{EXPLAIN_PATH, authority},
        snapshot::Snapshot,
        status::Fact,
    },
    status::ServiceState,
};
use crate::{
    cluster::{Custom, Desired, InferenceService, Key, ResourceKind},
    workload::OwnedObjects,
};
use serde_json::{Value, json};

/// The route of a service.
#[derive(Debug)]
pub(super) struct Istio<'a> {
    key: &'a Key,
    config: &'a Config,
    metadata: Value,
    front: &'a Component,
    explainer: Option<&'a Component>,
    /// Hosts outside the cluster; none for a service that is visible inside only.
    hosts: Vec<String>,
    pub url: String,
    pub address: String,
}

impl<'a> Istio<'a> {
    /// None where Istio is missing or disabled, and until Knative has given a URL.
    pub(super) fn new(
        snapshot: &'a Snapshot,
        object: &'a Custom<InferenceService>,
        config: &'a Config,
        built: &'a Components,
        states: &[ServiceState<'a>],
    ) -> Option<Self> {
        let ingress = &config.ingress;
        let is_used = snapshot.has(ResourceKind::VIRTUAL_SERVICE)
            && ingress.disable_istio_virtual_host != Some(true)
            && !ingress.ingress_gateway.is_empty()
            && !ingress.local_gateway_service.is_empty();
        let of = |kind| built.all.iter().find(|component: &&Component| component.kind == kind);
        let front = of(ComponentKind::Transformer).or_else(|| built.all.first()).filter(|_| is_used)?;
        let state = states.iter().find(|state| state.component.kind == front.kind)?;
        let url = state.url()?;
        let host = url.split_once("://").map_or(url.as_str(), |(_, host)| host);
        // The host of a component begins with its name.
        let rest = host.strip_prefix(front.key.name.as_str())?;
        let own = format!("{}{rest}", snapshot.key.name);
        let internal = format!("{}.{}.svc.cluster.local", snapshot.key.name, snapshot.key.namespace);
        let is_internal = own.ends_with("svc.cluster.local");
        let mut hosts = Vec::new();
        if !is_internal {
            let of_domain = own.strip_suffix(ingress.ingress_domain.as_str()).map(str::to_owned);
            hosts.push(own.clone());
            let more = ingress.additional_ingress_domains.iter();
            hosts.extend(of_domain.iter().flat_map(|base| more.clone().map(move |d| format!("{base}{d}"))));
        }
        let owner = owner(&snapshot.key.name, object.uid());
        let labels = object
            .metadata
            .labels
            .iter()
            .flatten()
            .filter(|(name, _)| config.inference_service.inherits_label(name));
        let labels: serde_json::Map<String, Value> =
            labels.map(|(k, v)| (k.clone(), v.clone().into())).collect();
        Some(Self {
            key: &snapshot.key,
            config,
            metadata: json!({ "labels": labels, "ownerReferences": owner.references() }),
            front,
            explainer: of(ComponentKind::Explainer),
            hosts,
            url: format!("{}://{own}", ingress.url_scheme),
            address: format!("http://{internal}"),
        })
    }

    fn internal(&self) -> String {
        format!("{}.{}.svc.cluster.local", self.key.name, self.key.namespace)
    }

    pub(super) fn objects(&self) -> Vec<Desired> {
        let ingress = &self.config.ingress;
        let mut gateways = vec![ingress.local_gateway.as_str(), "mesh"];
        gateways.retain(|gateway| !gateway.is_empty());
        if !self.hosts.is_empty() {
            gateways.push(&ingress.ingress_gateway);
        }
        let mut hosts = vec![self.internal()];
        hosts.extend(self.hosts.iter().cloned());
        let explain = self.explainer.map(|explainer| self.route(explainer, Some(EXPLAIN_PATH)));
        let routes: Vec<Value> = explain.into_iter().chain([self.route(self.front, None)]).collect();
        let spec = json!({ "hosts": hosts, "gateways": gateways, "http": routes });
        let route = json!({ "metadata": self.metadata, "spec": spec });
        let external = json!({ "type": "ExternalName", "externalName": ingress.local_gateway_service });
        let service = json!({ "metadata": self.metadata, "spec": external });
        vec![
            Desired::new(ResourceKind::VIRTUAL_SERVICE, self.key.clone(), route),
            Desired::new(ResourceKind::SERVICE, self.key.clone(), service),
        ]
    }

    /// Requests go to Knative's gateway inside the cluster with the host of the component, so that Knative splits them.
    fn route(&self, component: &Component, path: Option<&str>) -> Value {
        let ingress = &self.config.ingress;
        let mut local = vec![ingress.local_gateway.as_str(), "mesh"];
        local.retain(|gateway| !gateway.is_empty());
        let matched = |host: &str, gateways: &[&str]| {
            let mut matched = json!({ "authority": { "regex": authority(host) }, "gateways": gateways });
            if let Some(path) = path {
                set(&mut matched, "uri", json!({ "regex": path }));
            }
            matched
        };
        let mut matches = vec![matched(&self.internal(), &local)];
        matches.extend(self.hosts.iter().map(|host| matched(host, &[&ingress.ingress_gateway])));
        let Key { namespace, name } = self.key;
        let host = format!("{}.{namespace}.svc.cluster.local", component.key.name);
        let headers = json!({ "Host": host, "KServe-Isvc-Name": name, "KServe-Isvc-Namespace": namespace });
        let gateway = if ingress.knative_local_gateway_service.is_empty() {
            &ingress.local_gateway_service
        } else {
            &ingress.knative_local_gateway_service
        };
        json!({
            "match": matches,
            "route": [{ "destination": { "host": gateway, "port": { "number": 80 } }, "weight": 100 }],
            "headers": { "request": { "set": headers } },
        })
    }

    pub(super) fn admitted(&self, owned: &OwnedObjects) -> Fact {
        match owned.get(ResourceKind::VIRTUAL_SERVICE, &self.key.name) {
            None => {
                let message = format!("VirtualService {} is being created", self.key.name);
                Fact::new(false, "VirtualServiceMissing", message)
            }
            Some(live) => match super::super::route::not_reconciled(live, &self.key.name) {
                Some((reason, message)) => Fact::new(false, reason, message),
                None => Fact::new(true, "", ""),
            },
        }
    }
}
