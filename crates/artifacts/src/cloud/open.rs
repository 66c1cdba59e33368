//! From a bucket's URI and the credentials to an opened store.

use std::sync::Arc;

use object_store::RetryConfig;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder, split_sas};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use url::Url;

use super::Store;
use super::connector::Connector;
use crate::auth::{self, Auth};
use crate::error::FetchError;
use crate::net::Client;
use crate::secret::{Provider, Secret};
use crate::uri::BucketUri;

/// Settings of the secret, else of the environment (also if the secret refers to it).
struct Settings<'a> {
    secret: Option<&'a Secret>,
    env: &'a Secret,
    from_env: bool,
}

impl Settings<'_> {
    fn get(&self, setting: &str) -> Option<&str> {
        let own = self.secret.and_then(|secret| secret.get(setting));
        own.or_else(|| self.from_env.then(|| self.env.get(setting)).flatten())
    }

    fn is_set(&self, setting: &str) -> bool {
        self.secret.map_or_else(|| self.env.is_set(setting), |secret| secret.is_set(setting))
    }
}

/// Opens the bucket; no request is sent yet.
pub(crate) fn open(
    uri: &BucketUri,
    secret: Option<&Secret>,
    env: &Secret,
    client: Arc<Client>,
    instance_credentials: bool,
    max_files: usize,
) -> Result<Store, FetchError> {
    let provider = provider(uri, secret)?;
    let prefix = match provider {
        Provider::S3 => "s3.",
        Provider::Gs => "gs.",
        _ => "az.",
    };
    if let Some(given) = secret
        && given.provider().is_none()
        && !given.has_any(prefix)
    {
        return Err(FetchError::denied(format!(
            "the storage secret has no credentials for {}://",
            uri.remote
        ))
        .remedy("name a secret for this store, or remove secretName"));
    }
    let from_env = secret.is_none_or(|secret| secret.is_set(&format!("{prefix}env")));
    // A bearer token of this machine must not go to a server that the author of a secret chose.
    if let Some(given) = secret
        && from_env
        && provider != Provider::S3
        && given.get(&format!("{prefix}endpoint")).is_some()
    {
        return Err(FetchError::denied("the storage secret combines env_auth with an endpoint of its own")
            .remedy("put the credentials into the secret, or remove the endpoint"));
    }
    let settings = Settings { secret, env, from_env };
    let connector = Connector::new(client, instance_credentials && from_env, max_files);
    match provider {
        Provider::S3 => open_s3(uri, &settings, connector),
        Provider::Gs => open_gs(uri, &settings, connector),
        _ => open_azure(uri, &settings, connector),
    }
}

fn provider(uri: &BucketUri, secret: Option<&Secret>) -> Result<Provider, FetchError> {
    let by_scheme = match uri.remote.as_str() {
        "s3" => Some(Provider::S3),
        "gs" => Some(Provider::Gs),
        "az" => Some(Provider::Azure),
        _ => None,
    };
    let named = secret.filter(|secret| secret.name() == Some(&uri.remote)).and_then(Secret::provider);
    let by_secret = secret.and_then(Secret::provider);
    match (named.or(by_scheme), by_secret) {
        (Some(Provider::Hf | Provider::Http) | None, _) => {
            let undefined = FetchError::permanent(format!("the remote `{}` is not defined", uri.remote));
            Err(undefined.remedy(format!(
                "name a storage secret (secretName) with `name: {}` and a `type` of s3, google cloud storage \
                 or azureblob",
                uri.remote
            )))
        }
        (Some(provider), Some(other)) if provider != other => Err(FetchError::permanent(format!(
            "the storage secret is for another kind of store than {}://",
            uri.remote
        ))
        .remedy(format!("give the secret the name `{}`, or name another secret", uri.remote))),
        (Some(provider), _) => Ok(provider),
    }
}

