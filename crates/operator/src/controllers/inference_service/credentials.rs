//! Storage credentials: Secrets of a pod's `ServiceAccount` as variables and volumes of the container that downloads.

use super::{
    config::{Config, CredentialsConfig},
    pod::{add_env_source, set},
};
use crate::{
    cluster::{Custom, InferenceService, Key, OwnedObject, ResourceKind},
    inputs::{InputRef, Inputs},
    plan::Known,
    workload::merge,
};
use gantry_api::kserve::{FrameworkSpec, InferenceServiceSpec, PredictorSpec, StorageSpec, StorageUri};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";
/// The annotation of an account with a role of AWS.
const ROLE: &str = "eks.amazonaws.com/role-arn";
const CERTIFICATES: (&str, &str) = ("cabundle-cert", "/etc/ssl/custom-certs");
/// Keys of a Secret that become variables of the same name.
const TOKENS: [&str; 6] = [
    "AZURE_ACCESS_TOKEN",
    "AZURE_STORAGE_ACCESS_KEY",
    "HF_TOKEN",
    "MODELSCOPE_API_TOKEN",
    "AZURE_STORAGE_SAS_TOKEN",
    "AWS_SESSION_TOKEN",
];
/// Identities of Azure: keys begin with `AZURE_`, or with `AZ_` as in older Secrets.
const AZURE: [&str; 4] = ["SUBSCRIPTION_ID", "TENANT_ID", "CLIENT_ID", "CLIENT_SECRET"];

type Input = Known<Arc<OwnedObject>>;

/// The accounts and Secrets that a service refers to. Secrets have keys without values.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub accounts: BTreeMap<String, Input>,
    pub secrets: BTreeMap<String, Input>,
    /// Why one of them cannot be read.
    pub failure: Option<String>,
}

impl Credentials {
    /// Reads the accounts and Secrets of a service from the cache.
    pub(super) fn read(references: Vec<InputRef>, inputs: &Inputs) -> Self {
        let mut credentials = Self::default();
        for (kind, key) in references {
            let found = inputs.get(kind, &key);
            if matches!(found, Known::Unknown(_)) {
                let failure =
                    || Some(format!("{kind} {key} cannot be read: {}", inputs.failure(kind, &key)?));
                credentials.failure = credentials.failure.or_else(failure);
            }
            match kind {
                ResourceKind::SERVICE_ACCOUNT => drop(credentials.accounts.insert(key.name, found)),
                ResourceKind::SECRET => drop(credentials.secrets.insert(key.name, found)),
                _ => {}
            }
        }
        credentials
    }

    /// Whether all of them are read; their watches trigger the next plan.
    pub(super) fn are_known(&self) -> bool {
        let mut all = self.accounts.values().chain(self.secrets.values());
        all.all(|input| !matches!(input, Known::Unknown(_)))
    }

    fn secret(&self, name: &str) -> Option<&OwnedObject> {
        present(self.secrets.get(name))
    }
}

fn present(input: Option<&Input>) -> Option<&OwnedObject> {
    match input {
        Some(Known::Present(object)) => Some(object),
        _ => None,
    }
}

/// Accounts and Secrets of the components that download. The Secrets of an account follow once it is read.
pub(super) fn references(
    object: &Custom<InferenceService>,
    config: &CredentialsConfig,
    inputs: &Inputs,
) -> Vec<InputRef> {
    let Ok(spec) = &object.spec else { return Vec::new() };
    let namespace = object.key().namespace;
    let of = |kind, name: &str| (kind, Key::new(namespace.clone(), name));
    let named =
        object.metadata.annotations.as_ref().and_then(|a| a.get(&config.storage_secret_name_annotation));
    let mut references = Vec::new();
    for account in accounts(spec) {
        let account = of(ResourceKind::SERVICE_ACCOUNT, account);
        if let Known::Present(account) = inputs.get(account.0, &account.1)
            && named.is_none()
        {
            references.extend(secrets_of(&account).map(|name| of(ResourceKind::SECRET, name)));
        }
        references.push(account);
    }
    if has_storage_spec(spec) {
        let name = named.unwrap_or(&config.storage_spec_secret_name);
        references.push(of(ResourceKind::SECRET, name));
    } else if let Some(name) = named.filter(|_| !references.is_empty()) {
        references.push(of(ResourceKind::SECRET, name));
    }
    references.sort();
    references.dedup();
    references
}

fn secrets_of(account: &OwnedObject) -> impl Iterator<Item = &str> {
    let entries = account.data.get("secrets").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| entry.get("name").and_then(Value::as_str))
}

fn account_of(pod: &Map<String, Value>) -> &str {
    let named = pod.get("serviceAccountName").and_then(Value::as_str).filter(|name| !name.is_empty());
    named.unwrap_or(DEFAULT_ACCOUNT)
}

