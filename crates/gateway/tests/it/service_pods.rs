//! InferenceServices that run in pods of their own.

use crate::support::{
    Answer, FakeLocal, FakePod, Running, backend, component, config, local_endpoint, route, service,
};
use gantry_gateway::Config;
use gantry_proto::{
    gantry::{Route, ServiceRoute, service_component::Role},
    inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient},
};
use std::sync::Arc;
use tonic::{Code, transport::Channel};

const HOST: &str = "iris-default.example.com";
const PREDICT: &str = "/v1/models/iris:predict";

fn running() -> Running {
    Running::start(config(), |_| {})
}

async fn ask(running: &Running, host: &str, path: &str) -> Answer {
    running.client().send("POST", path, &[("host", host)], "{}").await
}

/// The pod that responded, or the error.
fn pod(answer: &Answer) -> String {
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = body.get("pod").or_else(|| body.get("error")).and_then(|text| text.as_str());
    format!("{} {}", answer.status.as_u16(), text.unwrap_or_else(|| answer.text()))
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_and_paths_select_the_service() {
    let iris = FakePod::start("iris-0").await;
    let running = running();
    let route = service("iris", vec![component(Role::Predictor, vec![backend("iris", 1, &[&iris])])]);
    running.service(ServiceRoute { hosts: vec!["Iris.example.org".into()], ..route });
    for (host, path, sent) in [
        (HOST, PREDICT, PREDICT),
        ("iris-default.EXAMPLE.com:9000", PREDICT, PREDICT),
        ("iris.example.ORG", "/openai/v1/chat/completions?a=b", "/openai/v1/chat/completions?a=b"),
        ("iris.default.svc", "/", "/"),
        ("iris.default.svc.cluster.local", PREDICT, PREDICT),
        ("iris-predictor.default.svc", PREDICT, PREDICT),
        ("iris-predictor-default.example.com", "/v2/models/any/infer", "/v2/models/any/infer"),
        ("x", "/serving/default/iris", "/"),
        ("x", "/serving/default/iris/v1/models/iris:predict?x=1", "/v1/models/iris:predict?x=1"),
        ("x", "/serving/default/iris-predictor/metrics", "/metrics"),
    ] {
        let answer = ask(&running, host, path).await;
        assert_eq!(answer.status, 200, "{host} {path} {answer:?}");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["request"], format!("POST {sent}"), "{host} {path}");
        assert_eq!(body["host"], host, "the pod sees the host of the client");
        assert_eq!(answer.header("x-seldon-route"), ":iris:");
    }
    for (host, path, error) in [
        (
            "iris-transformer-default.example.com",
            PREDICT,
            "there is no InferenceService iris-transformer-default.example.com: \
             hosts are {name}-{namespace}.{domain}",
        ),
        (
            "x",
            "/serving/default/iris-explainer/",
            "there is no InferenceService default/iris-explainer: use /serving/{namespace}/{name}/…",
        ),
        (
            "x",
            "/serving/other/iris/v1/models/iris",
            "there is no InferenceService other/iris: use /serving/{namespace}/{name}/…",
        ),
        ("iris.example.org.evil.net", PREDICT, "there is no model \"iris\""),
    ] {
        assert_eq!(pod(&ask(&running, host, path).await), format!("404 {error}"), "{host} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_and_response_pass_unchanged() {
    let iris = FakePod::start("iris-0").await;
    let running = running();
    running.predictor("iris", &[&iris]);
    let headers = [
        ("host", HOST),
        ("x-request-id", "mine"),
        ("authorization", "Bearer of-the-pod"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "1"),
    ];
    let answer = running.client().send("PATCH", "/a%2Fb//c?d=%20", &headers, vec![b'x'; 1 << 20]).await;
    assert_eq!(
        answer.text(),
        "{\"bytes\":1048576,\"headers\":\"authorization content-length host x-request-id\",\
         \"host\":\"iris-default.example.com\",\"pod\":\"iris-0\",\"request\":\"PATCH /a%2Fb//c?d=%20\"}"
    );
    assert_eq!(answer.header("x-request-id"), "mine");
    // A page of the pod is none of a Seldon agent that does not have the model.
    let answer = running.client().send("GET", "/none", &[("host", HOST), ("x-respond", "404")], "").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (404, "no such page"));
    assert_eq!((answer.header("content-type"), answer.header("x-of-pod")), ("text/plain", "kept"));
    let answer = running.client().send("HEAD", "/", &[("host", HOST)], "").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, ""));
    let answer = running.client().send("GET", "/", &[("host", HOST)], "").await;
    assert!(answer.text().contains("\"headers\":\"host x-request-id\""), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn transformer_is_in_front_and_explainer_explains() {
    let (predictor, transformer, explainer) = (
        FakePod::start("predictor").await,
        FakePod::start("transformer").await,
        FakePod::start("explainer").await,
    );
    let running = running();
    let of = |role, pod: &FakePod| component(role, vec![backend(pod.name, 100, &[pod])]);
    let all = vec![
        of(Role::Predictor, &predictor),
        of(Role::Transformer, &transformer),
        of(Role::Explainer, &explainer),
    ];
    running.service(service("iris", all.clone()));
    let explain = "/v1/models/iris:explain";
    let ask = |host: &'static str, path: &'static str| {
        let running = &running;
        async move { pod(&ask(running, host, path).await) }
    };
    assert_eq!(ask(HOST, PREDICT).await, "200 transformer");
    assert_eq!(ask(HOST, explain).await, "200 explainer");
    assert_eq!(ask("x", "/serving/default/iris/v1/models/iris:explain").await, "200 explainer");
    assert_eq!(ask("iris-predictor.default.svc", PREDICT).await, "200 predictor");
    assert_eq!(ask("iris-predictor.default.svc", explain).await, "200 predictor");
    assert_eq!(ask("iris-explainer-default.example.com", PREDICT).await, "200 explainer");

    running.service(service("iris", all[..2].to_vec()));
    assert_eq!(ask(HOST, explain).await, "200 transformer", "the front component answers itself");
    running.service(service("iris", all[..1].to_vec()));
    assert_eq!(ask(HOST, PREDICT).await, "200 predictor");
    assert!(ask("iris-transformer.default.svc", PREDICT).await.starts_with("404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_models_and_of_pods_are_served_side_by_side() {
    let iris = FakePod::start("iris-0").await;
    let fake = FakeLocal::new();
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&fake) as _));
    running.predictor("iris", &[&iris]);
    let model = route("wine", &[(1, 1, &[local_endpoint("builtin", 0)])]);
    running.route(Route { service_namespace: "default".into(), ..model });
    assert_eq!(pod(&ask(&running, HOST, PREDICT).await), "200 iris-0");
    let answer = ask(&running, "wine-default.example.com", "/v2/models/wine/infer").await;
    assert_eq!(answer.text(), "{\"model\":\"wine_1\",\"path\":\"/v2/models/wine_1/infer\"}");

    // A component is no model.
    assert_eq!(running.routes.models(), ["wine"]);
    assert_eq!(running.client().get("/v1/models").await.text(), "{\"models\":[\"wine\"]}");
    let named = [("seldon-model", "default/iris/predictor")];
    let answer = running.client().send("POST", "/v2/models/iris/infer", &named, "{}").await;
    assert_eq!(pod(&answer), "404 there is no model \"default/iris/predictor\"");
    let mut grpc = grpc(&running, "http://localhost").await;
    let infer = pb::ModelInferRequest { model_name: "default/iris/predictor".into(), ..Default::default() };
    assert_eq!(grpc.model_infer(infer).await.unwrap_err().code(), Code::Unimplemented);
    let line = "seldon_model_infer_total{server=\"default/iris-0\",server_replica=\"0\",\
                model=\"default/iris/predictor\",model_internal=\"iris-predictor\",method_type=\"rest\",code=\"200\"}";
    assert_eq!(running.metric(line), 1);
}

