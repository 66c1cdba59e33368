//! The `APIService`: the operator maintains its `caBundle`, if it names the operator's Service.

use super::{API_SERVICE, ExternalMetrics};
use crate::{
    admission::{Registration, with_timeout},
    cluster::ApiError,
};
use k8s_openapi::{ByteString, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// Owns only the `caBundle`.
const FIELD_MANAGER: &str = "gantry/external-metrics";

/// What the registration has.
pub(super) struct Published {
    uid: String,
    bundle: String,
}

pub(super) struct ApiServiceRegistration {
    api_services: Api<APIService>,
    namespace: String,
    service: String,
}

impl ApiServiceRegistration {
    pub(super) fn new(client: Client, settings: &ExternalMetrics) -> Self {
        Self {
            api_services: Api::all(client),
            namespace: settings.namespace.clone(),
            service: settings.service.clone(),
        }
    }
}

impl Registration for ApiServiceRegistration {
    const NAME: &'static str = "external metrics API";
    type Found = Published;

    async fn read(&self) -> Result<Published, String> {
        let (namespace, service) = (&self.namespace, &self.service);
        let found = with_timeout(self.api_services.get_opt(API_SERVICE)).await;
        let found = found.map_err(|e| format!("failed to read APIService {API_SERVICE}: {e}"))?;
        let found = found.ok_or_else(|| {
            format!("APIService {API_SERVICE} not found: install it (algorithms.externalMetrics.enabled=true in the chart)")
        })?;
        let spec = found.spec.unwrap_or_default();
        let named = spec.service.unwrap_or_default();
        let is = |field: Option<String>, ours: &str| field.is_some_and(|name| name == ours);
        if !is(named.namespace.clone(), namespace) || !is(named.name.clone(), service) {
            return Err(format!(
                "APIService {API_SERVICE} names Service {}/{} of another provider, not {namespace}/{service}: stop this operator \
                 from serving external metrics, or remove that provider",
                named.namespace.unwrap_or_default(),
                named.name.unwrap_or_default()
            ));
        }
        Ok(Published {
            uid: found.metadata.uid.unwrap_or_default(),
            bundle: spec.ca_bundle.map(|ca| String::from_utf8_lossy(&ca.0).into_owned()).unwrap_or_default(),
        })
    }

    fn hosts(&self, _: &Published) -> Result<Vec<String>, String> {
        Ok(vec![format!("{}.{}.svc", self.service, self.namespace)])
    }

    fn bundle(&self, found: &Published) -> String {
        found.bundle.clone()
    }

    async fn publish(&self, published: &Published, bundle: &str) -> Result<(), String> {
        let patch = json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": { "name": API_SERVICE, "uid": published.uid },
            "spec": { "caBundle": ByteString(bundle.into()) },
        });
        // A merge patch: required fields of the spec belong to the installation.
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let sent = with_timeout(self.api_services.patch(API_SERVICE, &params, &Patch::Merge(&patch))).await;
        match sent {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict) => Err(format!("APIService {API_SERVICE} was replaced")),
            Err(e) => Err(format!("failed to patch APIService {API_SERVICE}: {e}")),
        }
    }
}
