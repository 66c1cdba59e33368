//! The routes of the dashboard with a real scheduler.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use axum::{Router, extract::ConnectInfo};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use gantry_dashboard::{Settings, Source, router};
use gantry_store::Store;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;
use tonic::transport::Endpoint;
use tower::ServiceExt as _;

/// A process without models, whose inference port records requests.
#[derive(Default)]
struct FakeProcess {
    requests: Mutex<Vec<Request<Bytes>>>,
}

impl Source for FakeProcess {
    fn metrics(&self) -> String {
        r#"seldon_model_infer_total{server="s",server_replica="0",model="iris",model_internal="iris_1",method_type="rest",code="200"} 7"#
            .to_owned()
    }

    fn latencies(&self) -> Value {
        Value::Null
    }

    fn processes(&self) -> Value {
        Value::Null
    }

    fn runs(&self, _: &str) -> Option<Value> {
        None
    }

    fn infer(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Bytes>, String>> {
        let refused = request.uri().path().contains("refused");
        self.requests.lock().unwrap().push(request);
        async move {
            if refused {
                return Err("no connection to the inference port".to_owned());
            }
            let mut response = Response::new(Bytes::from_static(b"{\"outputs\":[]}"));
            response.headers_mut().insert("content-type", "application/json".parse().unwrap());
            response.headers_mut().insert("set-cookie", "a=b".parse().unwrap());
            Ok(response)
        }
        .boxed()
    }
}

struct Dashboard {
    router: Router,
    process: Arc<FakeProcess>,
    scheduler: gantry_scheduler::Running,
    #[allow(dead_code, reason = "removed when the test ends")]
    state: TempDir,
}

impl Dashboard {
    async fn start(actions: bool) -> Self {
        let state = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let config = gantry_scheduler::Config::new(Store::open(state.path()).unwrap());
        let scheduler = gantry_scheduler::start(config, any, any).await.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", scheduler.clients)).unwrap();
        let process = Arc::new(FakeProcess::default());
        let settings =
            Settings { inference: "127.0.0.1:9000".into(), actions, auth_required: false, remote: false };
        let router = router(endpoint.connect_lazy(), process.clone(), settings);
        Self { router, process, scheduler, state }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        self.send_from("127.0.0.1:1", method, path, body).await
    }

