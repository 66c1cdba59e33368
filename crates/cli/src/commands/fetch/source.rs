//! URIs and environment variables as KServe writes them.

use gantry_artifacts::{Secret, Uri};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, path::Path};

/// The URI without its query, which may be a signature.
pub(super) fn shown(uri: &str) -> String {
    let plain = uri.split(['?', '#']).next().unwrap_or(uri);
    let plain: String = plain.chars().filter(|c| !c.is_control()).take(500).collect();
    // User names and passwords in a URI are rejected later.
    match (plain.find("://"), plain.find('@')) {
        (Some(scheme), Some(at))
            if at > scheme && !plain.starts_with("hf:") && !plain.starts_with("abfs") =>
        {
            format!(
                "{}***{}",
                plain.get(..scheme + 3).unwrap_or_default(),
                plain.get(at..).unwrap_or_default()
            )
        }
        _ => plain,
    }
}

/// Parses a URI in KServe's spelling.
pub(super) fn parse(uri: &str) -> Result<Uri, String> {
    let scheme = uri.split_once("://").map_or("", |(scheme, _)| scheme);
    let remedy = match scheme {
        "pvc" => "the volume is mounted into the pod, not downloaded: use file:// with its path",
        "oci" | "oci+native" | "oci+fetch" => {
            "an image is mounted as a volume, or runs beside the server as a modelcar"
        }
        "hdfs" | "webhdfs" | "modelscope" => {
            "copy the model to S3, Google Cloud Storage, Azure, Hugging Face or HTTP"
        }
        "http" | "https" if uri.to_ascii_lowercase().ends_with(".git") => "name a file, or use hf://",
        _ => "",
    };
    if !remedy.is_empty() {
        return Err(format!("{scheme}:// is not supported here: {remedy}"));
    }
    let spelled = azure(uri).or_else(|| hugging_face(uri));
    Uri::parse(spelled.as_deref().unwrap_or(uri)).map_err(|error| error.to_string())
}

/// `https://account.blob.core.windows.net/container/path`, without a signature.
fn azure(uri: &str) -> Option<String> {
    let (host, path) = uri.strip_prefix("https://")?.split_once('/')?;
    let account = host.strip_suffix(".blob.core.windows.net")?;
    if path.contains('?') {
        return None;
    }
    let (container, path) = path.split_once('/').unwrap_or((path, ""));
    Some(format!("abfss://{container}@{account}.dfs.core.windows.net/{path}"))
}

/// `hf://organisation/model:revision`
fn hugging_face(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("hf://")?;
    let (model, revision) = rest.split_once(':')?;
    (!revision.contains('/')).then(|| format!("hf://{model}@{revision}"))
}

/// Environment variables, with the storage specification of an InferenceService over them.
pub(super) struct Environment {
    values: BTreeMap<&'static str, String>,
    /// The bucket of the storage specification.
    bucket: Option<String>,
    get: fn(&str) -> Option<String>,
}

/// The scheme of a URI whose bucket is in the storage specification.
const PLACEHOLDER: &str = "<scheme-placeholder>://";
/// Secrets with headers for HTTP hosts.
const MAX_HTTP_SECRETS: usize = 16;

/// Keys of a storage specification and the variables that they stand for.
const STORAGE_KEYS: [(&str, &str); 6] = [
    ("endpoint_url", "AWS_ENDPOINT_URL"),
    ("access_key_id", "AWS_ACCESS_KEY_ID"),
    ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("region", "AWS_REGION"),
    ("default_region", "AWS_DEFAULT_REGION"),
    ("anonymous", "AWS_ANONYMOUS_CREDENTIAL"),
];

