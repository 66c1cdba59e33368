//! Versions named by clients: the one in service, no other.

use crate::support::{FakeLocal, FakeRemote, Running, config, local_endpoint, remote_endpoint, route};
use gantry_oip::server::{grpc_reply, json};
use gantry_proto::inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient};
use http::StatusCode;
use std::sync::Arc;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn only_versions_in_service_are_served() {
    for remote in [false, true] {
        let local = FakeLocal::new();
        let server = FakeRemote::start(Arc::clone(&local)).await;
        let running = Running::start(config(), |g| g.register_local("builtin", 0, Arc::clone(&local) as _));
        let endpoint = if remote {
            [remote_endpoint("mlserver", 0, server.address)]
        } else {
            [local_endpoint("builtin", 0)]
        };
        running.route(route("iris", &[(3, 1, &endpoint)]));
        running.route(route("moving", &[(1, 1, &endpoint), (2, 1, &endpoint)]));
        let client = running.client();
        let post = |path: &'static str| client.send("POST", path, &[], "{}");
        let answer = post("/v2/models/iris/versions/3/infer").await;
        assert_eq!((answer.status.as_u16(), answer.header("x-seldon-route")), (200, ":iris_3:"));
        assert!(answer.text().contains("/v2/models/iris_3/infer"), "{answer:?}");
        for path in ["/v2/models/iris/versions/99/infer", "/v2/models/iris/versions/99/infer?a=1"] {
            let answer = post(path).await;
            assert_eq!(answer.status, 404);
            assert!(answer.text().contains("version 3 is in service"), "{answer:?}");
        }
        assert_eq!(post("/v2/models/iris/versions/latest/infer").await.status, 404);
        assert_eq!(client.get("/v2/models/iris/versions/3").await.status, 200);
        for path in ["/v2/models/iris/versions/99", "/v2/models/iris/versions/99/ready"] {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
        for _ in 0..10 {
            assert_eq!(
                post("/v2/models/moving/versions/1/infer").await.header("x-seldon-route"),
                ":moving_1:"
            );
            assert_eq!(
                post("/v2/models/moving/versions/2/infer").await.header("x-seldon-route"),
                ":moving_2:"
            );
        }

        let mut grpc =
            GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
        let infer = |version: &str, size: usize| pb::ModelInferRequest {
            model_name: "iris".into(),
            model_version: version.into(),
            raw_input_contents: vec![vec![1; size].into()],
            ..Default::default()
        };
        for size in [1, 200_000] {
            for version in ["", "3"] {
                let answer = grpc.model_infer(infer(version, size)).await.unwrap();
                assert_eq!(answer.into_inner().model_name, "iris_3");
            }
            for version in ["99", "latest"] {
                let status = grpc.model_infer(infer(version, size)).await.unwrap_err();
                assert_eq!(status.code(), Code::NotFound, "{version} {size} {status:?}");
            }
        }
        for (name, version, ready) in [("iris", "3", true), ("iris", "99", false), ("absent", "", false)] {
            let request = pb::ModelReadyRequest { name: name.into(), version: version.into() };
            let answer = grpc.model_ready(request).await.unwrap().into_inner();
            assert_eq!(answer.ready, ready, "{name} {version}");
        }
        let about = pb::ModelMetadataRequest { name: "iris".into(), version: "99".into() };
        assert_eq!(grpc.model_metadata(about).await.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_a_remote_server_shows_the_version_in_service() {
    let server = FakeLocal::new();
    server.respond_by(|request| {
        let versions = vec!["1".to_owned(), "2".to_owned()];
        Some(match request.uri().path() {
            "/v2/models/iris_3" => {
                let body =
                    r#"{"name":"iris_3","versions":["1","2"],"platform":"onnx","inputs":[],"outputs":[]}"#;
                json(StatusCode::OK, body.into())
            }
            "/inference.GRPCInferenceService/ModelMetadata" => grpc_reply(&pb::ModelMetadataResponse {
                name: "iris_3".into(),
                versions,
                ..Default::default()
            }),
            other => panic!("{other}"),
        })
    });
    let remote = FakeRemote::start(Arc::clone(&server)).await;
    let running = Running::start(config(), |_| {});
    running.route(route("iris", &[(3, 1, &[remote_endpoint("triton", 0, remote.address)])]));
    for path in ["/v2/models/iris", "/v2/models/iris/versions/3"] {
        let answer = running.client().get(path).await;
        let metadata: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(metadata["versions"], serde_json::json!(["3"]), "{answer:?}");
        assert_eq!(metadata["platform"], "onnx");
    }
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", running.address)).await.unwrap();
    let about = pb::ModelMetadataRequest { name: "iris".into(), ..Default::default() };
    let metadata = grpc.model_metadata(about).await.unwrap().into_inner();
    assert_eq!((metadata.name.as_str(), metadata.versions), ("iris_3", vec!["3".to_owned()]));
}
