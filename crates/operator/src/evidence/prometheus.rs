//! Evidence from Prometheus: instant queries over its HTTP API.

use super::{
    EvidenceProvider, EvidenceRequest, Figures, Measurement, RevisionValues, queries::RevisionQueries,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_api::EvidenceSource;
use http::{Method, Request, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::client::ConfigExt as _;
use serde::Deserialize;
use serde_json::Value;
use std::{sync::OnceLock, time::Duration};

const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers have one value.
const MAX_ANSWER: usize = 64 * 1024;
/// Of an error message.
const MAX_MESSAGE: usize = 200;

type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Queries the address of each request.
#[derive(Default)]
pub struct Prometheus {
    client: OnceLock<Result<HttpClient, String>>,
}

impl std::fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prometheus").finish_non_exhaustive()
    }
}

fn client() -> Result<HttpClient, String> {
    // Certificates are checked with those of the system.
    let tls = kube::Config::new(http::Uri::from_static("https://prometheus")).rustls_client_config();
    let tls = tls.map_err(|error| format!("TLS is not available: {error}"))?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

impl EvidenceProvider for Prometheus {
    fn measure<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<Measurement>, String>> {
        Box::pin(async move {
            let stable = self.values(request, &request.stable, "stable").await?;
            let candidate = match &request.candidate {
                Some(revision) => self.values(request, revision, "canary").await?,
                None => None,
            };
            let Some(subject) = (if request.candidate.is_some() { candidate } else { stable }) else {
                return Ok(None);
            };
            let stats = |values: Option<RevisionValues>| {
                values.map(|values| values.stats(request.objectives)).unwrap_or_default()
            };
            let figures = Figures {
                success_rate: Some(subject.success_rate),
                latency_ms: subject.latency_ms,
                requests: Some(subject.requests),
                baseline_success_rate: stable
                    .filter(|_| request.candidate.is_some())
                    .map(|stable| stable.success_rate),
            };
            Ok(Some(Measurement { stable: stats(stable), candidate: stats(candidate), figures }))
        })
    }

    fn stable_latency<'a>(
        &'a self,
        request: &'a EvidenceRequest,
    ) -> BoxFuture<'a, Result<Option<f64>, String>> {
        Box::pin(self.latency(request))
    }
}

impl Prometheus {
    async fn latency(&self, request: &EvidenceRequest) -> Result<Option<f64>, String> {
        let EvidenceSource::Prometheus(address) = &request.source else { return Ok(None) };
        let queries = RevisionQueries::new(request, &request.stable, "stable");
        let requests = self.query(address, &queries.requests).await?;
        // A quantile of nothing has no value.
        if requests.is_some_and(|requests| requests <= 0.0) {
            return Ok(Some(0.0));
        }
        match &queries.latency {
            Some(query) => self.query(address, query).await,
            None => Ok(None),
        }
    }

    /// The values of a revision; `None` if one of them is missing.
    async fn values(
        &self,
        request: &EvidenceRequest,
        revision: &str,
        track: &str,
    ) -> Result<Option<RevisionValues>, String> {
        let EvidenceSource::Prometheus(address) = &request.source else { return Ok(None) };
        let queries = RevisionQueries::new(request, revision, track);
        let Some(requests) = self.query(address, &queries.requests).await? else { return Ok(None) };
        let Some(success_rate) = self.query(address, &queries.success_rate).await? else { return Ok(None) };
        let latency_ms = match &queries.latency {
            Some(query) => match self.query(address, query).await? {
                Some(latency) => Some(latency),
                None => return Ok(None),
            },
            None => None,
        };
        let drift = match &queries.drift {
            Some(query) => self.query(address, query).await?,
            None => None,
        };
        Ok(Some(RevisionValues { requests, success_rate, latency_ms, drift }))
    }

    /// The value of an instant query; `None` for an empty result and for values that are not finite.
    async fn query(&self, address: &str, query: &str) -> Result<Option<f64>, String> {
        let failed = |why: &dyn std::fmt::Display| format!("Prometheus at {address}: {why}");
        let client = self.client.get_or_init(client).as_ref().map_err(|error| failed(error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/api/v1/query", address.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(format!("query={}", percent_encoded(query)))))
            .map_err(|error| failed(&error))?;
        let answer = async {
            let response = client.request(request).await.map_err(|error| failed(&cause(&error)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            Ok::<_, String>((status, body.map_err(|error| failed(&error))?.to_bytes()))
        };
        let (status, body) = tokio::time::timeout(QUERY_TIMEOUT, answer)
            .await
            .map_err(|_| failed(&format!("no answer within {} s", QUERY_TIMEOUT.as_secs())))??;
        let answer = serde_json::from_slice::<Answer>(&body);
        match answer {
            Ok(answer) if status.is_success() && answer.status == "success" => {
                answer.data.value().map_err(|why| failed(&format!("{why}: {query}")))
            }
            Ok(Answer { error: Some(error), .. }) => {
                let error: String = error.chars().take(MAX_MESSAGE).collect();
                Err(failed(&format!("{status}: {error}")))
            }
            Ok(_) => Err(failed(&format!("answered {status}"))),
            Err(_) if !status.is_success() => Err(failed(&format!("answered {status}"))),
            Err(error) => Err(failed(&format!("the answer is not that of Prometheus: {error}"))),
        }
    }
}

/// The innermost cause: that of the client is "client error (Connect)".
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    data: Data,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    result_type: String,
    result: Value,
}

impl Data {
    fn value(&self) -> Result<Option<f64>, String> {
        let sample = match (self.result_type.as_str(), &self.result) {
            ("scalar", sample) => Some(sample),
            ("vector", Value::Array(series)) => match series.as_slice() {
                [] => None,
                [one] => one.get("value"),
                _ => return Err(format!("the query has {} results, aggregate them to one", series.len())),
            },
            (other, _) => return Err(format!("the query returns a {other}, and has to return a number")),
        };
        let text = sample.and_then(|sample| sample.get(1)).and_then(Value::as_str);
        Ok(text.and_then(|text| text.parse().ok()).filter(|value: &f64| value.is_finite()))
    }
}
