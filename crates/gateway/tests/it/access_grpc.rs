//! Authentication and authorisation of gRPC requests and streams.

use crate::support::{FakeLocal, FakeRemote, Keys, Running, local_endpoint, remote_endpoint, route};
use futures::StreamExt as _;
use gantry_proto::inference::{
    self as pb, grpc_inference_service_client::GrpcInferenceServiceClient as Client,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tonic::{Code, Request, Status, transport::Channel};

async fn start(keys: &Keys) -> (Running, Arc<FakeLocal>, Client<Channel>) {
    let local = FakeLocal::new();
    let running = Running::start(keys.config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    for name in ["iris", "other"] {
        running.route(route(name, &[(1, 1, &[local_endpoint("builtin", 0)])]));
    }
    let client = Client::connect(format!("http://{}", running.address)).await.unwrap();
    (running, local, client)
}

fn keys() -> Keys {
    Keys::new(&[
        ("iris", "{models: [iris], pipelines: [join]}"),
        ("infer", "{models: [iris], rights: [infer]}"),
        ("look", "{models: ['*'], rights: [metadata]}"),
        ("load", "{models: [iris], rights: [repository]}"),
    ])
}

fn with<M>(message: M, key: &str, model: &str) -> Request<M> {
    let mut request = Request::new(message);
    if !key.is_empty() {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    }
    if !model.is_empty() {
        request.metadata_mut().insert("seldon-model", model.parse().unwrap());
    }
    request
}

fn infer(model: &str) -> pb::ModelInferRequest {
    pb::ModelInferRequest { model_name: model.into(), id: "7".into(), ..Default::default() }
}

async fn call(client: &mut Client<Channel>, method: &str, model: &str, key: &str, header: &str) -> Code {
    let name = model.to_owned();
    let done: Result<(), Status> = match method {
        "live" => client.server_live(with(pb::ServerLiveRequest {}, key, header)).await.map(drop),
        "ready" => client.server_ready(with(pb::ServerReadyRequest {}, key, header)).await.map(drop),
        "about" => client.server_metadata(with(pb::ServerMetadataRequest {}, key, header)).await.map(drop),
        "infer" => client.model_infer(with(infer(model), key, header)).await.map(drop),
        "metadata" => {
            let message = pb::ModelMetadataRequest { name, ..Default::default() };
            client.model_metadata(with(message, key, header)).await.map(drop)
        }
        "model-ready" => {
            let message = pb::ModelReadyRequest { name, ..Default::default() };
            client.model_ready(with(message, key, header)).await.map(drop)
        }
        "stats" => {
            let message = pb::ModelStatisticsRequest { name, ..Default::default() };
            client.model_statistics(with(message, key, header)).await.map(drop)
        }
        "index" => {
            client.repository_index(with(pb::RepositoryIndexRequest::default(), key, header)).await.map(drop)
        }
        "load" => {
            let message = pb::RepositoryModelLoadRequest { model_name: name, ..Default::default() };
            client.repository_model_load(with(message, key, header)).await.map(drop)
        }
        "unload" => {
            let message = pb::RepositoryModelUnloadRequest { model_name: name, ..Default::default() };
            client.repository_model_unload(with(message, key, header)).await.map(drop)
        }
        other => panic!("{other}"),
    };
    done.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_permitted_by_credential_right_and_object() {
    let keys = keys();
    let (_running, _, mut client) = start(&keys).await;
    for (method, model, key, header, expected) in [
        ("live", "", "", "", Code::Ok),
        ("ready", "", "", "", Code::Ok),
        ("live", "", "unknown", "", Code::Ok),
        ("about", "", "", "", Code::Unauthenticated),
        ("about", "", "load", "", Code::Ok),
        ("infer", "iris", "", "", Code::Unauthenticated),
        ("infer", "iris", "unknown", "", Code::Unauthenticated),
        ("infer", "iris", "iris", "", Code::Ok),
        ("infer", "iris", "infer", "", Code::Ok),
        ("infer", "iris", "look", "", Code::PermissionDenied),
        ("infer", "other", "iris", "", Code::PermissionDenied),
        ("infer", "missing", "iris", "", Code::PermissionDenied),
        ("infer", "iris", "iris", "other", Code::PermissionDenied),
        ("infer", "other", "iris", "iris", Code::Ok),
        ("infer", "", "iris", "join.pipeline", Code::Unimplemented),
        ("infer", "iris", "infer", "join.pipeline", Code::PermissionDenied),
        ("infer", "iris", "iris", "half.experiment", Code::PermissionDenied),
        ("metadata", "iris", "iris", "", Code::Ok),
        ("metadata", "iris", "infer", "", Code::PermissionDenied),
        ("metadata", "other", "look", "", Code::Ok),
        ("model-ready", "iris", "infer", "", Code::Ok),
        ("model-ready", "other", "infer", "", Code::PermissionDenied),
        ("model-ready", "iris", "", "", Code::Unauthenticated),
        ("stats", "iris", "iris", "", Code::Ok),
        ("stats", "", "iris", "", Code::PermissionDenied),
        ("stats", "", "look", "", Code::Ok),
        ("index", "", "", "", Code::Unauthenticated),
        ("index", "", "infer", "", Code::PermissionDenied),
        // Without a scheduler.
        ("index", "", "iris", "", Code::Unimplemented),
        ("load", "iris", "iris", "", Code::PermissionDenied),
        ("load", "iris", "load", "", Code::Unimplemented),
        ("unload", "other", "load", "", Code::Unimplemented),
    ] {
        let key = if key.is_empty() { "" } else { keys.key(key) };
        let code = call(&mut client, method, model, key, header).await;
        assert_eq!(code, expected, "{method} {model:?} {key} {header:?}");
    }
    let status = client.model_infer(infer("iris")).await.unwrap_err();
    assert!(status.message().starts_with("this request needs a credential: send"), "{status:?}");
    assert_eq!(status.metadata().get("www-authenticate").unwrap(), "Bearer realm=\"gantry\"");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_open_and_reflection_is_not() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    };
    let keys = keys();
    let (running, ..) = start(&keys).await;
    let channel =
        Channel::from_shared(format!("http://{}", running.address)).unwrap().connect().await.unwrap();
    HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    let requests = || tokio_stream::iter([ServerReflectionRequest::default()]);
    let mut reflection = ServerReflectionClient::new(channel);
    let status = reflection.server_reflection_info(requests()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    reflection.server_reflection_info(with(requests(), keys.key("load"), "")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_of_a_stream_is_authorised_and_counted() {
    for remote in [false, true] {
        let keys = Keys::new(&[(
            "slow",
            "{models: [iris, far]}\n  rate: {perSecond: 1, burst: 4}\n  expires: 2027-01-15",
        )]);
        let (running, local, mut client) = start(&keys).await;
        let server = FakeRemote::start(Arc::clone(&local)).await;
        running.route(route("far", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
        let model = if remote { "far" } else { "iris" };
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let status = client.model_stream_infer(tokio_stream::iter([infer(model)])).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        let mut answers =
            client.model_stream_infer(with(stream, keys.key("slow"), "")).await.unwrap().into_inner();
        let denied = "slow may not do this: it has no right \"infer\" for model \"other\"";
        let limited = "the rate limit of slow is exceeded: retry in 1 s";
        // The stream itself counts too.
        for (name, error) in [(model, ""), ("other", denied), (model, ""), (model, limited)] {
            sender.send(infer(name)).await.unwrap();
            let answer = answers.next().await.unwrap().unwrap();
            assert!(answer.error_message.starts_with(error), "{answer:?}");
            assert_eq!(answer.error_message.is_empty(), error.is_empty(), "{answer:?}");
        }
        keys.clock.advance(Duration::from_secs(2));
        sender.send(infer(model)).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
        // An expired credential ends the stream.
        keys.clock.advance(Duration::from_hours(24));
        sender.send(infer(model)).await.unwrap();
        let status = answers.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert!(!format!("{status:?}").contains(keys.key("slow")));
        assert_eq!(local.arrived.load(Ordering::SeqCst), 3);
        for headers in local.seen.lock().unwrap().iter() {
            assert!(!headers.contains_key("authorization"), "{headers:?}");
        }
    }
}