/// Retries are ours, so that they are the same for every source.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// An endpoint with its scheme, and whether it is unencrypted.
fn endpoint(text: &str, https_by_default: bool) -> Result<Url, FetchError> {
    let full = match text {
        text if text.contains("://") => text.to_owned(),
        text if https_by_default => format!("https://{text}"),
        text => format!("http://{text}"),
    };
    let bad = || {
        FetchError::permanent("the endpoint of the storage secret is not a URL")
            .remedy("write https://host:port")
    };
    let url = Url::parse(&full).map_err(|_| bad())?;
    let plain = matches!(url.scheme(), "http" | "https")
        && url.host_str().is_some()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none();
    if plain { Ok(url) } else { Err(bad()) }
}

fn trimmed(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

fn parse_base(text: &str) -> Result<Url, FetchError> {
    Url::parse(text).map_err(|_| FetchError::permanent("the address of the bucket is not a URL"))
}

fn unusable(_: object_store::Error) -> FetchError {
    FetchError::permanent("the credentials cannot be used")
        .remedy("check the storage secret or the variables in the environment")
}

fn open_s3(uri: &BucketUri, settings: &Settings<'_>, connector: Connector) -> Result<Store, FetchError> {
    let region = settings.get("s3.region").unwrap_or("us-east-1").to_owned();
    if !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(FetchError::permanent("the region has a character other than letters, digits and `-`"));
    }
    let https = !settings.get("s3.https").is_some_and(|value| matches!(value, "0" | "false"));
    let custom = settings.get("s3.endpoint").map(|text| endpoint(text, https)).transpose()?;
    let instance_credentials = connector.instance_credentials;
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&uri.bucket)
        .with_region(&region)
        .with_allow_http(true)
        .with_retry(no_retries());
    let mut base = format!("https://s3.{region}.amazonaws.com/{}", uri.bucket);
    if let Some(custom) = &custom {
        if settings.get("s3.path_style") == Some("false") || settings.is_set("s3.virtual_host") {
            let host = trimmed(custom).replacen("://", &format!("://{}.", uri.bucket), 1);
            builder = builder.with_endpoint(&host).with_virtual_hosted_style_request(true);
            base = host;
        } else {
            builder = builder.with_endpoint(trimmed(custom));
            base = format!("{}/{}", trimmed(custom), uri.bucket);
        }
    } else if settings.is_set("s3.accelerate") {
        base = format!("https://{}.s3-accelerate.amazonaws.com", uri.bucket);
        builder = builder.with_endpoint(&base).with_virtual_hosted_style_request(true);
    }
    let mut signed = !settings.is_set("s3.anonymous");
    match (settings.get("s3.key"), settings.get("s3.secret")) {
        (Some(key), Some(secret)) => {
            builder = builder.with_access_key_id(key).with_secret_access_key(secret);
            if let Some(token) = settings.get("s3.token") {
                builder = builder.with_token(token);
            }
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err(FetchError::permanent("only one of access key id and secret access key is set")
                .remedy("set both or neither"));
        }
        (None, None) => {
            let mut found = instance_credentials;
            for (setting, key) in [
                ("env.s3.web_identity", AmazonS3ConfigKey::WebIdentityTokenFile),
                ("env.s3.role", AmazonS3ConfigKey::RoleArn),
                ("env.s3.role_session", AmazonS3ConfigKey::RoleSessionName),
                ("env.s3.container_relative", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
                ("env.s3.container_full", AmazonS3ConfigKey::ContainerCredentialsFullUri),
                ("env.s3.container_token", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
            ] {
                if let Some(value) = settings.get(setting) {
                    builder = builder.with_config(key, value);
                    found = true;
                }
            }
            signed &= found;
        }
    }
    builder = builder.with_skip_signature(!signed).with_http_connector(connector);
    let store = builder.build().map_err(unusable)?;
    let provider = signed.then(|| Arc::clone(store.credentials()));
    Ok(Store { listing: Arc::new(store), auth: Auth::S3 { provider, region }, base: parse_base(&base)? })
}

fn open_gs(uri: &BucketUri, settings: &Settings<'_>, connector: Connector) -> Result<Store, FetchError> {
    let custom = settings.get("gs.endpoint").map(|text| endpoint(text, false)).transpose()?;
    let root = custom.as_ref().map_or("https://storage.googleapis.com", |url| trimmed(url));
    let base = format!("{root}/{}", uri.bucket);
    let instance_credentials = connector.instance_credentials;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&uri.bucket)
        .with_base_url(root)
        .with_retry(no_retries())
        .with_client_options(object_store::ClientOptions::new().with_allow_http(true))
        .with_http_connector(connector);
    let mut signed = !settings.is_set("gs.anonymous");
    match (settings.get("gs.json"), settings.get("env.gs.file")) {
        (Some(json), _) if signed => builder = builder.with_service_account_key(json),
        (None, Some(file)) if signed => builder = builder.with_application_credentials(file),
        _ => signed &= instance_credentials,
    }
    if !signed {
        let nobody = GcpCredential { bearer: String::new() };
        builder = builder.with_skip_signature(true).with_credentials(auth::fixed(nobody));
    }
    let store = builder.build().map_err(unusable)?;
    let provider = signed.then(|| Arc::clone(store.credentials()));
    Ok(Store { listing: Arc::new(store), auth: Auth::Gs(provider), base: parse_base(&base)? })
}

