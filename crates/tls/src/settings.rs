//! Which files, from flags and from the environment variables that Seldon's components read.

use rustls::pki_types::ServerName;
use std::path::PathBuf;

/// How the control plane's variables begin.
const PREFIX: &str = "CONTROL_PLANE";

/// The files of the side that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, followed by those that lead to the CA.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The CA that clients must have their certificates from; without it nobody has to show one.
    pub client_ca: Option<PathBuf>,
}

/// The files of the side that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The CA that servers must have their certificates from.
    pub ca: PathBuf,
    /// Certificate and private key to show to a server that asks.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be for, if it is not the host that is connected to.
    pub server_name: Option<ServerName<'static>>,
}

/// What is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Something that goes with what is there is not.
    #[error("{given} is set, and {missing} is not: {why}")]
    Missing {
        /// What is set.
        given: &'static str,
        /// What is not.
        missing: &'static str,
        /// Why it is needed.
        why: &'static str,
    },
    /// A protocol that there is not.
    #[error("{variable} is \"{value}\": it can be PLAINTEXT or SSL")]
    Protocol {
        /// Where it stands.
        variable: String,
        /// What stands there.
        value: String,
    },
    /// The certificates are in Kubernetes, and nobody here reads them there.
    #[error(
        "{0} names a Secret: mount it, and name its files with {PREFIX}_…_TLS_CRT_LOCATION, …_KEY_LOCATION and …_CA_LOCATION"
    )]
    Secret(String),
    /// Not a name that a certificate can be for.
    #[error("--tls-server-name \"{0}\" is neither a host's name nor an address")]
    Name(String),
}

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ServerFiles {
    /// What the flags say, else the environment; `None` for plaintext. The environment counts only where it says
    /// `CONTROL_PLANE_SECURITY_PROTOCOL=SSL`, because charts set the locations in any case.
    pub fn resolve(
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_ca: Option<PathBuf>,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, SettingsError> {
        let (certificate, key, client_ca) = match (certificate, key) {
            (None, None) if client_ca.is_some() => {
                return Err(missing(
                    "--tls-client-ca",
                    "--tls-cert",
                    "a server needs a certificate of its own",
                ));
            }
            (None, None) => {
                if !is_ssl("SERVER", environment)? {
                    return Ok(None);
                }
                let certificate = located("SERVER", "CRT", environment);
                let key = located("SERVER", "KEY", environment);
                // What clients are checked with is the clients' CA; where there is one CA, it is the server's too.
                let ca =
                    located("CLIENT", "CA", environment).or_else(|| located("SERVER", "CA", environment));
                (certificate, key, ca)
            }
            (certificate, key) => (certificate, key, client_ca),
        };
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key, client_ca })),
            (Some(_), None) => {
                Err(missing("--tls-cert", "--tls-key", "a certificate is used with its private key"))
            }
            (None, Some(_)) => {
                Err(missing("--tls-key", "--tls-cert", "a private key is used with its certificate"))
            }
            (None, None) => match named_secret("SERVER", environment) {
                Some(variable) => Err(SettingsError::Secret(variable)),
                None => Err(missing(
                    "CONTROL_PLANE_SECURITY_PROTOCOL=SSL",
                    "CONTROL_PLANE_SERVER_TLS_CRT_LOCATION",
                    "TLS needs a certificate (or --tls-cert)",
                )),
            },
        }
    }
}