impl Environment {
    pub(super) fn read(get: fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        if let Some(anonymous) = get("awsAnonymousCredential") {
            values.insert("AWS_ANONYMOUS_CREDENTIAL", anonymous);
        }
        let mut specification = Map::new();
        for variable in ["STORAGE_CONFIG", "STORAGE_OVERRIDE_CONFIG"] {
            let Some(text) = get(variable).filter(|text| !text.trim().is_empty()) else { continue };
            // The content is a credential: its parse error is not shown.
            let Ok(Value::Object(fields)) = serde_json::from_str(&text) else {
                return Err(format!("{variable} is not a JSON object"));
            };
            specification.extend(fields);
        }
        match specification.get("type").and_then(Value::as_str) {
            None | Some("s3") => {}
            Some(other) => return Err(format!("storage of type {other:?} is not supported: use s3")),
        }
        for (key, variable) in STORAGE_KEYS {
            match specification.get(key) {
                Some(Value::String(text)) => drop(values.insert(variable, text.clone())),
                Some(other @ (Value::Bool(_) | Value::Number(_))) => {
                    values.insert(variable, other.to_string().to_ascii_lowercase());
                }
                _ => {}
            }
        }
        let bucket = specification.get("bucket").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { values, bucket, get })
    }

    /// The URI of an artifact; its bucket may be in the storage specification.
    pub(super) fn parse(&self, uri: &str) -> Result<Uri, String> {
        let Some(path) = uri.strip_prefix(PLACEHOLDER) else { return parse(uri) };
        let bucket = self.bucket.as_deref().filter(|bucket| !bucket.is_empty());
        let bucket = bucket
            .ok_or("storage of type s3 has no bucket: set it in the Secret or in storage.parameters")?;
        parse(&format!("s3://{bucket}/{path}"))
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.values.get(name).cloned().or_else(|| (self.get)(name))
    }

    pub(super) fn asks_for_unverified_tls(&self) -> bool {
        self.get("S3_VERIFY_SSL").is_some_and(|v| matches!(v.to_ascii_lowercase().as_str(), "0" | "false"))
    }

    /// Certificates of private authorities.
    pub(super) fn authorities(&self) -> Result<Option<Vec<u8>>, String> {
        let mounted = self.get("CA_BUNDLE_VOLUME_MOUNT_POINT").map(|point| format!("{point}/cabundle.crt"));
        let mounted = mounted.filter(|file| Path::new(file).exists());
        let Some(file) = self.get("AWS_CA_BUNDLE").filter(|file| !file.is_empty()).or(mounted) else {
            return Ok(None);
        };
        std::fs::read(&file)
            .map(Some)
            .map_err(|error| format!("cannot read the certificates in {file}: {error}"))
    }

    /// Headers for the host of an HTTP source: the variable `{host}-headers` has them as JSON, or those of a Secret of this
    /// host, which the operator passes on without reading it.
    pub(super) fn http_secret(&self, uri: &Uri) -> Result<Option<Secret>, String> {
        let Uri::Http(http) = uri else { return Ok(None) };
        let host = http.host();
        let named = |index: &usize| {
            self.get(&format!("GANTRY_HTTPS_HOST_{index}")).is_some_and(|h| is_host(&h, host))
        };
        let of_secret = || {
            let index = (0..MAX_HTTP_SECRETS).find(named)?;
            self.get(&format!("GANTRY_HTTPS_HEADERS_{index}"))
        };
        let Some(headers) = self.get(&format!("{host}-headers")).or_else(of_secret) else { return Ok(None) };
        let secret = serde_json::json!({ "https-host": host, "headers": headers }).to_string();
        Secret::parse(&secret).map(Some).map_err(|error| error.to_string())
    }
}