/// `TrainedModels`: other models of the service pass to its pods.
#[tokio::test(flavor = "multi_thread")]
async fn models_of_the_scheduler_are_reached_by_the_host_of_their_service() {
    let iris = FakePod::start("iris-0").await;
    let fake = FakeLocal::new();
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&fake) as _));
    running.route(route("wine", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    let components = vec![component(Role::Predictor, vec![backend("iris", 1, &[&iris])])];
    let many = |models: &[&str]| ServiceRoute {
        models: models.iter().map(|&name| name.into()).collect(),
        ..service("iris", components.clone())
    };
    let paths = [(HOST, "/v2/models/wine/infer"), ("x", "/serving/default/iris/v2/models/wine/infer")];
    running.service(many(&["beer", "wine"]));
    for (host, path) in paths {
        let answer = ask(&running, host, path).await;
        assert_eq!(answer.text(), "{\"model\":\"wine_1\",\"path\":\"/v2/models/wine_1/infer\"}", "{host}");
    }
    assert_eq!(pod(&ask(&running, HOST, PREDICT).await), "200 iris-0");
    assert_eq!(pod(&ask(&running, HOST, "/v2/models/cider/infer").await), "200 iris-0");
    assert_eq!(pod(&ask(&running, HOST, "/v2/models/beer/infer").await), "404 there is no model \"beer\"");
    let component = "iris-predictor-default.example.com";
    assert_eq!(pod(&ask(&running, component, "/v2/models/wine/infer").await), "200 iris-0");
    // gRPC, by the authority and the name in the message.
    let infer = |model: &str| pb::ModelInferRequest { model_name: model.into(), ..Default::default() };
    let ready = |model: &str| pb::ModelReadyRequest { name: model.into(), ..Default::default() };
    let mut of_service = grpc(&running, "http://iris-default.example.com").await;
    let mut of_component = grpc(&running, "http://iris-predictor-default.example.com").await;
    assert_eq!(of_service.model_infer(infer("wine")).await.unwrap().into_inner().model_name, "wine_1");
    assert!(of_service.model_ready(ready("wine")).await.unwrap().into_inner().ready);
    assert!(!of_service.model_ready(ready("beer")).await.unwrap().into_inner().ready);
    let to_pods = iris.local.arrived();
    for (client, model) in [(&mut of_service, "cider"), (&mut of_component, "wine")] {
        let answer = client.model_infer(infer(model)).await.unwrap();
        assert_eq!(answer.metadata().get("x-seldon-route").unwrap(), ":iris:", "{model}");
    }
    assert_eq!(iris.local.arrived(), to_pods + 2);
    running.service(many(&[]));
    for (host, path) in paths {
        assert_eq!(pod(&ask(&running, host, path).await), "200 iris-0");
    }
    let answer = of_service.model_infer(infer("wine")).await.unwrap();
    assert_eq!(answer.metadata().get("x-seldon-route").unwrap(), ":iris:");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_body_is_forwarded_up_to_the_limit() {
    let iris = FakePod::start("iris-0").await;
    let running = Running::start(Config { max_body: 1 << 20, ..config() }, |_| {});
    running.predictor("iris", &[&iris]);
    let client = running.client();
    assert!(
        client.send("POST", "/", &[("host", HOST)], vec![b'x'; 1 << 20]).await.text().contains("1048576")
    );
    let answer = client.send("POST", "/", &[("host", HOST)], vec![b'x'; (1 << 20) + 1]).await;
    assert_eq!(pod(&answer), "413 the body is larger than the 1048576 bytes allowed");
}

async fn grpc(running: &Running, origin: &str) -> GrpcInferenceServiceClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{}", running.address)).unwrap();
    let channel = endpoint.origin(origin.parse().unwrap()).connect().await.unwrap();
    GrpcInferenceServiceClient::new(channel)
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_passes_by_host() {
    let iris = FakePod::start("iris-0").await;
    let running = running();
    running.predictor("iris", &[&iris]);
    let infer = || pb::ModelInferRequest { model_name: "any".into(), id: "7".into(), ..Default::default() };
    for origin in ["http://iris-default.example.com", "http://iris.default.svc:80"] {
        let mut client = grpc(&running, origin).await;
        let answer = client.model_infer(infer()).await.unwrap();
        assert_eq!(answer.metadata().get("x-seldon-route").unwrap(), ":iris-predictor:");
        assert_eq!(answer.into_inner().id, "7");
        // Errors of the pod, in trailers.
        let failing = pb::ModelInferRequest { id: "fail".into(), ..infer() };
        let status = client.model_infer(failing).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "failure requested: 100 %"));
        // A stream; the pod refuses it.
        let messages = tokio_stream::iter([infer()]);
        let status = client.model_stream_infer(messages).await.unwrap_err();
        assert_eq!(status.message(), "this server does not support streams");
    }
    assert_eq!(iris.local.arrived(), 4);

    let mut endpoint = iris.endpoint();
    endpoint.grpc_port = 0;
    let mut http_only = backend("iris", 1, &[]);
    http_only.pods = vec![endpoint];
    running.service(service("iris", vec![component(Role::Predictor, vec![http_only])]));
    let status = grpc(&running, "http://iris.default.svc").await.model_infer(infer()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            Code::Unimplemented,
            "InferenceService default/iris serves HTTP only: its containers declare no port for gRPC"
        )
    );
    assert_eq!(pod(&ask(&running, HOST, PREDICT).await), "200 iris-0");
}