fn open_azure(uri: &BucketUri, settings: &Settings<'_>, connector: Connector) -> Result<Store, FetchError> {
    let sas_url = settings.get("az.sas_url").map(Url::parse).transpose();
    let sas_url = sas_url.map_err(|_| FetchError::permanent("sas_url of the storage secret is not a URL"))?;
    let sas_account = sas_url.as_ref().and_then(Url::host_str).and_then(|host| host.split('.').next());
    let account =
        uri.account.as_deref().or_else(|| settings.get("az.account")).or(sas_account).ok_or_else(|| {
            FetchError::permanent("the storage account is not known").remedy(
                "set AZURE_STORAGE_ACCOUNT_NAME, `account` of the secret, \
             or write abfss://container@account.dfs.core.windows.net/path",
            )
        })?;
    // A secret for one account must not sign requests to another that the URI names.
    if settings.get("az.account").is_some_and(|own| own != account) {
        return Err(FetchError::denied(format!(
            "the credentials belong to another storage account than {account}"
        )));
    }
    let own_endpoint = settings.get("az.endpoint").map(|text| endpoint(text, true)).transpose()?;
    let sas_endpoint = sas_url.as_ref().map(|url| url.origin().ascii_serialization());
    let root = own_endpoint
        .map(|url| trimmed(&url).to_owned())
        .or(sas_endpoint)
        .unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
    let base = format!("{root}/{}", uri.bucket);
    let instance_credentials = connector.instance_credentials;
    let mut builder = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_container_name(&uri.bucket)
        .with_endpoint(root)
        .with_allow_http(true)
        .with_retry(no_retries())
        .with_http_connector(connector);
    let sas = settings
        .get("az.sas")
        .map(str::to_owned)
        .or_else(|| sas_url.as_ref().and_then(Url::query).map(str::to_owned));
    let signed = if settings.is_set("az.anonymous") {
        false
    } else if let Some(key) = settings.get("az.key") {
        if !auth::is_base64(key) {
            return Err(FetchError::permanent("the account key is not base64")
                .remedy("copy the key as the portal shows it"));
        }
        builder = builder.with_access_key(key);
        true
    } else if let Some(sas) = sas {
        let pairs = split_sas(sas.trim_start_matches('?')).map_err(unusable)?;
        builder = builder.with_sas_authorization(pairs);
        true
    } else if let Some(token) = settings.get("az.token") {
        builder = builder.with_bearer_token_authorization(token);
        true
    } else {
        let mut found = instance_credentials;
        for (setting, key) in [
            ("az.tenant", AzureConfigKey::AuthorityId),
            ("az.client", AzureConfigKey::ClientId),
            ("az.client_secret", AzureConfigKey::ClientSecret),
            ("env.az.federated", AzureConfigKey::FederatedTokenFile),
        ] {
            if let Some(value) = settings.get(setting) {
                builder = builder.with_config(key, value);
                found |= matches!(setting, "az.client_secret" | "env.az.federated");
            }
        }
        found
    };
    let store = builder.with_skip_signature(!signed).build().map_err(unusable)?;
    let provider = signed.then(|| Arc::clone(store.credentials()));
    let auth = Auth::Azure { provider, account: account.to_owned() };
    Ok(Store { listing: Arc::new(store), auth, base: parse_base(&base)? })
}
