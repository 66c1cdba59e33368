//! Credentials: from a Secret-shaped file or from the environment, and never printed.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// A value that neither `Debug` nor `Display` shows.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hidden(String);

impl Hidden {
    /// Hides a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the request that needs it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Which kind of store a remote is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    S3,
    Gs,
    Azure,
    Hf,
    Http,
}

/// The credentials of a storage secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret {
    name: Option<String>,
    provider: Option<Provider>,
    /// Settings under our own names (`settings`), whichever spelling they were written in.
    values: BTreeMap<&'static str, Hidden>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .field("provider", &self.provider)
            .field("values", &self.values)
            .finish()
    }
}

/// A storage secret that cannot be used. Never repeats its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SecretError {
    #[error("the storage secret is neither JSON nor YAML (line {line}, column {column})")]
    Syntax { line: u64, column: u64 },
    #[error(
        "the storage secret must be a mapping: {{type, name, parameters}}, a Kubernetes Secret, or keys such as AWS_ACCESS_KEY_ID"
    )]
    NotAMapping,
    #[error("`{field}` in the storage secret {why}")]
    Field { field: String, why: &'static str },
    #[error(
        "the storage secret has a `type` that is not supported; use s3, google cloud storage, azureblob, http or huggingface"
    )]
    UnknownType,
    #[error(
        "the storage secret has no known key; it needs {{type, name, parameters}} or keys such as AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY or HF_TOKEN"
    )]
    Nothing,
}

