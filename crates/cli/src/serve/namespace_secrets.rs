//! Secrets of the agent's namespace, read through the API server as Seldon's agent does.

use futures::future::BoxFuture;
use gantry_agent::SecretStore;
use kube::Client;
use std::{fmt, time::Duration};

const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct NamespaceSecrets {
    client: Client,
    namespace: String,
}

impl fmt::Debug for NamespaceSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceSecrets").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl NamespaceSecrets {
    /// With the service account of the pod, or KUBECONFIG.
    pub(super) async fn connect() -> Result<Self, String> {
        let config = crate::kubeconfig::read(None).await?;
        let namespace = config.default_namespace.clone();
        let client = gantry_operator::connect(config, "agent").map_err(|e| e.to_string())?;
        Ok(Self { client, namespace })
    }

    async fn get(&self, name: &str) -> Result<String, String> {
        let Self { client, namespace } = self;
        // Also keeps the name from changing the path of the request.
        let is_name = |label: &str| gantry_api::check_name(label).is_ok();
        if !name.split('.').all(is_name) {
            return Err(format!("secretName \"{}\" is not the name of a Secret", name.escape_debug()));
        }
        let request = http::Request::get(format!("/api/v1/namespaces/{namespace}/secrets/{name}"));
        let request = request.body(Vec::new()).map_err(|e| e.to_string())?;
        match tokio::time::timeout(TIMEOUT, client.request_text(request)).await {
            Ok(Ok(manifest)) => Ok(manifest),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                Err(format!("Secret {name} does not exist in namespace {namespace}: create it"))
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(format!(
                "the agent has no permission to read Secret {name} in namespace {namespace}: add it to \
                 --agent-secrets of gantry install (rbac.agentSecrets of the chart)"
            )),
            Ok(Err(error)) => Err(format!("Secret {name} cannot be read: {error}")),
            Err(_) => {
                let seconds = TIMEOUT.as_secs();
                Err(format!("Secret {name} cannot be read: the API server did not answer within {seconds} s"))
            }
        }
    }
}

impl SecretStore for NamespaceSecrets {
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(self.get(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::json;
    use std::convert::Infallible;

    /// An API server with one Secret, and one that may not be read.
    fn secrets() -> NamespaceSecrets {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let (status, body) = match request.uri().path() {
                "/api/v1/namespaces/ml/secrets/minio.eu" => {
                    (StatusCode::OK, json!({ "kind": "Secret", "data": { "s3": "e30=" } }))
                }
                "/api/v1/namespaces/ml/secrets/hidden" => (
                    StatusCode::FORBIDDEN,
                    json!({ "kind": "Status", "status": "Failure", "message": "forbidden", "reason": "Forbidden", "code": 403 }),
                ),
                _ => (
                    StatusCode::NOT_FOUND,
                    json!({ "kind": "Status", "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404 }),
                ),
            };
            let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        });
        NamespaceSecrets { client: Client::new(service, "ml"), namespace: "ml".into() }
    }

    #[tokio::test]
    async fn secret_of_the_namespace_is_read_by_name() {
        let secrets = secrets();
        assert!(secrets.read("minio.eu").await.unwrap().contains("\"kind\":\"Secret\""));
        for (name, problem) in [
            ("absent", "Secret absent does not exist in namespace ml"),
            ("hidden", "--agent-secrets of gantry install (rbac.agentSecrets of the chart)"),
            ("a/../../configmaps/b", "is not the name of a Secret"),
            ("a?watch=true", "is not the name of a Secret"),
            ("", "is not the name of a Secret"),
        ] {
            let error = secrets.read(name).await.unwrap_err();
            assert!(error.contains(problem), "{name}: {error}");
        }
    }
}
