//! Removes credentials from definitions that are shown.

use crate::scheduler::{Model, storage_config::Config};

/// What replaces a credential.
const REDACTED: &str = "redacted";

/// Redacts the inline storage secret, and the credentials in the URI.
pub fn redact(model: &mut Model) {
    let Some(spec) = &mut model.model_spec else { return };
    spec.uri = redacted_uri(&spec.uri);
    let config = spec.storage_config.as_mut().and_then(|storage| storage.config.as_mut());
    if let Some(Config::StorageRcloneConfig(secret)) = config {
        REDACTED.clone_into(secret);
    }
}

/// The URI with its query, which may be a signature, and its password redacted.
pub fn redacted_uri(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, _)) => (rest, format!("?{REDACTED}")),
        None => (rest, String::new()),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        // The container of `abfss://container@account` is not a secret.
        Some((user, host)) if user.contains(':') || scheme.starts_with("http") => {
            format!("{REDACTED}@{host}")
        }
        _ => authority.to_owned(),
    };
    format!("{scheme}://{authority}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{ModelSpec, StorageConfig};

    #[test]
    fn credentials_of_uris_are_redacted() {
        for (uri, shown) in [
            ("/models/a?b", "/models/a?b"),
            ("s3://bucket/model", "s3://bucket/model"),
            ("https://host/m.onnx?X-Amz-Signature=abc&b=/c", "https://host/m.onnx?redacted"),
            ("https://host?sig=abc", "https://host?redacted"),
            ("https://user:password@host/m", "https://redacted@host/m"),
            ("https://token@host/m", "https://redacted@host/m"),
            ("abfss://container@account/folder", "abfss://container@account/folder"),
        ] {
            assert_eq!(redacted_uri(uri), shown);
            assert_eq!(redacted_uri(shown), shown, "redacting twice changes nothing");
        }
    }

    #[test]
    fn inline_secret_is_redacted_and_secret_name_is_not() {
        for (config, shown) in [
            (
                Config::StorageRcloneConfig("{\"key\":\"abc\"}".into()),
                Config::StorageRcloneConfig("redacted".into()),
            ),
            (Config::StorageSecretName("minio".into()), Config::StorageSecretName("minio".into())),
        ] {
            let storage_config = Some(StorageConfig { config: Some(config) });
            let spec = ModelSpec { uri: "s3://b".into(), storage_config, ..ModelSpec::default() };
            let mut model = Model { model_spec: Some(spec), ..Model::default() };
            redact(&mut model);
            assert_eq!(model.model_spec.unwrap().storage_config.unwrap().config, Some(shown));
        }
    }
}