/// Whether a Secret is for this host; it may have a scheme and a path.
fn is_host(named: &str, host: &str) -> bool {
    let named = named.trim();
    let named = named.split_once("://").map_or(named, |(_, rest)| rest);
    let named = named.split(['/', ':']).next().unwrap_or_default();
    named.eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_kserve_are_understood() {
        for (uri, expected) in [
            ("s3://b/iris", Ok("s3://b/iris")),
            ("gs://b/iris", Ok("gs://b/iris")),
            ("https://host/model.onnx", Ok("https://host/model.onnx")),
            (
                "https://acct.blob.core.windows.net/models/iris",
                Ok("abfss://models@acct.dfs.core.windows.net/iris"),
            ),
            ("hf://org/model:main", Ok("hf://org/model@main")),
            ("file:///mnt/pvc/iris", Ok("/mnt/pvc/iris")),
            ("/mnt/pvc/iris", Ok("/mnt/pvc/iris")),
            ("pvc://claim/iris", Err("pvc:// is not supported here")),
            ("oci://registry/image", Err("oci:// is not supported here")),
            ("hdfs://x/y", Err("hdfs:// is not supported here")),
            ("https://host/repo.git", Err("https:// is not supported here")),
            ("ftp://host/x", Err("ftp")),
            ("", Err("empty")),
        ] {
            match (parse(uri).map(|uri| uri.to_string()), expected) {
                (Ok(parsed), Ok(expected)) => assert_eq!(parsed, expected, "{uri}"),
                (Err(error), Err(part)) => assert!(error.contains(part), "{uri}: {error}"),
                (parsed, expected) => panic!("{uri}: {parsed:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn shown_uri_has_no_credentials() {
        for (uri, expected) in [
            ("https://host/m.onnx?sig=secret", "https://host/m.onnx"),
            ("https://user:secret@host/m.onnx", "https://***@host/m.onnx"),
            ("hf://org/model@main", "hf://org/model@main"),
            ("s3://b/a\nb", "s3://b/ab"),
        ] {
            assert_eq!(shown(uri), expected);
        }
    }

    #[test]
    fn storage_specification_is_over_the_environment() {
        let environment = Environment::read(|name| {
            Some(match name {
                "STORAGE_CONFIG" => {
                    r#"{"type":"s3","access_key_id":"key","secret_access_key":"x","endpoint_url":"http://a","anonymous":"False"}"#
                        .into()
                }
                "STORAGE_OVERRIDE_CONFIG" => r#"{"endpoint_url":"http://b","bucket":"models"}"#.into(),
                "AWS_ACCESS_KEY_ID" | "AWS_DEFAULT_REGION" => "environment".into(),
                _ => return None,
            })
        })
        .unwrap();
        for (name, expected) in [
            ("AWS_ACCESS_KEY_ID", Some("key")),
            ("AWS_ENDPOINT_URL", Some("http://b")),
            ("AWS_DEFAULT_REGION", Some("environment")),
            ("HF_TOKEN", None),
        ] {
            assert_eq!(environment.get(name).as_deref(), expected, "{name}");
        }
        assert_eq!(environment.parse("<scheme-placeholder>://iris").unwrap().to_string(), "s3://models/iris");
        let without = Environment::read(|_| None).unwrap().parse("<scheme-placeholder>://iris");
        assert!(without.unwrap_err().contains("has no bucket"));
        let broken = Environment::read(|name| (name == "STORAGE_CONFIG").then(|| "secret".into()));
        assert_eq!(broken.err().unwrap(), "STORAGE_CONFIG is not a JSON object");
        let other = Environment::read(|name| (name == "STORAGE_CONFIG").then(|| r#"{"type":"hdfs"}"#.into()));
        assert_eq!(other.err().unwrap(), "storage of type \"hdfs\" is not supported: use s3");
    }

    #[test]
    fn headers_of_a_secret_are_for_its_host() {
        let environment = Environment::read(|name| {
            Some(match name {
                "GANTRY_HTTPS_HOST_0" => "https://other.test".into(),
                "GANTRY_HTTPS_HEADERS_0" => "{\"a\": \"0\"}".into(),
                "GANTRY_HTTPS_HOST_1" => "models.test".into(),
                "GANTRY_HTTPS_HEADERS_1" => "{\"a\": \"1\"}".into(),
                _ => return None,
            })
        })
        .unwrap();
        for (uri, expected) in [
            ("https://models.test/a", true),
            ("https://other.test/a", true),
            ("https://evil-models.test/a", false),
            ("s3://models.test/a", false),
        ] {
            let secret = environment.http_secret(&parse(uri).unwrap()).unwrap();
            assert_eq!(secret.is_some(), expected, "{uri}");
        }
    }
}