    async fn send_from(&self, peer: &str, method: Method, path: &str, body: &str) -> (StatusCode, Value) {
        let peer: SocketAddr = peer.parse().unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost:9003")
            .header("content-type", "application/json")
            .header(gantry_dashboard::guard::HEADER, "1")
            .extension(ConnectInfo(peer))
            .body(axum::body::Body::from(body.to_owned()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        assert!(
            response.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'")
        );
        assert!(!response.headers().contains_key("set-cookie"));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, &body.to_string()).await
    }

    /// Waits until a path shows this.
    async fn until(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let shown = async {
            loop {
                let body = self.get(path).await;
                if condition(&body) {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), shown)
            .await
            .unwrap_or_else(|_| panic!("{path} does not show it"))
    }
}

fn model(name: &str) -> String {
    format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}}}\n\
         spec: {{storageUri: 'https://user:secret@host/m', requirements: [onnx]}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_applied_explained_listed_and_deleted() {
    let dashboard = Dashboard::start(true).await;
    let empty = dashboard.get("/api/overview").await;
    assert_eq!((&empty["counts"]["models"]["total"], &empty["link"]["state"]), (&json!(0), &json!("live")));

    let text = json!({ "manifest": format!("{}---\n{}", model("iris"), model("fraud")) });
    let (_, planned) = dashboard.post("/api/plan", &text).await;
    assert_eq!(planned["changes"][0]["action"], "create", "{planned}");
    assert_eq!(dashboard.get("/api/models").await["total"], 0, "a dry run changes nothing");
    let (_, applied) = dashboard.post("/api/apply", &text).await;
    assert_eq!(applied["results"][0]["error"], Value::Null, "{applied}");

    let overview = dashboard.until("/api/overview", |page| page["attention"][0]["others"] == 1).await;
    let attention = &overview["attention"][0];
    assert_eq!(attention["name"], "fraud");
    assert!(attention["headline"].as_str().unwrap().starts_with("fraud is not ready"), "{attention}");
    assert_eq!(overview["figures"]["requests"], 7);
    let list = dashboard.get("/api/models?q=iri&limit=1").await;
    assert_eq!((&list["matched"], &list["rows"][0]["figures"]["requests"]), (&json!(1), &json!(7)));

    let detail = dashboard.get("/api/models/iris").await;
    assert_eq!(detail["row"]["owner"], "cli");
    let manifest = detail["manifest"].as_str().unwrap();
    assert!(manifest.contains("redacted@host") && !detail.to_string().contains("secret"), "{manifest}");

    let named = json!({ "kind": "model", "name": "iris" });
    assert_eq!(dashboard.post("/api/delete", &named).await.0, StatusCode::OK);
    dashboard.until("/api/models", |page| page["total"] == 1).await;
    let (status, _) = dashboard.send(Method::GET, "/api/models/iris", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let events = dashboard.get("/api/events?kind=model&name=iris").await;
    assert_eq!(events["rows"][0]["message"], "deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_changed_without_the_right_to_act() {
    let dashboard = Dashboard::start(false).await;
    let body = json!({ "manifest": model("iris"), "kind": "model", "name": "iris", "action": "abort" });
    for path in ["/api/plan", "/api/plan-deletion", "/api/apply", "/api/delete", "/api/steer"] {
        let (status, refused) = dashboard.post(path, &body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert!(refused["error"].as_str().unwrap().contains("--dashboard-actions"), "{path}");
    }
    assert_eq!(dashboard.get("/api/models").await["total"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_is_served_to_this_machine_only() {
    let dashboard = Dashboard::start(true).await;
    for path in ["/", "/assets/app.js", "/api/overview", "/api/models/iris/metadata"] {
        let (status, _) = dashboard.send_from("10.0.0.7:1", Method::GET, path, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        let (status, _) = dashboard.send_from("[::1]:1", Method::GET, path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_the_form_reaches_the_inference_port_as_it_is() {
    let dashboard = Dashboard::start(false).await;
    let (status, answer) = dashboard.send(Method::POST, "/api/models/iris/infer", "{\"inputs\":[]}").await;
    assert_eq!((status, answer), (StatusCode::OK, json!({ "outputs": [] })));
    dashboard.get("/api/pipelines/join/metadata").await;
    let seen: Vec<String> = dashboard
        .process
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|request| format!("{} {} {:?}", request.method(), request.uri(), request.body()))
        .collect();
    assert_eq!(seen, ["POST /v2/models/iris/infer b\"{\\\"inputs\\\":[]}\"", "GET /v2/pipelines/join b\"\""]);
    let (status, failed) = dashboard.send(Method::POST, "/api/models/refused/infer", "{}").await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(failed["error"], "no connection to the inference port");
    let (status, _) = dashboard.send(Method::POST, "/api/models/..%2fx/infer", "{}").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_stay_while_the_scheduler_is_gone() {
    let dashboard = Dashboard::start(true).await;
    dashboard.post("/api/apply", &json!({ "manifest": model("iris") })).await;
    dashboard.until("/api/models", |page| page["total"] == 1).await;
    let Dashboard { scheduler, router, process, state } = dashboard;
    scheduler.stop().await;
    let other = Dashboard::start(false).await;
    let dashboard = Dashboard { scheduler: other.scheduler, router, process, state };
    let lost = dashboard.until("/api/models", |page| page["link"]["state"] == "lost").await;
    assert_eq!(lost["rows"][0]["name"], "iris");
    assert!(lost["link"]["sinceMs"].as_u64().unwrap() > 0);
}
