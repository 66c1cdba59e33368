//! `ModelStreamInfer` to servers that support streams.

use crate::support::{
    FakeLocal, FakeRemote, Figures, Running, TEST_TIMEOUT, Tally, config, remote_endpoint, rolled_out, route,
    until,
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use gantry_gateway::Config;
use gantry_oip::grpc::{encode_frame, status_trailers};
use gantry_proto::inference::{
    self as pb, grpc_inference_service_client::GrpcInferenceServiceClient as Client,
    infer_parameter::ParameterChoice,
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

type Frames = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// A server of a decoupled model: a message with the ID `n` gets `n` responses.
struct Decoupled {
    address: SocketAddr,
    streams: Arc<AtomicUsize>,
}

impl Decoupled {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let streams = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&streams);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        std::future::ready(Ok::<_, Infallible>(answer(request, &counted)))
                    });
                    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, streams }
    }
}

fn answer(request: Request<Incoming>, streams: &AtomicUsize) -> Response<Frames> {
    assert_eq!(request.uri().path(), "/inference.GRPCInferenceService/ModelStreamInfer");
    streams.fetch_add(1, Ordering::SeqCst);
    let internal = request.headers()["seldon-internal-model"].to_str().unwrap().to_owned();
    let (frames, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let (mut body, mut received) = (request.into_body(), BytesMut::new());
        while let Some(Ok(frame)) = body.frame().await {
            received.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
            while let Some((prefix, rest)) = received.split_first_chunk::<5>() {
                let length = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                if rest.len() < length {
                    break;
                }
                let message = received.split_to(5 + length).freeze().slice(5..);
                let request = pb::ModelInferRequest::decode(message).unwrap();
                assert_eq!(request.model_name, internal, "the name of the version is in the message");
                for index in 1..=request.id.parse::<u32>().unwrap() {
                    let is_last = index.to_string() == request.id;
                    let parameter =
                        pb::InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(is_last)) };
                    let response = pb::ModelInferResponse {
                        model_name: internal.clone(),
                        id: request.id.clone(),
                        parameters: [("triton_final_response".to_owned(), parameter)].into(),
                        ..Default::default()
                    };
                    let framed = encode_frame(&pb::ModelStreamInferResponse {
                        error_message: String::new(),
                        infer_response: Some(response),
                    });
                    if frames.send(Ok(Frame::data(framed))).await.is_err() {
                        return;
                    }
                }
            }
        }
        let _ = frames.send(Ok(Frame::trailers(status_trailers(None)))).await;
    });
    let body = StreamBody::new(ReceiverStream::new(receiver));
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

/// Error, model and ID of a response, and whether it is the final one.
type Received = (String, String, String, bool);

struct Session {
    messages: mpsc::Sender<pb::ModelInferRequest>,
    answers: tonic::Streaming<pb::ModelStreamInferResponse>,
}

