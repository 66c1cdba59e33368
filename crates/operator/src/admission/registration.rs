//! The `ValidatingWebhookConfiguration`, whose `caBundle` the operator maintains.

use super::{
    WebhookResources,
    cert_rotator::{Registration, with_timeout},
};
use crate::cluster::ApiError;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{ValidatingWebhook, ValidatingWebhookConfiguration},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::collections::BTreeSet;

/// Owns only the `caBundle` fields of the webhook configuration.
const FIELD_MANAGER: &str = "gantry/webhook";

pub(super) struct WebhookRegistration {
    configurations: Api<ValidatingWebhookConfiguration>,
    name: String,
}

impl WebhookRegistration {
    pub(super) fn new(client: Client, resources: &WebhookResources) -> Self {
        Self { configurations: Api::all(client), name: resources.configuration.clone() }
    }
}

impl Registration for WebhookRegistration {
    const NAME: &'static str = "webhook";
    type Found = ValidatingWebhookConfiguration;

    async fn read(&self) -> Result<ValidatingWebhookConfiguration, String> {
        let name = &self.name;
        let found = with_timeout(self.configurations.get_opt(name)).await;
        let found =
            found.map_err(|e| format!("failed to read ValidatingWebhookConfiguration {name}: {e}"))?;
        found.ok_or_else(|| {
            format!(
                "ValidatingWebhookConfiguration {name} not found: install it (webhook.enabled=true in the chart), or set \
                 --webhook-configuration"
            )
        })
    }

    fn hosts(&self, found: &ValidatingWebhookConfiguration) -> Result<Vec<String>, String> {
        let names = host_names(found);
        if names.is_empty() {
            let name = &self.name;
            return Err(format!("ValidatingWebhookConfiguration {name} has neither a service nor a url"));
        }
        Ok(names)
    }

    fn bundle(&self, found: &ValidatingWebhookConfiguration) -> String {
        bundle(found)
    }

    /// Server-side apply of the `caBundle` only. Not forced: two owners of the field would overwrite each other forever.
    async fn publish(
        &self,
        configuration: &ValidatingWebhookConfiguration,
        bundle: &str,
    ) -> Result<(), String> {
        let name = &self.name;
        let webhooks: Vec<serde_json::Value> = hooks(configuration)
            .map(|hook| json!({ "name": hook.name, "clientConfig": { "caBundle": ByteString(bundle.into()) } }))
            .collect();
        let patch = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name, "uid": configuration.metadata.uid },
            "webhooks": webhooks,
        });
        let params = PatchParams::apply(FIELD_MANAGER);
        let sent = with_timeout(self.configurations.patch(name, &params, &Patch::Apply(&patch))).await;
        match sent {
            Ok(_) => Ok(()),
            Err(ApiError::Conflict) => Err(format!(
                "the caBundle of ValidatingWebhookConfiguration {name} has another owner: find it with kubectl get \
                 validatingwebhookconfiguration {name} -o yaml --show-managed-fields, and remove the field there"
            )),
            Err(e) => Err(format!("failed to patch ValidatingWebhookConfiguration {name}: {e}")),
        }
    }
}

fn hooks(configuration: &ValidatingWebhookConfiguration) -> impl Iterator<Item = &ValidatingWebhook> {
    configuration.webhooks.iter().flatten()
}

/// Host names used by API servers, for the certificate.
fn host_names(configuration: &ValidatingWebhookConfiguration) -> Vec<String> {
    let of = |hook: &ValidatingWebhook| {
        let config = &hook.client_config;
        let service = config.service.as_ref().map(|s| format!("{}.{}.svc", s.name, s.namespace));
        let host = config.url.as_deref().and_then(|url| url.parse::<http::Uri>().ok());
        let host = host.and_then(|uri| uri.host().map(|h| h.trim_matches(['[', ']']).to_owned()));
        service.or(host)
    };
    hooks(configuration).filter_map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The `caBundle` shared by all entries; empty when they differ.
fn bundle(configuration: &ValidatingWebhookConfiguration) -> String {
    let texts: BTreeSet<String> = hooks(configuration)
        .map(|hook| hook.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .collect();
    let mut texts = texts.into_iter();
    match (texts.next(), texts.next()) {
        (Some(only), None) => only,
        _ => String::new(),
    }
}
