//! TLS and SASL, from the environment variables of Seldon: `KAFKA_CLIENT_*` for the certificate and credentials of the
//! client, `KAFKA_BROKER_*` for the authority that signed the broker's certificate.

use super::{Environment, SettingsError};
use std::{fmt, path::PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    pub tls: Option<Tls>,
    pub sasl: Option<Sasl>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The roots of the web when absent.
    pub ca: Option<PathBuf>,
    /// Certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sasl {
    pub mechanism: Mechanism,
    pub username: String,
    pub password: Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

/// A text that is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Security {
    pub(super) fn from_environment(environment: Environment<'_>) -> Result<Self, SettingsError> {
        let get = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
        let error = |message: String| Err(SettingsError::Security(message));
        let protocol =
            ["KAFKA_CLIENT_SECURITY_PROTOCOL", "KAFKA_SECURITY_PROTOCOL"].into_iter().find_map(get);
        let (tls, sasl) = match protocol.as_deref().unwrap_or("PLAINTEXT") {
            "PLAINTEXT" => (false, false),
            "SSL" => (true, false),
            "SASL_PLAINTEXT" => (false, true),
            "SASL_SSL" => (true, true),
            other => {
                return error(format!(
                    "KAFKA_CLIENT_SECURITY_PROTOCOL is {other:?}: use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
                ));
            }
        };
        if let Some(algorithm) = get("KAFKA_BROKER_TLS_ENDPOINT_IDENTIFICATION_ALGORITHM")
            && algorithm != "https"
        {
            return error(format!(
                "KAFKA_BROKER_TLS_ENDPOINT_IDENTIFICATION_ALGORITHM is {algorithm:?}: only https is supported, the \
                 broker's certificate must have its host name"
            ));
        }
        let secrets =
            ["KAFKA_CLIENT_TLS_SECRET_NAME", "KAFKA_BROKER_TLS_SECRET_NAME", "KAFKA_CLIENT_SASL_SECRET_NAME"];
        let location_of = |name: &str| match name {
            "KAFKA_CLIENT_TLS_SECRET_NAME" => "KAFKA_CLIENT_TLS_CRT_LOCATION",
            "KAFKA_BROKER_TLS_SECRET_NAME" => "KAFKA_BROKER_TLS_CA_LOCATION",
            _ => "KAFKA_CLIENT_SASL_PASSWORD_LOCATION",
        };
        for name in secrets {
            if get(name).is_some() && get(location_of(name)).is_none() {
                let location = location_of(name);
                return error(format!(
                    "{name} is set without {location}: mount the Secret, and set the path of its file"
                ));
            }
        }
        Ok(Self {
            tls: if tls { Some(Tls::from_environment(&get)?) } else { None },
            sasl: if sasl { Some(Sasl::from_environment(&get)?) } else { None },
        })
    }
}

impl Tls {
    fn from_environment(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let path = |name: &str| get(name).map(PathBuf::from);
        let ca = path("KAFKA_BROKER_TLS_CA_LOCATION").or_else(|| path("KAFKA_CLIENT_TLS_CA_LOCATION"));
        let identity = match (path("KAFKA_CLIENT_TLS_CRT_LOCATION"), path("KAFKA_CLIENT_TLS_KEY_LOCATION")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(SettingsError::Security(
                    "KAFKA_CLIENT_TLS_CRT_LOCATION and KAFKA_CLIENT_TLS_KEY_LOCATION belong together: set both or none"
                        .to_owned(),
                ));
            }
        };
        Ok(Self { ca, identity })
    }
}

impl Sasl {
    fn from_environment(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let needed = |name: &str| {
            get(name).ok_or_else(|| SettingsError::Security(format!("SASL needs {name}: set it")))
        };
        let mechanism = match get("KAFKA_CLIENT_SASL_MECHANISM").as_deref() {
            Some("PLAIN") => Mechanism::Plain,
            Some("SCRAM-SHA-256") => Mechanism::ScramSha256,
            None | Some("SCRAM-SHA-512") => Mechanism::ScramSha512,
            Some(other) => {
                return Err(SettingsError::Security(format!(
                    "KAFKA_CLIENT_SASL_MECHANISM is {other:?}: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
                )));
            }
        };
        let username = needed("KAFKA_CLIENT_SASL_USERNAME")?;
        let location = PathBuf::from(needed("KAFKA_CLIENT_SASL_PASSWORD_LOCATION")?);
        let password = std::fs::read_to_string(&location)
            .map_err(|error| SettingsError::Read { path: location, error })?;
        let password = Secret(password.trim_end_matches(['\r', '\n']).to_owned());
        Ok(Self { mechanism, username, password })
    }
}
