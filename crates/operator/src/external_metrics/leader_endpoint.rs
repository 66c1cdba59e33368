//! The endpoint of the Service: the leader, which has the statistics.

use super::ExternalMetrics;
use crate::{admission::with_timeout, cluster::WriteFence};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{net::IpAddr, time::Duration};

const FIELD_MANAGER: &str = "gantry/external-metrics";
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct LeaderEndpoint {
    slices: Api<EndpointSlice>,
    fence: WriteFence,
    service: String,
    address: Option<IpAddr>,
    port: u16,
}

impl LeaderEndpoint {
    pub(super) fn new(client: Client, fence: WriteFence, settings: &ExternalMetrics, port: u16) -> Self {
        Self {
            slices: Api::namespaced(client, &settings.namespace),
            fence,
            service: settings.service.clone(),
            address: settings.pod_ip,
            port,
        }
    }

    /// Never returns. A standby leaves the endpoint to the leader.
    pub(super) async fn run(&self) {
        let mut logged = String::new();
        loop {
            let outcome = match self.address {
                Some(address) if self.fence.remaining().is_some() => self.point_to(address).await,
                _ => Ok(()),
            };
            let error = outcome.err().unwrap_or_default();
            if error != logged && !error.is_empty() {
                tracing::warn!("external metrics: EndpointSlice {}: {error}", self.service);
            }
            logged = error;
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn point_to(&self, address: IpAddr) -> Result<(), String> {
        let found = with_timeout(self.slices.get_opt(&self.service)).await.map_err(|e| e.to_string())?;
        if found.is_some_and(|slice| self.is_current(&slice, address)) {
            return Ok(());
        }
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": self.service, "labels": { "kubernetes.io/service-name": self.service } },
            "addressType": if address.is_ipv6() { "IPv6" } else { "IPv4" },
            "endpoints": [{ "addresses": [address.to_string()], "conditions": { "ready": true } }],
            "ports": [{ "name": "https", "port": self.port, "protocol": "TCP" }],
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        with_timeout(self.slices.patch(&self.service, &params, &Patch::Apply(&slice)))
            .await
            .map(drop)
            .map_err(|e| e.to_string())
    }

    fn is_current(&self, slice: &EndpointSlice, address: IpAddr) -> bool {
        let address = address.to_string();
        let ports: Vec<Option<i32>> = slice.ports.iter().flatten().map(|port| port.port).collect();
        let addresses: Vec<&String> =
            slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
        ports == [Some(i32::from(self.port))] && addresses == [&address]
    }
}