/// Accounts of the pods that download something.
fn accounts(spec: &InferenceServiceSpec) -> impl Iterator<Item = &str> {
    let predictors =
        std::iter::once(&spec.predictor).chain(spec.canary.iter().map(|canary| &canary.predictor));
    let of_predictors = predictors.filter(|predictor| {
        let has_custom_uri = predictor.containers.iter().any(has_uri_variable);
        let of_framework =
            |framework: &FrameworkSpec| framework.storage_uri.as_deref().is_some_and(is_downloaded);
        has_custom_uri || downloads(&predictor.storage_uris) || frameworks(predictor).any(of_framework)
    });
    // A canary has the account of the stable predictor unless it names another.
    let account = |predictor: &'_ PredictorSpec| predictor.pod.contains_key("serviceAccountName");
    let of_predictors =
        of_predictors.map(move |p| account_of(if account(p) { &p.pod } else { &spec.predictor.pod }));
    let transformer =
        spec.transformer.iter().filter(|t| downloads(&t.storage_uris)).map(|t| account_of(&t.pod));
    let explainer = spec.explainer.iter().filter(|e| downloads(&e.storage_uris)).map(|e| account_of(&e.pod));
    of_predictors.chain(transformer).chain(explainer)
}

fn frameworks(predictor: &PredictorSpec) -> impl Iterator<Item = &FrameworkSpec> {
    predictor.model.iter().map(|model| &model.framework).chain(predictor.frameworks().map(|(_, spec)| spec))
}

fn has_storage_spec(spec: &InferenceServiceSpec) -> bool {
    let predictors =
        std::iter::once(&spec.predictor).chain(spec.canary.iter().map(|canary| &canary.predictor));
    predictors.flat_map(frameworks).any(|framework| framework.storage.is_some())
}

/// A custom container may name its artifact in a variable.
fn has_uri_variable(container: &Value) -> bool {
    let env = container.get("env").and_then(Value::as_array);
    env.into_iter().flatten().any(|variable| variable.get("name") == Some(&"STORAGE_URI".into()))
}

fn is_downloaded(uri: &str) -> bool {
    !uri.trim().is_empty() && !uri.starts_with("pvc://") && !uri.starts_with("oci")
}

fn downloads(uris: &[StorageUri]) -> bool {
    uris.iter().any(|storage| is_downloaded(&storage.uri))
}

/// Builds variables and volumes of one pod's credentials.
#[derive(Clone, Copy, Debug)]
pub(super) struct CredentialsBuilder<'a> {
    pub config: &'a Config,
    pub annotations: &'a BTreeMap<String, String>,
    pub credentials: &'a Credentials,
}

