//! Readiness of the model server, by the probe of its container.

use crate::upstream::{HttpClient, clients};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;
use serde_json::Value;
use std::time::Duration;
use tokio::net::TcpStream;

/// A readiness probe of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    check: Check,
    timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    Http { url: String, headers: Vec<(HeaderName, HeaderValue)> },
    Tcp(String),
}

impl Probe {
    /// Reads the JSON of `SERVING_READINESS_PROBE`; `port` is that of the component. `None` if the probe cannot run here.
    pub fn parse(text: &str, port: u16) -> Result<Option<Self>, String> {
        let invalid = |what: &str| format!("SERVING_READINESS_PROBE {what}");
        let probe: Value = serde_json::from_str(text).map_err(|e| invalid(&format!("is not JSON: {e}")))?;
        let seconds = probe.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(1);
        let timeout = Duration::from_secs(seconds.clamp(1, 3600));
        let host = |action: &Value| {
            action
                .get("host")
                .and_then(Value::as_str)
                .filter(|h| !h.is_empty())
                .unwrap_or("127.0.0.1")
                .to_owned()
        };
        let address = |action: &Value| {
            let number = action.get("port").map_or(Some(0), Value::as_u64);
            let number =
                number.and_then(|n| u16::try_from(n).ok()).ok_or_else(|| invalid("has no port number"))?;
            let port = if number == 0 { port } else { number };
            Ok::<_, String>(format!("{}:{port}", host(action)))
        };
        let action = |name: &str| probe.get(name).filter(|action| action.is_object());
        if let Some(get) = action("httpGet") {
            let is_https = get.get("scheme").and_then(Value::as_str) == Some("HTTPS");
            if is_https {
                return Ok(Some(Self { check: Check::Tcp(address(get)?), timeout }));
            }
            let path = get.get("path").and_then(Value::as_str).unwrap_or("/");
            let slash = if path.starts_with('/') { "" } else { "/" };
            let url = format!("http://{}{slash}{path}", address(get)?);
            Request::get(&url).body(()).map_err(|_| invalid("has an invalid path"))?;
            let mut headers = Vec::new();
            for header in get.get("httpHeaders").and_then(Value::as_array).into_iter().flatten() {
                let text = |field: &str| header.get(field).and_then(Value::as_str).unwrap_or_default();
                let name = text("name").parse().map_err(|_| invalid("has an invalid header"))?;
                let value = text("value").parse().map_err(|_| invalid("has an invalid header"))?;
                headers.push((name, value));
            }
            return Ok(Some(Self { check: Check::Http { url, headers }, timeout }));
        }
        let tcp = action("tcpSocket").or_else(|| action("grpc"));
        tcp.map(|tcp| Ok(Self { check: Check::Tcp(address(tcp)?), timeout })).transpose()
    }
}

pub(super) struct Prober {
    probe: Option<Probe>,
    client: HttpClient<Full<Bytes>>,
}

impl Prober {
    pub(super) fn new(probe: Option<Probe>) -> Self {
        Self { probe, client: clients().0 }
    }

    /// Without a probe the model server counts as ready.
    pub(super) async fn is_ready(&self) -> bool {
        let Some(probe) = &self.probe else { return true };
        let checking = async {
            match &probe.check {
                Check::Tcp(address) => TcpStream::connect(address).await.is_ok(),
                Check::Http { url, headers } => {
                    let Ok(mut request) = Request::get(url).body(Full::default()) else { return false };
                    request.headers_mut().extend(headers.iter().cloned());
                    let response = self.client.request(request).await;
                    response.is_ok_and(|r| r.status().is_success() || r.status().is_redirection())
                }
            }
        };
        tokio::time::timeout(probe.timeout, checking).await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_parsed() {
        let http = |url: &str| Check::Http { url: url.into(), headers: Vec::new() };
        for (text, check) in [
            (r#"{"httpGet":{"path":"/ready","port":9000}}"#, http("http://127.0.0.1:9000/ready")),
            (r#"{"httpGet":{"path":"ready"}}"#, http("http://127.0.0.1:8080/ready")),
            (r#"{"httpGet":{"port":0}}"#, http("http://127.0.0.1:8080/")),
            (r#"{"httpGet":{"scheme":"HTTPS","port":8443}}"#, Check::Tcp("127.0.0.1:8443".into())),
            (r#"{"tcpSocket":{"port":1,"host":"10.0.0.1"}}"#, Check::Tcp("10.0.0.1:1".into())),
            (r#"{"grpc":{"port":9000}}"#, Check::Tcp("127.0.0.1:9000".into())),
        ] {
            assert_eq!(Probe::parse(text, 8080).unwrap().unwrap().check, check, "{text}");
        }
        let probe = Probe::parse(r#"{"timeoutSeconds":7,"tcpSocket":{}}"#, 1).unwrap().unwrap();
        assert_eq!(probe.timeout, Duration::from_secs(7));
        assert_eq!(Probe::parse(r#"{"exec":{"command":["true"]}}"#, 1), Ok(None));
        for text in [
            "",
            "[",
            r#"{"tcpSocket":{"port":"http"}}"#,
            r#"{"httpGet":{"port":70000}}"#,
            r#"{"httpGet":{"path":"/ x"}}"#,
        ] {
            assert!(Probe::parse(text, 1).is_err(), "{text}");
        }
    }
}
