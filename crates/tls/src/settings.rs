//! Certificate file locations from flags and from Seldon's environment variables.

use rustls::pki_types::ServerName;
use std::path::PathBuf;

const PREFIX: &str = "CONTROL_PLANE";

/// Server certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate chain, leaf first.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// CA of client certificates; without it clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Client certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// CA of server certificates.
    pub ca: PathBuf,
    /// Client certificate and private key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Expected name in the server's certificate, if it is not the host.
    pub server_name: Option<ServerName<'static>>,
}

/// Invalid TLS settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SettingsError {
    #[error("{given} is set, and {missing} is not: {why}")]
    Missing { given: &'static str, missing: &'static str, why: &'static str },
    #[error("{variable} is \"{value}\": it can be PLAINTEXT or SSL")]
    Protocol { variable: String, value: String },
    #[error(
        "{0} names a Secret, which is not read: mount it and set {PREFIX}_…_TLS_CRT_LOCATION, …_KEY_LOCATION and …_CA_LOCATION"
    )]
    Secret(String),
    #[error("--tls-server-name \"{0}\" is neither a host name nor an IP address")]
    Name(String),
}

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ServerFiles {
    /// Resolves flags, then environment variables; `None` for plaintext. The variables apply only with
    /// `CONTROL_PLANE_SECURITY_PROTOCOL=SSL`, because charts always set the locations.
    pub fn resolve(
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, SettingsError> {
        let (certificate, key, client_ca) = match (certificate, key) {
            (None, None) if client_ca.is_some() => {
                return Err(missing("--tls-client-ca", "--tls-cert", "the server needs a certificate"));
            }
            (None, None) => {
                if !is_ssl("SERVER", environment)? {
                    return Ok(None);
                }
                let certificate = location("SERVER", "CRT", environment);
                let key = location("SERVER", "KEY", environment);
                // Clients are verified with their own CA, else with the shared one.
                let ca =
                    location("CLIENT", "CA", environment).or_else(|| location("SERVER", "CA", environment));
                (certificate, key, ca)
            }
            (certificate, key) => (certificate, key, client_ca),
        };
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key, client_ca })),
            (Some(_), None) => Err(missing("--tls-cert", "--tls-key", "a certificate needs its private key")),
            (None, Some(_)) => Err(missing("--tls-key", "--tls-cert", "a private key needs its certificate")),
            (None, None) => match secret_variable("SERVER", environment) {
                Some(variable) => Err(SettingsError::Secret(variable)),
                None => Err(missing(
                    "CONTROL_PLANE_SECURITY_PROTOCOL=SSL",
                    "CONTROL_PLANE_SERVER_TLS_CRT_LOCATION",
                    "TLS needs a certificate (or set --tls-cert)",
                )),
            },
        }
    }
}

impl ClientFiles {
    /// Resolves flags, then environment variables; `None` for plaintext.
    pub fn resolve(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        server_name: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, SettingsError> {
        let server_name = match server_name {
            None => None,
            Some(name) => {
                let invalid = |_| SettingsError::Name(name.to_owned());
                Some(ServerName::try_from(name.to_owned()).map_err(invalid)?)
            }
        };
        let why = "it verifies the scheduler's certificate";
        let (ca, certificate, key) = match (ca, certificate, key) {
            (None, None, None) if server_name.is_some() => {
                return Err(missing("--tls-server-name", "--tls-ca", why));
            }
            (None, None, None) => {
                if !is_ssl("CLIENT", environment)? {
                    return Ok(None);
                }
                let ca =
                    location("SERVER", "CA", environment).or_else(|| location("CLIENT", "CA", environment));
                (ca, location("CLIENT", "CRT", environment), location("CLIENT", "KEY", environment))
            }
            (None, Some(_), _) => return Err(missing("--tls-client-cert", "--tls-ca", why)),
            (None, None, Some(_)) => return Err(missing("--tls-client-key", "--tls-ca", why)),
            given => given,
        };
        let Some(ca) = ca else {
            return Err(match secret_variable("CLIENT", environment) {
                Some(variable) => SettingsError::Secret(variable),
                None => missing(
                    "CONTROL_PLANE_SECURITY_PROTOCOL=SSL",
                    "CONTROL_PLANE_SERVER_TLS_CA_LOCATION",
                    "it verifies the scheduler's certificate (or set --tls-ca)",
                ),
            });
        };
        let pair = "a client certificate needs its private key";
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(missing("--tls-client-cert", "--tls-client-key", pair)),
            (None, Some(_)) => return Err(missing("--tls-client-key", "--tls-client-cert", pair)),
        };
        Ok(Some(Self { ca, identity, server_name }))
    }
}

const fn missing(given: &'static str, missing: &'static str, why: &'static str) -> SettingsError {
    SettingsError::Missing { given, missing, why }
}

fn set(variable: &str, environment: Environment<'_>) -> Option<String> {
    environment(variable).filter(|value| !value.is_empty())
}

fn location(side: &str, what: &str, environment: Environment<'_>) -> Option<PathBuf> {
    set(&format!("{PREFIX}_{side}_TLS_{what}_LOCATION"), environment).map(PathBuf::from)
}

fn secret_variable(side: &str, environment: Environment<'_>) -> Option<String> {
    let variable = format!("{PREFIX}_{side}_TLS_SECRET_NAME");
    set(&variable, environment).map(|_| variable)
}