/// Our name for a setting, and the spellings of it: an environment variable, a KServe key, `type:rclone parameter`.
/// `env.` marks files and addresses on this machine, which only the environment may name.
const SETTINGS: &[(&str, &[&str])] = &[
    ("s3.key", &["AWS_ACCESS_KEY_ID", "awsAccessKeyID", "s3:access_key_id"]),
    ("s3.secret", &["AWS_SECRET_ACCESS_KEY", "awsSecretAccessKey", "s3:secret_access_key"]),
    ("s3.token", &["AWS_SESSION_TOKEN", "s3:session_token"]),
    ("s3.region", &["AWS_REGION", "AWS_DEFAULT_REGION", "serving.kserve.io/s3-region", "s3:region"]),
    (
        "s3.endpoint",
        &[
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL",
            "S3_ENDPOINT",
            "serving.kserve.io/s3-endpoint",
            "s3:endpoint",
        ],
    ),
    ("s3.https", &["S3_USE_HTTPS", "serving.kserve.io/s3-usehttps"]),
    (
        "s3.anonymous",
        &[
            "AWS_ANONYMOUS_CREDENTIAL",
            "awsAnonymousCredential",
            "serving.kserve.io/s3-useanoncredential",
            "s3:anonymous",
        ],
    ),
    ("s3.path_style", &["s3:force_path_style"]),
    ("s3.virtual_host", &["S3_USER_VIRTUAL_BUCKET", "serving.kserve.io/s3-usevirtualbucket"]),
    ("s3.accelerate", &["S3_USE_ACCELERATE", "serving.kserve.io/s3-useaccelerate"]),
    ("s3.env", &["s3:env_auth"]),
    ("env.s3.web_identity", &["AWS_WEB_IDENTITY_TOKEN_FILE"]),
    ("env.s3.role", &["AWS_ROLE_ARN"]),
    ("env.s3.role_session", &["AWS_ROLE_SESSION_NAME"]),
    ("env.s3.container_relative", &["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]),
    ("env.s3.container_full", &["AWS_CONTAINER_CREDENTIALS_FULL_URI"]),
    ("env.s3.container_token", &["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]),
    ("gs.json", &["gcloud-application-credentials.json", "gs:service_account_credentials"]),
    ("env.gs.file", &["GOOGLE_APPLICATION_CREDENTIALS", "gs:service_account_file"]),
    ("gs.anonymous", &["gs:anonymous"]),
    ("gs.endpoint", &["STORAGE_EMULATOR_HOST", "gs:endpoint"]),
    ("gs.env", &["gs:env_auth"]),
    ("az.account", &["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", "az:account"]),
    ("az.key", &["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY", "az:key"]),
    ("az.sas", &["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"]),
    ("az.token", &["AZURE_ACCESS_TOKEN"]),
    ("az.sas_url", &["az:sas_url"]),
    ("az.endpoint", &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT_URL", "az:endpoint"]),
    ("az.tenant", &["AZURE_TENANT_ID", "AZ_TENANT_ID", "az:tenant"]),
    ("az.client", &["AZURE_CLIENT_ID", "AZ_CLIENT_ID", "az:client_id"]),
    ("az.client_secret", &["AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET", "az:client_secret"]),
    ("env.az.federated", &["AZURE_FEDERATED_TOKEN_FILE"]),
    ("az.anonymous", &["az:anonymous"]),
    ("az.env", &["az:env_auth"]),
    ("hf.token", &["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hf:token"]),
    ("hf.endpoint", &["HF_ENDPOINT", "hf:endpoint"]),
    ("http.url", &["https-host", "http:url"]),
    ("http.headers", &["headers", "http:headers"]),
    ("http.token", &["http:bearer_token"]),
];

impl Secret {
    /// Reads a secret as Seldon, KServe or Kubernetes write it, in JSON or YAML.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let document = document(text)?;
        let Value::Object(map) = &document else { return Err(SecretError::NotAMapping) };
        if map.get("kind").and_then(Value::as_str) == Some("Secret") {
            return Self::from_kubernetes(map);
        }
        if map.contains_key("type") {
            return Self::from_rclone(map);
        }
        let mut secret = Self::default();
        secret.take_flat(map)?;
        secret.checked()
    }

    /// What the environment offers, read through `get`.
    pub(crate) fn from_env(get: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut secret = Self::default();
        for (ours, spellings) in SETTINGS {
            let found = spellings
                .iter()
                .filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
                .find_map(|name| get(name).filter(|value| !value.is_empty()));
            if let Some(value) = found {
                secret.values.insert(ours, Hidden(value));
            }
        }
        secret
    }

    fn from_kubernetes(map: &serde_json::Map<String, Value>) -> Result<Self, SecretError> {
        let mut flat = serde_json::Map::new();
        let annotations = map.get("metadata").and_then(|metadata| metadata.get("annotations"));
        for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
            if key.starts_with("serving.kserve.io/") {
                flat.insert(key.clone(), value.clone());
            }
        }
        for (key, value) in map.get("data").and_then(Value::as_object).into_iter().flatten() {
            let bad = |why| SecretError::Field { field: format!("data.{key}"), why };
            let encoded: String = value.as_str().unwrap_or_default().split_whitespace().collect();
            let bytes = STANDARD.decode(encoded).map_err(|_| bad("is not base64"))?;
            let decoded = String::from_utf8(bytes).map_err(|_| bad("is not UTF-8"))?;
            flat.insert(key.clone(), Value::String(decoded));
        }
        for (key, value) in map.get("stringData").and_then(Value::as_object).into_iter().flatten() {
            flat.insert(key.clone(), value.clone());
        }
        // Seldon keeps the whole rclone remote as one value, under a key of any name.
        for value in flat.values().filter_map(Value::as_str) {
            if let Ok(Value::Object(inner)) = document(value)
                && inner.contains_key("type")
                && inner.contains_key("parameters")
            {
                return Self::from_rclone(&inner);
            }
        }
        let mut secret = Self::default();
        secret.take_flat(&flat)?;
        secret.checked()
    }

    fn from_rclone(map: &serde_json::Map<String, Value>) -> Result<Self, SecretError> {
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
        let (provider, prefix) = match kind.as_str() {
            "s3" => (Provider::S3, "s3"),
            "google cloud storage" | "gcs" | "gs" | "google" => (Provider::Gs, "gs"),
            "azureblob" | "azure" | "az" => (Provider::Azure, "az"),
            "huggingface" | "hf" => (Provider::Hf, "hf"),
            "http" | "https" => (Provider::Http, "http"),
            _ => return Err(SecretError::UnknownType),
        };
        let name = match map.get("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.clone()),
            Some(_) => return Err(SecretError::Field { field: "name".into(), why: "must be text" }),
        };
        let mut secret = Self { name, provider: Some(provider), values: BTreeMap::new() };
        let parameters = match map.get("parameters") {
            None | Some(Value::Null) => return Ok(secret),
            Some(Value::Object(parameters)) => parameters,
            Some(_) => {
                return Err(SecretError::Field { field: "parameters".into(), why: "must be a mapping" });
            }
        };
        for (key, value) in parameters {
            let spelled = format!("{prefix}:{key}");
            secret.take(&spelled, key, value)?;
        }
        Ok(secret)
    }

    fn take_flat(&mut self, map: &serde_json::Map<String, Value>) -> Result<(), SecretError> {
        map.iter().try_for_each(|(key, value)| self.take(key, key, value))
    }

    fn take(&mut self, spelled: &str, key: &str, value: &Value) -> Result<(), SecretError> {
        let Some((ours, _)) = SETTINGS.iter().find(|(_, spellings)| spellings.contains(&spelled)) else {
            return Ok(());
        };
        if ours.starts_with("env.") {
            let why = "names a file or an address on the serving machine, which only the environment may do; \
                       put the content into the secret";
            return Err(SecretError::Field { field: key.to_owned(), why });
        }
        let text = match value {
            Value::String(text) => text.trim().to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Null => return Ok(()),
            Value::Object(_) | Value::Array(_) if *ours == "gs.json" => value.to_string(),
            Value::Object(_) | Value::Array(_) => {
                return Err(SecretError::Field {
                    field: key.to_owned(),
                    why: "must be text, not a mapping or list",
                });
            }
        };
        // Header values are made of these; a line break would end the header, or the process.
        if !matches!(*ours, "gs.json" | "http.headers") && !text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            return Err(SecretError::Field {
                field: key.to_owned(),
                why: "has a character that is not printable ASCII",
            });
        }
        if !text.is_empty() {
            self.values.insert(ours, Hidden(text));
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, SecretError> {
        if self.values.is_empty() { Err(SecretError::Nothing) } else { Ok(self) }
    }

    /// The name of the remote that this secret defines.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn provider(&self) -> Option<Provider> {
        self.provider
    }

    pub(crate) fn get(&self, setting: &str) -> Option<&str> {
        self.values.get(setting).map(Hidden::expose)
    }

    pub(crate) fn is_set(&self, setting: &str) -> bool {
        self.get(setting)
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1" | "yes"))
    }

    /// Whether any setting of a store (`s3.`, `gs.`, …) is present.
    pub(crate) fn has_any(&self, prefix: &str) -> bool {
        self.values.keys().any(|key| key.starts_with(prefix))
    }

    /// A value that differs for different credentials and does not reveal them.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = crate::digest::Sha256::new();
        for (key, value) in &self.values {
            for part in [key.as_bytes(), value.0.as_bytes()] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        crate::digest::hex(&hash.finish())
    }
}

/// JSON or YAML as one value. The parser's own message quotes the text, so only its place is kept.
fn document(text: &str) -> Result<Value, SecretError> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    serde_saphyr::from_str::<Value>(text).map_err(|error| {
        let location = error.location();
        let (line, column) = location.map_or((0, 0), |place| (place.line(), place.column()));
        SecretError::Syntax { line, column }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "CANARY-7f3a";

    #[test]
    fn reads_every_shape() {
        let json = format!(
            r#"{{"type":"s3","name":"minio","parameters":{{"provider":"Minio","env_auth":false,"access_key_id":"AK","secret_access_key":"{TOKEN}","endpoint":"http://minio:9000","region":"eu"}}}}"#
        );
        let yaml = format!(
            "type: s3\nname: minio\nparameters:\n  provider: Minio\n  env_auth: false\n  access_key_id: AK\n  secret_access_key: {TOKEN}\n  endpoint: http://minio:9000\n  region: eu\n"
        );
        let encoded = STANDARD.encode(&json);
        let k8s = format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: x\ndata:\n  s3: {encoded}\n");
        let k8s_string = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: x}}\ntype: Opaque\nstringData:\n  minio: |\n    {}\n",
            yaml.trim_end().replace('\n', "\n    ")
        );
        for text in [&json, &yaml, &k8s, &k8s_string] {
            let secret = Secret::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(secret.name(), Some("minio"), "{text}");
            assert_eq!(secret.provider(), Some(Provider::S3));
            assert_eq!(secret.get("s3.secret"), Some(TOKEN));
            assert_eq!(secret.get("s3.endpoint"), Some("http://minio:9000"));
            assert!(!secret.is_set("s3.env"));
            assert!(!format!("{secret:?} {secret:#?}").contains(TOKEN));
        }
        let kserve = format!(
            "kind: Secret\nmetadata:\n  annotations:\n    serving.kserve.io/s3-endpoint: minio:9000\n    serving.kserve.io/s3-usehttps: '0'\ndata:\n  AWS_ACCESS_KEY_ID: {}\n  AWS_SECRET_ACCESS_KEY: {}\n",
            STANDARD.encode("AK"),
            STANDARD.encode(TOKEN)
        );
        let secret = Secret::parse(&kserve).unwrap();
        assert_eq!((secret.get("s3.key"), secret.get("s3.endpoint")), (Some("AK"), Some("minio:9000")));
        let gs =
            Secret::parse("type: google cloud storage\nname: gs\nparameters:\n  anonymous: true\n").unwrap();
        assert!(gs.is_set("gs.anonymous") && gs.provider() == Some(Provider::Gs));
        let nested = Secret::parse(
            r#"{"type":"gcs","parameters":{"service_account_credentials":{"private_key":"x"}}}"#,
        )
        .unwrap();
        assert!(nested.get("gs.json").unwrap().contains("private_key"));
        let azure =
            Secret::parse("{type: azureblob, name: az, parameters: {account: acct, key: a2V5}}").unwrap();
        assert_eq!((azure.get("az.account"), azure.get("az.key")), (Some("acct"), Some("a2V5")));
        assert_eq!(Secret::parse("HF_TOKEN: hf_x").unwrap().get("hf.token"), Some("hf_x"));
    }

    #[test]
    fn errors_never_contain_secret_values() {
        let table: &[(String, &str)] = &[
            (format!("a: [{TOKEN}"), "neither JSON nor YAML"),
            (format!("\"{TOKEN}"), "neither JSON nor YAML"),
            (format!("- {TOKEN}"), "must be a mapping"),
            (TOKEN.to_owned(), "must be a mapping"),
            (format!("type: {TOKEN}\nparameters: {{}}"), "not supported"),
            (format!("type: s3\nparameters: {TOKEN}"), "`parameters`"),
            (format!("type: s3\nparameters: {{secret_access_key: [{TOKEN}]}}"), "`secret_access_key`"),
            (format!("type: s3\nparameters: {{secret_access_key: \"{TOKEN}\\nX: y\"}}"), "printable"),
            (format!("kind: Secret\ndata: {{AWS_ACCESS_KEY_ID: \"{TOKEN}!\"}}"), "not base64"),
            (format!("password: {TOKEN}"), "no known key"),
            (String::new(), "must be a mapping"),
        ];
        for (text, part) in table {
            let error = Secret::parse(text).expect_err(text);
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(!format!("{error} {error:?}").contains(TOKEN), "{text}: {error:?}");
        }
    }

    #[test]
    fn environment_and_fingerprint() {
        let env = |name: &str| (name == "AWS_SECRET_ACCESS_KEY").then(|| TOKEN.to_owned());
        let secret = Secret::from_env(&env);
        assert_eq!(secret.get("s3.secret"), Some(TOKEN));
        assert!(!secret.fingerprint().contains(TOKEN));
        assert_ne!(secret.fingerprint(), Secret::default().fingerprint());
    }
}