impl CredentialsBuilder<'_> {
    /// The Secret that an annotation of the service names.
    fn named(&self) -> Option<&String> {
        self.annotations.get(&self.config.credentials.storage_secret_name_annotation)
    }

    /// Adds the credentials of the pod's account; variables that the container has win.
    pub(super) fn add(&self, pod: &mut Value, init: &mut Value) -> Result<(), String> {
        let none = Map::new();
        let account = present(self.credentials.accounts.get(account_of(pod.as_object().unwrap_or(&none))));
        let mut secrets: Vec<(&str, &OwnedObject)> = Vec::new();
        if let Some(name) = self.named() {
            let secret = self.credentials.secret(name).ok_or_else(|| {
                let annotation = &self.config.credentials.storage_secret_name_annotation;
                format!("Secret {name} of the annotation {annotation} does not exist: create it, or correct the name")
            })?;
            secrets.push((name, secret));
        } else {
            let listed = account.into_iter().flat_map(secrets_of);
            secrets.extend(listed.filter_map(|name| Some((name, self.credentials.secret(name)?))));
        }
        // The first one with a variable wins.
        for (index, (name, secret)) in secrets.iter().enumerate() {
            self.add_secret(pod, init, name, secret, index);
        }
        if let Some(account) = account.filter(|account| annotation(account, ROLE).is_some()) {
            self.add_s3_settings(pod, init, account);
        }
        Ok(())
    }

    fn add_secret(&self, pod: &mut Value, init: &mut Value, name: &str, secret: &OwnedObject, index: usize) {
        let has = |key: &str| secret.data.get("data").is_some_and(|data| data.get(key).is_some());
        let mut add = |variable: &str, key: &str| {
            if has(key) {
                let source = json!({ "secretKeyRef": { "name": name, "key": key } });
                add_env_source(init, variable, &source);
            }
        };
        let CredentialsConfig { s3, gcs, .. } = &self.config.credentials;
        add("AWS_ACCESS_KEY_ID", &s3.access_key_id_name);
        add("AWS_SECRET_ACCESS_KEY", &s3.secret_access_key_name);
        for part in AZURE {
            let variable = format!("AZURE_{part}");
            add(&variable, &variable);
            add(&variable, &format!("AZ_{part}"));
        }
        for token in TOKENS {
            add(token, token);
        }
        // KServe puts the host into the name of a variable, which needs the value of the Secret.
        add(&format!("GANTRY_HTTPS_HOST_{index}"), "https-host");
        if has("https-host") {
            add(&format!("GANTRY_HTTPS_HEADERS_{index}"), "headers");
        }
        if has(&s3.secret_access_key_name) {
            self.add_s3_settings(pod, init, secret);
        }
        if has(&gcs.credential_file_name) {
            mount(pod, init, "user-gcp-sa", "/var/secrets/", json!({ "secret": { "secretName": name } }));
            let file = format!("/var/secrets/{}", gcs.credential_file_name);
            super::pod::add_env(init, "GOOGLE_APPLICATION_CREDENTIALS", &file);
        }
        if has("HDFS_NAMENODE") {
            let volume = json!({ "secret": { "secretName": name } });
            mount(pod, init, "hdfscreds", "/var/secrets/kserve-hdfscreds", volume);
        }
    }

    /// Settings of S3 besides the keys: annotations of the Secret or the account, else of the `ConfigMap`.
    fn add_s3_settings(&self, pod: &mut Value, init: &mut Value, object: &OwnedObject) {
        let s3 = &self.config.credentials.s3;
        let of = |name: &str, default: &str| -> Option<String> {
            let own = annotation(object, &format!("serving.kserve.io/s3-{name}")).map(str::to_owned);
            own.or_else(|| (!default.is_empty()).then(|| default.to_owned()))
        };
        let mut add = |variable: &str, value: Option<String>| {
            if let Some(value) = value {
                super::pod::add_env(init, variable, &value);
            }
        };
        if let Some(endpoint) = of("endpoint", &s3.endpoint) {
            let https = of("usehttps", &s3.use_https);
            let scheme = if https.as_deref() == Some("0") { "http" } else { "https" };
            add("AWS_ENDPOINT_URL", Some(format!("{scheme}://{endpoint}")));
            add("S3_ENDPOINT", Some(endpoint));
            add("S3_USE_HTTPS", https);
        }
        add("AWS_DEFAULT_REGION", of("region", &s3.region));
        add("S3_VERIFY_SSL", of("verifyssl", &s3.verify_ssl));
        add("S3_USER_VIRTUAL_BUCKET", of("usevirtualbucket", &s3.use_virtual_bucket));
        add("S3_USE_ACCELERATE", of("useaccelerate", &s3.use_accelerate));
        add("awsAnonymousCredential", of("useanoncredential", &s3.use_anonymous_credential));
        let bundle = of("cabundle-configmap", &s3.ca_bundle_config_map);
        add("AWS_CA_BUNDLE", of("cabundle", &s3.ca_bundle));
        if let Some(map) = bundle {
            add("AWS_CA_BUNDLE_CONFIGMAP", Some(map.clone()));
            add("CA_BUNDLE_CONFIGMAP_NAME", Some(map.clone()));
            add("CA_BUNDLE_VOLUME_MOUNT_POINT", Some(CERTIFICATES.1.to_owned()));
            mount(pod, init, CERTIFICATES.0, CERTIFICATES.1, json!({ "configMap": { "name": map } }));
        }
    }

    /// The Secret and the key of a storage specification.
    pub(super) fn storage_config(&self, storage: &StorageSpec) -> Result<(String, String), String> {
        let name = self.named().unwrap_or(&self.config.credentials.storage_spec_secret_name);
        let secret = self.credentials.secret(name).ok_or_else(|| {
            format!(
                "Secret {name} of the storage specification does not exist: create it, with a key per storage"
            )
        })?;
        let has = |key: &String| secret.data.get("data").is_some_and(|data| data.get(key).is_some());
        let of_type = storage.parameters.get("type").map(|kind| format!("default_{kind}"));
        let candidates: Vec<String> = match &storage.key {
            Some(key) => vec![key.clone()],
            None => of_type.into_iter().chain(["default".to_owned()]).collect(),
        };
        let found = candidates.iter().find(|key| has(key)).cloned();
        found.map(|key| (name.clone(), key)).ok_or_else(|| {
            format!(
                "Secret {name} has no key {}: add it, or name another in storage.key",
                candidates.join(" or ")
            )
        })
    }
}

fn annotation<'a>(object: &'a OwnedObject, name: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(name).map(String::as_str).filter(|value| !value.is_empty())
}

fn mount(pod: &mut Value, init: &mut Value, name: &str, path: &str, source: Value) {
    let mut volume = source;
    set(&mut volume, "name", name.into());
    *pod = merge(&json!({ "volumes": [volume] }), pod);
    let mount = json!({ "name": name, "mountPath": path, "readOnly": true });
    *init = merge(&json!({ "volumeMounts": [mount] }), init);
}
