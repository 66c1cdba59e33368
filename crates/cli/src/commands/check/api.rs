//! API server client with a timeout per call.

use serde_json::{Value, json};
use std::{fmt, path::Path, time::Duration};

/// Page size of lists.
const PAGE_SIZE: usize = 500;

pub(super) struct Api {
    client: kube::Client,
    timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    /// No such object or kind.
    NotFound,
    Forbidden(String),
    Other(String),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::Forbidden(why) | Self::Other(why) => f.write_str(why),
        }
    }
}

impl Api {
    pub(super) async fn connect(kubeconfig: Option<&Path>, timeout: Duration) -> Result<Self, String> {
        let config = crate::kubeconfig::read(kubeconfig).await?;
        let client = gantry_operator::connect(config, "gantry check").map_err(|e| root_cause(&e))?;
        Ok(Self { client, timeout })
    }

    #[cfg(test)]
    pub(super) const fn new(client: kube::Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call(http::Request::get(path).body(Vec::new())).await
    }

    /// `None` if not found.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(ApiError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All pages; empty if the kind does not exist.
    pub(super) async fn list(&self, path: &str, selector: &str) -> Result<Vec<Value>, ApiError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let mut uri = format!("{path}?limit={PAGE_SIZE}");
            if !selector.is_empty() {
                uri += &format!("&labelSelector={}", escape(selector));
            }
            if !token.is_empty() {
                uri += &format!("&continue={}", escape(&token));
            }
            let Some(mut page) = self.find(&uri).await? else { return Ok(all) };
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                _ => return Ok(all),
            }
        }
    }

    /// The user name as the API server sees it.
    pub(super) async fn whoami(&self) -> Result<String, ApiError> {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let response = self.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await?;
        let name = response.pointer("/status/userInfo/username").and_then(Value::as_str);
        Ok(name.unwrap_or("unknown user").to_owned())
    }

    /// RBAC check for the current user; an empty namespace means all namespaces.
    pub(super) async fn is_allowed(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<bool, ApiError> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "namespace": namespace,
            } },
        });
        let response = self.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await?;
        Ok(response.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
        self.call(request.body(body.to_string().into_bytes())).await
    }

    async fn call(&self, request: http::Result<http::Request<Vec<u8>>>) -> Result<Value, ApiError> {
        let request = request.map_err(|e| ApiError::Other(e.to_string()))?;
        match tokio::time::timeout(self.timeout, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                404 => ApiError::NotFound,
                401 | 403 => ApiError::Forbidden(status.message.clone()),
                code => ApiError::Other(format!("the API server returned {code}: {}", status.message)),
            }),
            Ok(Err(error)) => Err(ApiError::Other(root_cause(&error))),
            Err(_) => Err(ApiError::Other(format!("no response within {} s", self.timeout.as_secs()))),
        }
    }
}

/// Percent-encodes a query value.
fn escape(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The innermost error, which has the most specific message.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn escape_encodes_query_values() {
        assert_eq!(escape("app.kubernetes.io/name=a,b"), "app.kubernetes.io%2Fname%3Da%2Cb");
        assert_eq!(escape("ü"), "%C3%BC");
    }
}
