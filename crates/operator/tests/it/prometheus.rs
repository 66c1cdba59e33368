//! The client of Prometheus against a small HTTP server.

use bytes::Bytes;
use gantry_api::{EvidenceSource, MetricQueries};
use gantry_operator::{
    cluster::Key,
    evidence::{EvidenceProvider as _, EvidenceRequest, Measurement, Prometheus, RevisionObjectives},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::net::TcpListener;

type Queries = Arc<Mutex<Vec<String>>>;
/// Status and body of a query; without one the server does not answer.
type Answer = Arc<dyn Fn(&str) -> Option<(u16, String)> + Send + Sync>;

/// Serves until the test ends; returns its URL and the queries that it received.
async fn serve(answer: Answer) -> (String, Queries) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let queries = Queries::default();
    let received = Arc::clone(&queries);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answer, received) = (Arc::clone(&answer), Arc::clone(&received));
            let service = service_fn(move |request: hyper::Request<Incoming>| {
                let (answer, received) = (Arc::clone(&answer), Arc::clone(&received));
                async move {
                    assert_eq!(request.uri().path(), "/api/v1/query");
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let query = decoded(std::str::from_utf8(&body).unwrap().strip_prefix("query=").unwrap());
                    let reply = answer(&query);
                    received.lock().unwrap().push(query);
                    let Some((status, body)) = reply else { std::future::pending().await };
                    let response = Response::builder().status(status).body(Full::new(Bytes::from(body)));
                    Ok::<_, Infallible>(response.unwrap())
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, queries)
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            decoded.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).unwrap()
}

fn vector(values: &[&str]) -> (u16, String) {
    let result: Vec<Value> = values.iter().map(|v| json!({ "metric": {}, "value": [1.5, v] })).collect();
    let data = json!({ "resultType": "vector", "result": result });
    (200, json!({ "status": "success", "data": data }).to_string())
}

fn request(address: String) -> EvidenceRequest {
    EvidenceRequest {
        key: Key::new("ml", "reco"),
        uid: "u".into(),
        source: EvidenceSource::Prometheus(address),
        queries: MetricQueries::default(),
        stable: "aaaaaaaaaa".into(),
        candidate: Some("bbbbbbbbbb".into()),
        generation: 3,
        interval: Duration::from_secs(30),
        window: Duration::from_mins(1),
        counts_once: false,
        objectives: RevisionObjectives { success: 0.99, latency_limit_ms: Some(50.0) },
        drift_metric: None,
    }
}

async fn measure(answer: Answer) -> (Result<Option<Measurement>, String>, Vec<String>) {
    let (address, queries) = serve(answer).await;
    let result = Prometheus::default().measure(&request(address)).await;
    let queries = queries.lock().unwrap().clone();
    (result, queries)
}

fn fixed(status: u16, body: &str) -> Answer {
    let body = body.to_owned();
    Arc::new(move |_| Some((status, body.clone())))
}

#[tokio::test]
async fn values_become_statistics_of_both_revisions() {
    let answer: Answer = Arc::new(|query| {
        let is_canary = query.contains("bbbbbbbbbb");
        Some(if query.contains("histogram_quantile") {
            vector(&[if is_canary { "61.5" } else { "20" }])
        } else if query.starts_with("1 - ") {
            vector(&[if is_canary { "0.97" } else { "1" }])
        } else {
            vector(&[if is_canary { "199.7" } else { "800" }])
        })
    });
    let (result, queries) = measure(answer).await;
    let found = result.unwrap().unwrap();
    assert_eq!((found.stable.requests, found.stable.errors.server), (800, 0));
    assert_eq!((found.candidate.requests, found.candidate.errors.server), (200, 6));
    assert!(found.candidate.latency.quantile_ms(0.99).unwrap() > 50.0);
    assert_eq!(found.figures.success_rate, Some(0.97));
    assert_eq!(found.figures.latency_ms, Some(61.5));
    assert_eq!(found.figures.baseline_success_rate, Some(1.0));
    assert_eq!(queries.len(), 6);
    let labels = r#"algorithm="reco",namespace="ml",revision="aaaaaaaaaa""#;
    assert_eq!(queries[0], format!("sum(increase(algorithm_requests_total{{{labels}}}[60s]))"));
}

#[tokio::test]
async fn empty_and_undefined_values_are_no_data() {
    for answer in [
        fixed(200, &vector(&[]).1),
        fixed(200, &vector(&["NaN"]).1),
        fixed(200, &vector(&["+Inf"]).1),
        fixed(200, r#"{"status": "success", "data": {"resultType": "scalar", "result": [1, "NaN"]}}"#),
    ] {
        let (result, _) = measure(answer).await;
        assert_eq!(result, Ok(None));
    }
    // The canary alone has no values.
    let answer: Answer =
        Arc::new(|query| Some(if query.contains("bbbbbbbbbb") { vector(&[]) } else { vector(&["1"]) }));
    assert_eq!(measure(answer).await.0, Ok(None));
}

#[tokio::test]
async fn failures_are_errors_that_name_the_cause() {
    for (answer, expected) in [
        (fixed(500, "down"), "answered 500 Internal Server Error"),
        (
            fixed(422, r#"{"status": "error", "errorType": "execution", "error": "too many samples"}"#),
            "422 Unprocessable Entity: too many samples",
        ),
        (fixed(200, "<html>"), "the answer is not that of Prometheus"),
        (fixed(200, &vector(&["1", "2"]).1), "the query has 2 results, aggregate them to one"),
        (
            fixed(200, r#"{"status": "success", "data": {"resultType": "matrix", "result": []}}"#),
            "the query returns a matrix",
        ),
        (fixed(200, &format!("\"{}\"", "x".repeat(100_000))), "length limit exceeded"),
    ] {
        let error = measure(answer).await.0.unwrap_err();
        assert!(error.starts_with("Prometheus at http://127.0.0.1:"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = Prometheus::default().measure(&request(format!("http://{closed}"))).await.unwrap_err();
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test]
async fn server_without_an_answer_is_given_up() {
    let (address, queries) = serve(Arc::new(|_| None)).await;
    let task = tokio::spawn(async move { Prometheus::default().measure(&request(address)).await });
    while queries.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The connection exists: the rest of the deadline passes at once.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    let error = task.await.unwrap().unwrap_err();
    assert!(error.contains("no answer within 5 s"), "{error}");
}
