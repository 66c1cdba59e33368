//! gRPC with a real client, on the same port.

use crate::support::{
    FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, reset, route, synced,
};
use bytes::Bytes;
use futures::StreamExt as _;
use gantry_proto::inference::{
    self as pb, grpc_inference_service_client::GrpcInferenceServiceClient as Client,
};
use std::sync::Arc;
use tonic::{Code, Request, transport::Channel};

async fn client(running: &Running) -> Client<Channel> {
    Client::connect(format!("http://{}", running.address)).await.unwrap().max_decoding_message_size(64 << 20)
}

fn infer(model: &str) -> pb::ModelInferRequest {
    pb::ModelInferRequest { model_name: model.into(), id: "7".into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_grpc_methods_are_served() {
    for remote in [false, true] {
        let local = FakeLocal::new();
        let server = FakeRemote::start(Arc::clone(&local)).await;
        let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
        let endpoint = if remote {
            remote_endpoint("mlserver", 0, server.address)
        } else {
            local_endpoint("builtin", 0)
        };
        running.routes.apply(reset());
        running.route(route("iris", &[(3, 100, &[endpoint])]));
        running.route(route("waiting", &[]));
        running.routes.apply(synced());
        let mut client = client(&running).await;

        assert!(client.server_live(pb::ServerLiveRequest {}).await.unwrap().into_inner().live);
        assert!(client.server_ready(pb::ServerReadyRequest {}).await.unwrap().into_inner().ready);
        assert_eq!(
            client.server_metadata(pb::ServerMetadataRequest {}).await.unwrap().into_inner().name,
            "gantry"
        );

        let answer = client.model_infer(infer("iris")).await.unwrap();
        assert_eq!(answer.metadata().get("x-seldon-route").unwrap(), ":iris_3:");
        assert_eq!(answer.metadata().get("x-request-id").unwrap().len(), 20);
        assert_eq!(answer.into_inner().model_name, "iris_3");

        let about = pb::ModelMetadataRequest { name: "iris".into(), ..Default::default() };
        assert_eq!(client.model_metadata(about).await.unwrap().into_inner().name, "iris_3");
        for (model, ready) in [("iris", true), ("waiting", false)] {
            let request = pb::ModelReadyRequest { name: model.into(), ..Default::default() };
            assert_eq!(client.model_ready(request).await.unwrap().into_inner().ready, ready, "{model}");
        }
        let request = pb::ModelStatisticsRequest { name: "iris".into(), ..Default::default() };
        assert_eq!(
            client.model_statistics(request).await.unwrap().into_inner().model_stats[0].name,
            "iris_3"
        );

        for (request, code, message) in [
            (infer("other"), Code::Unimplemented, "there is no model \"other\""),
            (infer("irs"), Code::Unimplemented, "there is no model \"irs\": did you mean \"iris\"?"),
            (infer("waiting"), Code::Unavailable, "model waiting has no ready replica"),
            (infer(""), Code::InvalidArgument, "the message has no model name"),
            (
                pb::ModelInferRequest { id: "fail".into(), ..infer("iris") },
                Code::InvalidArgument,
                "failure requested: 100 %",
            ),
        ] {
            let status = client.model_infer(request).await.unwrap_err();
            assert_eq!((status.code(), status.message()), (code, message));
        }
        let mut piped = Request::new(infer("iris"));
        piped.metadata_mut().insert("seldon-model", "p.pipeline".parse().unwrap());
        let status = client.model_infer(piped).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unimplemented, "there is no pipeline \"p\""));
        let mut named = Request::new(infer("ignored"));
        named.metadata_mut().insert("seldon-model", "iris".parse().unwrap());
        assert_eq!(client.model_infer(named).await.unwrap().into_inner().model_name, "iris_3");

        let server = if remote { "mlserver" } else { "builtin" };
        let line = format!(
            "seldon_model_infer_total{{server=\"{server}\",server_replica=\"0\",model=\"iris\",model_internal=\"iris_3\",method_type=\"grpc\",code="
        );
        assert_eq!(running.metric(&format!("{line}\"0\"}}")), 2);
        assert_eq!(running.metric(&format!("{line}\"3\"}}")), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_aggregated() {
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let answer =
        client(&running).await.model_statistics(pb::ModelStatisticsRequest::default()).await.unwrap();
    assert_eq!(answer.into_inner().model_stats.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_are_forwarded() {
    let local = FakeLocal::new();
    let server = FakeRemote::start(Arc::clone(&local)).await;
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
    let mut client = client(&running).await;
    for size in [1, 65_500, 65_536, 1 << 20, 16 << 20] {
        let raw: Bytes = (0..size).map(|i: usize| (i % 251) as u8).collect();
        for model in ["here", "there"] {
            let request = pb::ModelInferRequest { raw_input_contents: vec![raw.clone()], ..infer(model) };
            let answer = client.model_infer(request).await.unwrap().into_inner();
            assert!(answer.raw_output_contents == [raw.clone()], "{model} {size}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_compressed_messages_are_forwarded() {
    use gantry_oip::rest::{Encoding, compress};
    let local = FakeLocal::new();
    let server = FakeRemote::start(Arc::clone(&local)).await;
    let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
    running.route(route("here", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    running.route(route("there", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
    // Incompressible, so that the compressed body is large, too.
    let mut random = fastrand::Rng::with_seed(1);
    let raw: Bytes = std::iter::repeat_with(|| random.u8(..)).take(300_000).collect();
    for model in ["here", "there"] {
        let request = pb::ModelInferRequest { raw_input_contents: vec![raw.clone()], ..infer(model) };
        let packed = compress(&prost::Message::encode_to_vec(&request), Encoding::Gzip).unwrap();
        assert!(packed.len() > 100_000);
        let length = u32::try_from(packed.len()).unwrap().to_be_bytes();
        let body = Bytes::from([&[1], length.as_slice(), &packed].concat());

        let stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
        let (executor, io) = (hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream));
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::post("http://test/inference.GRPCInferenceService/ModelInfer")
            .header("content-type", "application/grpc")
            .header("grpc-encoding", "gzip")
            .body(http_body_util::Full::new(body))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let answer = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
        let message = gantry_oip::grpc::decode_frame(&answer, None, 1 << 20).unwrap();
        let answer: pb::ModelInferResponse = prost::Message::decode(message).unwrap();
        assert!(answer.raw_output_contents == [raw.clone()], "{model}");
    }
}

/// The gateway reads the name of a message that it cannot inflate.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_message_is_not_inflated_for_its_name() {
    use gantry_oip::rest::{Encoding, compress};
    let local = FakeLocal::new();
    let running = Running::start(gantry_gateway::Config { max_body: 1 << 20, ..config() }, |g| {
        g.register_local("builtin", 0, Arc::clone(&local) as _);
    });
    running.route(route("m", &[(1, 1, &[local_endpoint("builtin", 0)])]));
    let request = pb::ModelInferRequest { raw_input_contents: vec![vec![0; 4 << 20].into()], ..infer("m") };
    let packed = compress(&prost::Message::encode_to_vec(&request), Encoding::Gzip).unwrap();
    let length = u32::try_from(packed.len()).unwrap().to_be_bytes();
    let body = Bytes::from([&[1], length.as_slice(), &packed].concat());
    let stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let (executor, io) = (hyper_util::rt::TokioExecutor::new(), hyper_util::rt::TokioIo::new(stream));
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("http://test/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("grpc-encoding", "gzip")
        .body(http_body_util::Full::new(body))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    drop(http_body_util::BodyExt::collect(answer.into_body()).await);
    assert_eq!(local.arrived(), 1);
    let seen = local.seen.lock().unwrap().last().unwrap().clone();
    assert_eq!(seen.get("grpc-encoding").unwrap(), "gzip");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_messages_are_routed_individually() {
    for remote in [false, true] {
        let local = FakeLocal::new();
        let server = FakeRemote::start(Arc::clone(&local)).await;
        let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
        let endpoint = if remote {
            remote_endpoint("mlserver", 0, server.address)
        } else {
            local_endpoint("builtin", 0)
        };
        running.route(route("a", &[(1, 1, std::slice::from_ref(&endpoint))]));
        running.route(route("b", &[(2, 1, &[endpoint])]));
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut answers = client(&running).await.model_stream_infer(stream).await.unwrap().into_inner();
        for (model, answered, error) in
            [("a", "a_1", ""), ("b", "b_2", ""), ("c", "", "there is no model \"c\""), ("a", "a_1", "")]
        {
            sender.send(infer(model)).await.unwrap();
            let answer = answers.next().await.unwrap().unwrap();
            assert_eq!(answer.error_message, error);
            assert_eq!(answer.infer_response.map(|r| r.model_name).unwrap_or_default(), answered);
        }
        sender.send(pb::ModelInferRequest { id: "fail".into(), ..infer("a") }).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "failure requested: 100 %");
        drop(sender);
        assert!(answers.next().await.is_none(), "the stream ends well");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_health_and_reflection_are_served() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let local = FakeLocal::new();
    let running = Running::with_iris(&local);
    let channel =
        Channel::from_shared(format!("http://{}", running.address)).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    let check = || HealthCheckRequest { service: String::new() };
    assert_eq!(health.check(check()).await.unwrap().into_inner().status(), ServingStatus::NotServing);
    running.routes.apply(reset());
    running.routes.apply(synced());
    assert_eq!(health.check(check()).await.unwrap().into_inner().status(), ServingStatus::Serving);

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}");
    };
    assert!(list.service.iter().any(|s| s.name == "inference.GRPCInferenceService"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_encodings_and_content_types_are_rejected() {
    let running = Running::with_iris(&FakeLocal::new());
    let path = "/inference.GRPCInferenceService/ModelInfer";
    let headers = [("content-type", "application/grpc"), ("grpc-encoding", "zstd")];
    let answer = running.client().send("POST", path, &headers, Bytes::new()).await;
    assert_eq!(
        (answer.header("grpc-status"), answer.header("grpc-accept-encoding")),
        ("12", "identity,gzip,deflate")
    );
    for content_type in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"] {
        let answer =
            running.client().send("POST", path, &[("content-type", content_type)], Bytes::new()).await;
        assert_eq!(answer.status, 415);
        assert_eq!(
            answer.text(),
            "{\"error\":\"gRPC-Web is not supported: use gRPC (application/grpc) or REST\"}"
        );
    }
}
