//! The API server, asked with a deadline.

use serde_json::{Value, json};
use std::{fmt, path::Path, time::Duration};

/// Objects that one answer may hold; more come in pages.
const PAGE: usize = 500;

/// A cluster.
pub(super) struct Api {
    client: kube::Client,
    limit: Duration,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such object, or no such kind.
    Missing,
    /// Whoever asks may not know.
    Forbidden(String),
    /// Anything else.
    Other(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not there"),
            Self::Forbidden(why) | Self::Other(why) => f.write_str(why),
        }
    }
}

impl Api {
    /// The cluster that a kubeconfig, KUBECONFIG or the pod names. Nothing is sent yet.
    pub(super) async fn connect(kubeconfig: Option<&Path>, limit: Duration) -> Result<Self, String> {
        let config = crate::kubeconfig::read(kubeconfig).await?;
        let client = gantry_operator::connect(config, "gantry check").map_err(|e| deepest(&e))?;
        Ok(Self { client, limit })
    }

    #[cfg(test)]
    pub(super) const fn of(client: kube::Client, limit: Duration) -> Self {
        Self { client, limit }
    }

    /// An object, or whatever else is at a path.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Trouble> {
        self.call(http::Request::get(path).body(Vec::new())).await
    }

    /// The same, where it is no trouble that there is none.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, Trouble> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(Trouble::Missing) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// All objects of a list; none when there is no such kind.
    pub(super) async fn list(&self, path: &str, selector: &str) -> Result<Vec<Value>, Trouble> {
        let mut all = Vec::new();
        let mut more = String::new();
        loop {
            let mut uri = format!("{path}?limit={PAGE}");
            if !selector.is_empty() {
                uri += &format!("&labelSelector={}", escaped(selector));
            }
            if !more.is_empty() {
                uri += &format!("&continue={}", escaped(&more));
            }
            let Some(mut page) = self.find(&uri).await? else { return Ok(all) };
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => next.clone_into(&mut more),
                _ => return Ok(all),
            }
        }
    }

    /// Who is asking, as the API server sees it.
    pub(super) async fn who(&self) -> Result<String, Trouble> {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let answer = self.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await?;
        let name = answer.pointer("/status/userInfo/username").and_then(Value::as_str);
        Ok(name.unwrap_or("somebody without a name").to_owned())
    }

    /// Whether whoever asks may do this. An empty namespace stands for all of them.
    pub(super) async fn may(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<bool, Trouble> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "namespace": namespace,
            } },
        });
        let answer = self.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await?;
        Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
        self.call(request.body(body.to_string().into_bytes())).await
    }

    async fn call(&self, request: http::Result<http::Request<Vec<u8>>>) -> Result<Value, Trouble> {
        let request = request.map_err(|e| Trouble::Other(e.to_string()))?;
        match tokio::time::timeout(self.limit, self.client.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(match status.code {
                404 => Trouble::Missing,
                401 | 403 => Trouble::Forbidden(status.message.clone()),
                code => Trouble::Other(format!("the API server answers {code}: {}", status.message)),
            }),
            Ok(Err(error)) => Err(Trouble::Other(deepest(&error))),
            Err(_) => Err(Trouble::Other(format!("no answer within {} s", self.limit.as_secs()))),
        }
    }
}

/// A text as it may stand in a query.
fn escaped(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    text.bytes().map(|b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The cause that says most: what wraps it only says that something failed.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn queries_hold_any_text() {
        assert_eq!(escaped("app.kubernetes.io/name=a,b"), "app.kubernetes.io%2Fname%3Da%2Cb");
        assert_eq!(escaped("ü"), "%C3%BC");
    }
}