/// The side's own variable overrides the shared one.
fn is_ssl(side: &str, environment: Environment<'_>) -> Result<bool, SettingsError> {
    for variable in [format!("{PREFIX}_{side}_SECURITY_PROTOCOL"), format!("{PREFIX}_SECURITY_PROTOCOL")] {
        match set(&variable, environment).as_deref() {
            None => {}
            Some("SSL") => return Ok(true),
            Some("PLAINTEXT") => return Ok(false),
            Some(value) => return Err(SettingsError::Protocol { variable, value: value.to_owned() }),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let set: Vec<(String, String)> = set.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        move |name| set.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
    }

    const LOCATIONS: [(&str, &str); 5] = [
        ("CONTROL_PLANE_SERVER_TLS_CRT_LOCATION", "/cps/tls.crt"),
        ("CONTROL_PLANE_SERVER_TLS_KEY_LOCATION", "/cps/tls.key"),
        ("CONTROL_PLANE_SERVER_TLS_CA_LOCATION", "/cps/ca.crt"),
        ("CONTROL_PLANE_CLIENT_TLS_CRT_LOCATION", "/cpc/tls.crt"),
        ("CONTROL_PLANE_CLIENT_TLS_KEY_LOCATION", "/cpc/tls.key"),
    ];

    fn with(more: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        environment(&[&LOCATIONS, more].concat())
    }

    #[test]
    fn environment_applies_only_with_protocol_ssl() {
        let path = |p: &str| Some(PathBuf::from(p));
        for (more, is_tls) in [
            (&[][..], false),
            (&[("CONTROL_PLANE_SECURITY_PROTOCOL", "PLAINTEXT")], false),
            (&[("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL")], true),
            (&[("CONTROL_PLANE_SERVER_SECURITY_PROTOCOL", "SSL")], true),
            (
                &[
                    ("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL"),
                    ("CONTROL_PLANE_SERVER_SECURITY_PROTOCOL", "PLAINTEXT"),
                ],
                false,
            ),
        ] {
            let server = ServerFiles::resolve(None, None, None, &with(more)).unwrap();
            assert_eq!(server.is_some(), is_tls, "{more:?}");
            if let Some(files) = server {
                assert_eq!(files.client_ca, path("/cps/ca.crt"));
                assert_eq!(files.certificate, PathBuf::from("/cps/tls.crt"));
            }
        }
        let both = with(&[
            ("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL"),
            ("CONTROL_PLANE_CLIENT_TLS_CA_LOCATION", "/cpc/ca.crt"),
        ]);
        let server = ServerFiles::resolve(None, None, None, &both).unwrap().unwrap();
        assert_eq!(server.client_ca, path("/cpc/ca.crt"));
        let client = ClientFiles::resolve(None, None, None, None, &both).unwrap().unwrap();
        assert_eq!(client.ca, PathBuf::from("/cps/ca.crt"));
        assert_eq!(client.identity, Some(("/cpc/tls.crt".into(), "/cpc/tls.key".into())));
    }

    #[test]
    fn flags_override_environment_and_must_be_complete() {
        let (cert, key, ca) = (|| Some("c".into()), || Some("k".into()), || Some("a".into()));
        let none = environment(&[]);
        let server =
            |c, k, a| ServerFiles::resolve(c, k, a, &with(&[("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL")]));
        assert_eq!(
            server(cert(), key(), None).unwrap().unwrap(),
            ServerFiles { certificate: "c".into(), key: "k".into(), client_ca: None }
        );
        for (result, message) in [
            (server(cert(), None, None).map(|_| ()), "--tls-cert is set, and --tls-key is not"),
            (server(None, key(), None).map(|_| ()), "--tls-key is set, and --tls-cert is not"),
            (server(None, None, ca()).map(|_| ()), "--tls-client-ca is set, and --tls-cert is not"),
            (
                ClientFiles::resolve(None, cert(), key(), None, &none).map(|_| ()),
                "--tls-client-cert is set, and --tls-ca",
            ),
            (
                ClientFiles::resolve(ca(), cert(), None, None, &none).map(|_| ()),
                "--tls-client-cert is set, and --tls-client-key",
            ),
            (
                ClientFiles::resolve(ca(), None, key(), None, &none).map(|_| ()),
                "--tls-client-key is set, and --tls-client-cert",
            ),
            (
                ClientFiles::resolve(None, None, None, Some("h"), &none).map(|_| ()),
                "--tls-server-name is set",
            ),
            (
                ClientFiles::resolve(ca(), None, None, Some("a b"), &none).map(|_| ()),
                "--tls-server-name \"a b\"",
            ),
        ] {
            let got = result.unwrap_err().to_string();
            assert!(got.starts_with(message), "{got}");
        }
        assert!(ClientFiles::resolve(ca(), None, None, None, &none).unwrap().unwrap().identity.is_none());
    }

    #[test]
    fn invalid_environment_names_the_variable() {
        let protocol = ("CONTROL_PLANE_SECURITY_PROTOCOL", "SASL_SSL");
        let ssl = ("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL");
        let secret = ("CONTROL_PLANE_SERVER_TLS_SECRET_NAME", "seldon-controlplane-server");
        for (set, message) in [
            (&[protocol][..], "CONTROL_PLANE_SECURITY_PROTOCOL is \"SASL_SSL\": it can be PLAINTEXT or SSL"),
            (
                &[ssl],
                "CONTROL_PLANE_SECURITY_PROTOCOL=SSL is set, and CONTROL_PLANE_SERVER_TLS_CRT_LOCATION is not",
            ),
            (&[ssl, secret], "CONTROL_PLANE_SERVER_TLS_SECRET_NAME names a Secret"),
        ] {
            let got = ServerFiles::resolve(None, None, None, &environment(set)).unwrap_err().to_string();
            assert!(got.starts_with(message), "{got}");
        }
    }
}