impl Session {
    async fn open(running: &Running) -> Self {
        let (messages, receiver) = mpsc::channel(4);
        let mut client = Client::connect(format!("http://{}", running.address)).await.unwrap();
        let answers = client.model_stream_infer(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { messages, answers }
    }

    async fn send(&self, model: &str, id: &str) {
        let message = pb::ModelInferRequest { model_name: model.into(), id: id.into(), ..Default::default() };
        self.messages.send(message).await.unwrap();
    }

    async fn next(&mut self) -> Option<Received> {
        let next =
            tokio::time::timeout(TEST_TIMEOUT, self.answers.next()).await.expect("no response")?.unwrap();
        let response = next.infer_response.unwrap_or_default();
        let parameter = response.parameters.get("triton_final_response").cloned().unwrap_or_default();
        let is_final = parameter.parameter_choice == Some(ParameterChoice::BoolParam(true));
        Some((next.error_message, response.model_name, response.id, is_final))
    }
}

fn answered(model: &str, id: &str, is_final: bool) -> Received {
    (String::new(), model.into(), id.into(), is_final)
}

#[tokio::test(flavor = "multi_thread")]
async fn decoupled_model_sends_several_responses() {
    let server = Decoupled::start().await;
    let running = Running::start(config(), |_| {});
    running.route(route("llm", &[(2, 1, &[remote_endpoint("triton", 0, server.address)])]));
    let mut session = Session::open(&running).await;
    session.send("llm", "3").await;
    for is_final in [false, false, true] {
        assert_eq!(session.next().await, Some(answered("llm_2", "3", is_final)));
    }
    session.send("missing", "7").await;
    let error = "there is no model \"missing\"".to_owned();
    assert_eq!(
        session.next().await,
        Some((error, String::new(), "7".into(), false)),
        "an error carries the ID"
    );
    session.send("llm", "1").await;
    assert_eq!(session.next().await, Some(answered("llm_2", "1", true)));
    assert_eq!(server.streams.load(Ordering::SeqCst), 1, "messages share a stream");
    assert_eq!(running.routes.in_flight("llm", 2, "triton", 0), 1);
    assert_eq!(running.metric("gantry_gateway_in_flight"), 1);

    // A new version: its messages go to a new stream, and the old one ends.
    running.route(route("llm", &[(3, 1, &[remote_endpoint("triton", 0, server.address)])]));
    session.send("llm", "1").await;
    assert_eq!(session.next().await, Some(answered("llm_3", "1", true)));
    tokio::time::timeout(TEST_TIMEOUT, running.routes.drained("llm", 2)).await.expect("version 2 is drained");
    session.send("llm", "2").await;
    session.messages = mpsc::channel(1).0;
    for is_final in [false, true] {
        assert_eq!(session.next().await, Some(answered("llm_3", "2", is_final)), "the last responses arrive");
    }
    assert_eq!(session.next().await, None, "the stream ends well");
    until("no slot is taken", || async {
        running.routes.in_flight("llm", 3, "triton", 0) == 0
            && running.metric("gantry_gateway_in_flight") == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_without_responses_ends_at_the_timeout() {
    let server = Decoupled::start().await;
    let running = Running::start(Config { request_timeout: Duration::from_secs(2), ..config() }, |_| {});
    running.route(route("llm", &[(1, 1, &[remote_endpoint("triton", 0, server.address)])]));
    let mut session = Session::open(&running).await;
    session.send("llm", "1").await;
    assert_eq!(session.next().await, Some(answered("llm_1", "1", true)));
    // The server never answers the ID 0.
    session.send("llm", "0").await;
    let error = "model llm did not respond within 2.0 s".to_owned();
    assert_eq!(session.next().await, Some((error, String::new(), "0".into(), false)));
    until("the slot is free", || async { running.routes.in_flight("llm", 1, "triton", 0) == 0 }).await;
    session.send("llm", "1").await;
    assert_eq!(session.next().await, Some(answered("llm_1", "1", true)), "the client's stream continues");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_stream_to_a_replica_ends_without_an_error() {
    let server = Decoupled::start().await;
    let running = Running::start(Config { request_timeout: Duration::from_secs(2), ..config() }, |_| {});
    running.route(route("llm", &[(1, 1, &[remote_endpoint("triton", 0, server.address)])]));
    let mut session = Session::open(&running).await;
    session.send("llm", "2").await;
    assert_eq!(session.next().await, Some(answered("llm_1", "2", false)));
    assert_eq!(session.next().await, Some(answered("llm_1", "2", true)));
    until("the slot is free", || async { running.routes.in_flight("llm", 1, "triton", 0) == 0 }).await;
    session.send("llm", "1").await;
    assert_eq!(session.next().await, Some(answered("llm_1", "1", true)));
    assert_eq!(server.streams.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_streams_gets_unary_calls() {
    let server = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config(), |_| {});
    running.route(route("m", &[(1, 1, &[remote_endpoint("mlserver", 0, server.address)])]));
    let mut session = Session::open(&running).await;
    for id in ["a", "b", "c"] {
        session.send("m", id).await;
        assert_eq!(session.next().await, Some(answered("m_1", id, false)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_on_a_stream_count_one_by_one_in_a_rollout() {
    let server = Decoupled::start().await;
    let running = Running::start(Config { request_timeout: Duration::from_secs(1), ..config() }, |_| {});
    let there = [remote_endpoint("triton", 0, server.address)];
    running.route(rolled_out(1, route("llm", &[(1, 1, &there)])));
    let mut session = Session::open(&running).await;
    for id in ["1", "3", "2"] {
        session.send("llm", id).await;
        while !session.next().await.unwrap().3 {}
    }
    assert_eq!(Tally::taken(&running, 3).await.of("llm", 1, 1), Figures::successes(3), "while it is open");
    // The server never answers the ID 0.
    session.send("llm", "0").await;
    assert!(session.next().await.unwrap().0.contains("did not respond"));
    let timed_out = Figures { timeouts: 1, ..Figures::successes(1) };
    assert_eq!(Tally::taken(&running, 1).await.of("llm", 1, 1), timed_out);
    drop(session);
    until("the slot is free", || async { running.routes.in_flight("llm", 1, "triton", 0) == 0 }).await;
    assert_eq!(running.routes.take_traffic().1, [], "the stream itself is no request");
}

#[tokio::test(flavor = "multi_thread")]
async fn unary_calls_for_a_stream_count_without_the_attempt_to_open_it() {
    let server = FakeRemote::start(FakeLocal::new()).await;
    let running = Running::start(config(), |_| {});
    let there = [remote_endpoint("mlserver", 0, server.address)];
    running.route(rolled_out(1, route("m", &[(1, 1, &there)])));
    let mut session = Session::open(&running).await;
    for id in ["a", "b"] {
        session.send("m", id).await;
        assert_eq!(session.next().await, Some(answered("m_1", id, false)));
    }
    assert_eq!(Tally::taken(&running, 2).await.of("m", 1, 1), Figures::successes(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_a_replica_does_not_accept_counts_as_timeout() {
    // Without HTTP/2 settings the stream never opens.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = Running::start(Config { request_timeout: Duration::from_millis(300), ..config() }, |_| {});
    let there = [remote_endpoint("silent", 0, listener.local_addr().unwrap())];
    running.route(rolled_out(1, route("m", &[(1, 1, &there)])));
    let mut session = Session::open(&running).await;
    session.send("m", "a").await;
    let error = "model m did not respond within 0.3 s".to_owned();
    assert_eq!(session.next().await, Some((error, String::new(), "a".into(), false)));
    let timed_out = Figures { timeouts: 1, ..Figures::successes(1) };
    assert_eq!(Tally::taken(&running, 1).await.of("m", 1, 1), timed_out);
}
