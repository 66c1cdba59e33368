//! Who asks: the API server presents a certificate of the front-proxy CA and names the caller in headers.

use super::api::Failure;
use gantry_tls::{InMemoryClientCa, Peer};
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "requestheader-client-ca-file";
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Of reading the configuration again: a new CA is trusted by then.
const REFRESH_INTERVAL: Duration = Duration::from_mins(1);
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A caller with more groups is refused.
const MAX_GROUPS: usize = 128;

/// The caller on whose behalf the API server asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Caller {
    pub(super) user: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// What the API server publishes for servers behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Authentication {
    client_ca: String,
    /// Common names of its certificate; any when empty.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl Authentication {
    fn read(data: &BTreeMap<String, String>) -> Result<Self, String> {
        let list = |name: &str| -> Result<Vec<String>, String> {
            let text = data.get(name).map_or("[]", String::as_str);
            serde_json::from_str(text).map_err(|e| format!("{name}: {e}"))
        };
        let read = Self {
            client_ca: data.get(CLIENT_CA).cloned().unwrap_or_default(),
            allowed_names: list("requestheader-allowed-names")?,
            user_headers: list("requestheader-username-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        };
        if read.client_ca.is_empty() || read.user_headers.is_empty() {
            return Err(format!(
                "it has no {CLIENT_CA}: start the API server with --requestheader-client-ca-file, or without it use another \
                 provider of external metrics"
            ));
        }
        Ok(read)
    }

    fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Failure> {
        let refused = |why: &str| Failure::new(StatusCode::UNAUTHORIZED, "Unauthorized", why);
        let Peer::Verified(certificate) = peer else {
            return Err(refused("only the API server may call: use kubectl get --raw"));
        };
        let name = certificate.common_name.as_deref().unwrap_or_default();
        if !self.allowed_names.is_empty() && !self.allowed_names.iter().any(|allowed| allowed == name) {
            return Err(refused("the certificate is not that of the API server"));
        }
        let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
        let user = self.user_headers.iter().find_map(|name| headers.get(name).and_then(text));
        let user =
            user.filter(|user| !user.is_empty()).ok_or_else(|| refused("no header names the caller"))?;
        let groups = self.group_headers.iter().find(|name| headers.contains_key(name.as_str()));
        let groups =
            groups.map_or_else(Vec::new, |name| headers.get_all(name).iter().filter_map(text).collect());
        if groups.len() > MAX_GROUPS {
            return Err(refused("the caller has too many groups"));
        }
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let key = self
                .extra_prefixes
                .iter()
                .find_map(|prefix| name.as_str().strip_prefix(prefix.to_ascii_lowercase().as_str()));
            if let Some((key, value)) = key.zip(text(value)) {
                extra.entry(key.to_owned()).or_default().push(value);
            }
        }
        Ok(Caller { user, groups, extra })
    }
}

/// The API server's identity, read from its configuration and again from time to time.
pub(super) struct FrontProxy {
    config_maps: Api<ConfigMap>,
    client_ca: InMemoryClientCa,
    current: Mutex<Option<Authentication>>,
}

impl FrontProxy {
    pub(super) fn new(client: Client, client_ca: InMemoryClientCa) -> Self {
        Self { config_maps: Api::namespaced(client, NAMESPACE), client_ca, current: Mutex::default() }
    }

    /// The caller of a request, or why it is refused.
    pub(super) fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Failure> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unknown = || {
            let message = format!("ConfigMap {NAMESPACE}/{CONFIG_MAP} is not read yet");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
        };
        current.ok_or_else(unknown)?.caller(peer, headers)
    }

    /// Never returns: errors are logged once each, and retried.
    pub(super) async fn run(&self) {
        let mut logged = String::new();
        loop {
            let error = self.refresh().await.err().unwrap_or_default();
            if error != logged && !error.is_empty() {
                tracing::warn!("external metrics: ConfigMap {NAMESPACE}/{CONFIG_MAP}: {error}");
            }
            tokio::time::sleep(if error.is_empty() { REFRESH_INTERVAL } else { RETRY_INTERVAL }).await;
            logged = error;
        }
    }

    async fn refresh(&self) -> Result<(), String> {
        let found = tokio::time::timeout(CALL_TIMEOUT, self.config_maps.get(CONFIG_MAP)).await;
        let found = found.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())?;
        let read = Authentication::read(&found.data.unwrap_or_default())?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() != Some(&read) {
            self.client_ca.set(CONFIG_MAP, &read.client_ca).map_err(|e| e.to_string())?;
            *current = Some(read);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_tls::PeerCertificate;
    use std::sync::Arc;

    fn authentication(allowed: &str) -> Authentication {
        let data = [
            (CLIENT_CA, "PEM"),
            ("requestheader-allowed-names", allowed),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ];
        let data = data.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Authentication::read(&BTreeMap::from(data)).unwrap()
    }

    fn peer(name: &str) -> Peer {
        let certificate = PeerCertificate { common_name: Some(name.into()), ..PeerCertificate::default() };
        Peer::Verified(Arc::new(certificate))
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn caller_is_read_from_the_headers_of_the_api_server() {
        let headers = headers(&[
            ("x-remote-user", "system:serviceaccount:kube-system:horizontal-pod-autoscaler"),
            ("x-remote-group", "system:serviceaccounts"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-scopes", "a"),
            ("x-other", "b"),
        ]);
        let caller = authentication(r#"["front-proxy"]"#).caller(&peer("front-proxy"), &headers).unwrap();
        assert_eq!(caller.user, "system:serviceaccount:kube-system:horizontal-pod-autoscaler");
        assert_eq!(caller.groups, ["system:serviceaccounts", "system:authenticated"]);
        assert_eq!(caller.extra, BTreeMap::from([("scopes".to_owned(), vec!["a".to_owned()])]));
    }

    #[test]
    fn callers_other_than_the_api_server_are_refused() {
        let named = headers(&[("x-remote-user", "system:admin"), ("x-remote-group", "system:masters")]);
        let allowed = authentication(r#"["front-proxy"]"#);
        let refused = |peer: &Peer, headers: &HeaderMap| allowed.caller(peer, headers).unwrap_err().code;
        for peer in [Peer::Anonymous, Peer::Unreadable("x".into()), peer("mallory"), peer("")] {
            assert_eq!(refused(&peer, &named), StatusCode::UNAUTHORIZED, "{peer:?}");
        }
        assert_eq!(refused(&peer("front-proxy"), &headers(&[])), StatusCode::UNAUTHORIZED);
        assert_eq!(
            refused(&peer("front-proxy"), &headers(&[("x-remote-user", "")])),
            StatusCode::UNAUTHORIZED
        );
        assert!(authentication("[]").caller(&peer("any"), &named).is_ok(), "an empty list allows every name");
    }

    #[test]
    fn configuration_without_a_client_ca_is_an_error() {
        let error = Authentication::read(&BTreeMap::new()).unwrap_err();
        assert!(error.contains("--requestheader-client-ca-file"), "{error}");
        let broken = BTreeMap::from([("requestheader-allowed-names".to_owned(), "front-proxy".to_owned())]);
        assert!(Authentication::read(&broken).unwrap_err().starts_with("requestheader-allowed-names: "));
    }
}