impl ClientFiles {
    /// What the flags say, else the environment; `None` for plaintext.
    pub fn resolve(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        server_name: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, SettingsError> {
        let named = match server_name {
            None => None,
            Some(name) => {
                let wrong = |_| SettingsError::Name(name.to_owned());
                Some(ServerName::try_from(name.to_owned()).map_err(wrong)?)
            }
        };
        let why = "the scheduler's certificate is checked with it";
        let (ca, certificate, key) = match (ca, certificate, key) {
            (None, None, None) if named.is_some() => {
                return Err(missing("--tls-server-name", "--tls-ca", why));
            }
            (None, None, None) => {
                if !is_ssl("CLIENT", environment)? {
                    return Ok(None);
                }
                let ca =
                    located("SERVER", "CA", environment).or_else(|| located("CLIENT", "CA", environment));
                (ca, located("CLIENT", "CRT", environment), located("CLIENT", "KEY", environment))
            }
            (None, Some(_), _) => return Err(missing("--tls-client-cert", "--tls-ca", why)),
            (None, None, Some(_)) => return Err(missing("--tls-client-key", "--tls-ca", why)),
            given => given,
        };
        let Some(ca) = ca else {
            return Err(match named_secret("CLIENT", environment) {
                Some(variable) => SettingsError::Secret(variable),
                None => missing(
                    "CONTROL_PLANE_SECURITY_PROTOCOL=SSL",
                    "CONTROL_PLANE_SERVER_TLS_CA_LOCATION",
                    "the scheduler's certificate is checked with it (or --tls-ca)",
                ),
            });
        };
        let pair = "a client's certificate is used with its private key";
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(missing("--tls-client-cert", "--tls-client-key", pair)),
            (None, Some(_)) => return Err(missing("--tls-client-key", "--tls-client-cert", pair)),
        };
        Ok(Some(Self { ca, identity, server_name: named }))
    }
}

const fn missing(given: &'static str, missing: &'static str, why: &'static str) -> SettingsError {
    SettingsError::Missing { given, missing, why }
}

fn set(variable: &str, environment: Environment<'_>) -> Option<String> {
    environment(variable).filter(|value| !value.is_empty())
}

fn located(side: &str, what: &str, environment: Environment<'_>) -> Option<PathBuf> {
    set(&format!("{PREFIX}_{side}_TLS_{what}_LOCATION"), environment).map(PathBuf::from)
}

fn named_secret(side: &str, environment: Environment<'_>) -> Option<String> {
    let variable = format!("{PREFIX}_{side}_TLS_SECRET_NAME");
    set(&variable, environment).map(|_| variable)
}

/// What the side's own variable says, else the one for both.
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
    fn the_environment_counts_where_it_says_ssl() {
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
    fn flags_come_first_and_must_be_whole() {
        let (cert, key, ca) = (|| Some("c".into()), || Some("k".into()), || Some("a".into()));
        let none = environment(&[]);
        let server =
            |c, k, a| ServerFiles::resolve(c, k, a, &with(&[("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL")]));
        assert_eq!(
            server(cert(), key(), None).unwrap().unwrap(),
            ServerFiles { certificate: "c".into(), key: "k".into(), client_ca: None }
        );
        for (result, says) in [
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
            assert!(got.starts_with(says), "{got}");
        }
        assert!(ClientFiles::resolve(ca(), None, None, None, &none).unwrap().unwrap().identity.is_none());
    }

    #[test]
    fn an_environment_that_cannot_be_met_is_named() {
        let protocol = ("CONTROL_PLANE_SECURITY_PROTOCOL", "SASL_SSL");
        let ssl = ("CONTROL_PLANE_SECURITY_PROTOCOL", "SSL");
        let secret = ("CONTROL_PLANE_SERVER_TLS_SECRET_NAME", "seldon-controlplane-server");
        for (set, says) in [
            (&[protocol][..], "CONTROL_PLANE_SECURITY_PROTOCOL is \"SASL_SSL\": it can be PLAINTEXT or SSL"),
            (
                &[ssl],
                "CONTROL_PLANE_SECURITY_PROTOCOL=SSL is set, and CONTROL_PLANE_SERVER_TLS_CRT_LOCATION is not",
            ),
            (&[ssl, secret], "CONTROL_PLANE_SERVER_TLS_SECRET_NAME names a Secret"),
        ] {
            let got = ServerFiles::resolve(None, None, None, &environment(set)).unwrap_err().to_string();
            assert!(got.starts_with(says), "{got}");
        }
    }
}
