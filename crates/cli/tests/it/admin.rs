//! `status`, `top` and `logs` with a fake admin endpoint.

use crate::harness::{Harness, finish, snapshot};
use axum::{Router, extract::RawQuery, routing};

const TOP: &str = r#"{"models":[
    {"name":"fraud","requests":12,"errors":2,"p50_ms":0.4,"p99_ms":1.13,"rate":0.5},
    {"name":"iris","requests":90000,"errors":0,"p50_ms":0.31,"p99_ms":0.84,"rate":214.3},
    {"name":"quiet","requests":0,"errors":0,"p50_ms":null,"p99_ms":null,"rate":0.0}]}"#;

/// As a gateway serves them.
const METRICS: &str = r#"# HELP seldon_pipeline_infer Requests of pipelines.
# TYPE seldon_pipeline_infer counter
seldon_pipeline_infer_total{server="pipeline-gateway",pipeline="checkout",method_type="rest",code="200"} 96
seldon_pipeline_infer_total{server="pipeline-gateway",pipeline="checkout",method_type="rest",code="503"} 3
seldon_pipeline_infer_total{server="pipeline-gateway",pipeline="checkout",method_type="grpc",code="0"} 1
seldon_pipeline_infer_total{server="pipeline-gateway",pipeline="fraud",method_type="grpc",code="0"} 4000
seldon_pipeline_infer_api_seconds_bucket{le="0.001",server="pipeline-gateway",pipeline="checkout",method="rest",code="200"} 0
seldon_pipeline_infer_api_seconds_bucket{le="0.0025",server="pipeline-gateway",pipeline="checkout",method="rest",code="200"} 90
seldon_pipeline_infer_api_seconds_bucket{le="+Inf",server="pipeline-gateway",pipeline="checkout",method="rest",code="200"} 96
seldon_pipeline_infer_api_seconds_bucket{le="0.01",server="pipeline-gateway",pipeline="fraud",method="grpc",code="0"} 0
seldon_pipeline_infer_api_seconds_bucket{le="0.025",server="pipeline-gateway",pipeline="fraud",method="grpc",code="0"} 4000
seldon_pipeline_infer_api_seconds_bucket{le="+Inf",server="pipeline-gateway",pipeline="fraud",method="grpc",code="0"} 4000
gantry_experiment_requests_total{experiment="split",candidate="checkout"} 60
gantry_experiment_requests_total{experiment="split",candidate="fraud"} 30
gantry_experiment_errors_total{experiment="split",candidate="checkout"} 0
gantry_experiment_errors_total{experiment="split",candidate="fraud"} 2
gantry_experiment_seconds_bucket{le="0.001",experiment="split",candidate="checkout"} 60
gantry_experiment_seconds_bucket{le="+Inf",experiment="split",candidate="checkout"} 60
gantry_experiment_seconds_bucket{le="0.001",experiment="split",candidate="fraud"} 0
gantry_experiment_seconds_bucket{le="+Inf",experiment="split",candidate="fraud"} 0
# EOF
"#;

fn admin(harness: &Harness) -> String {
    let listener = harness.runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let logs = |RawQuery(query): RawQuery| async move {
        format!("first line\nquery: {}\n", query.unwrap_or_default())
    };
    let app = Router::new()
        .route("/top", routing::get(|| async { TOP }))
        .route("/logs", routing::get(logs))
        .route("/metrics", routing::get(|| async { METRICS }));
    harness.runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[test]
fn status_and_top_show_load() {
    let harness = Harness::new();
    harness.serve("iris", "  storageUri: /m\n");
    harness.serve("fraud", "  storageUri: /m\n");
    harness.serve("idle", "  storageUri: /m\n");
    let admin = admin(&harness);
    let run = |args: &[&str]| finish(harness.command(args).env("GANTRY_ADMIN", &admin)).ok();
    snapshot("status-with-load", &run(&["status"]));
    snapshot("top", &run(&["top"]));
    assert_eq!(run(&["top", "models"]).lines().count(), 4);
    assert_eq!(run(&["top", "pipelines"]).lines().count(), 3);
    assert_eq!(run(&["top", "experiments"]).lines().count(), 3);
}

#[test]
fn logs_prints_the_admin_response() {
    let harness = Harness::without_server();
    let admin = admin(&harness);
    let run = |args: &[&str]| finish(harness.command(args).env("GANTRY_ADMIN", &admin));
    for (args, query) in [
        (&["logs"][..], "lines=100"),
        (&["logs", "model/iris", "--lines", "5"], "lines=5&model=iris"),
        (&["logs", "-f", "server/builtin"], "lines=100&follow=1&server=builtin"),
    ] {
        assert_eq!(run(args).ok(), format!("first line\nquery: {query}\n"), "{args:?}");
    }
    let wrong = run(&["logs", "model/a&b=c"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let missing = finish(harness.command(&["logs"]).env("GANTRY_ADMIN", harness.scheduler.to_string()));
    assert_ne!(missing.code, 0, "a scheduler is not an admin endpoint: {missing:?}");
}
