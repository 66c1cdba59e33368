//! Taking questions: bounded in number, in size and in time, and with an answer to everything.

use super::{
    judge::judge,
    review::{Request as Question, Verdict},
};
use crate::context::Context;
use bytes::Bytes;
use futures::StreamExt as _;
use gantry_tls::{Connection, Server, incoming};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Where questions are put.
pub(super) const PATH: &str = "/validate";
/// The longest question: an object as it is and as it is to be, each as large as the API server stores.
const LONGEST: usize = 4 << 20;
/// How long a question may take to arrive and be answered. The API server waits for two seconds.
const LIMIT: Duration = Duration::from_secs(5);
/// Connections at a time; whoever comes besides is sent away at once.
const CONNECTIONS: usize = 128;
/// Questions that are read at a time: they take memory.
const READERS: usize = 8;
/// How long an unused connection is kept, and how often the other end of one is asked whether it is there.
const IDLE: Duration = Duration::from_secs(90);
const PING: Duration = Duration::from_secs(20);
/// How long what is under way may take when it stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// What answering needs.
struct Desk {
    context: Arc<Context>,
    readers: Semaphore,
}

/// Answers until it is told to stop.
pub(super) async fn serve(listener: TcpListener, tls: Server, context: Arc<Context>, stop: CancellationToken) {
    let desk = Arc::new(Desk { context, readers: Semaphore::new(READERS) });
    let mut arriving = pin!(incoming(listener, Some(tls)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            Some(Ok(connection)) = arriving.next() => {
                if connections.len() < CONNECTIONS {
                    connections.spawn(talk(connection, Arc::clone(&desk), stop.clone()));
                }
            }
        }
    }
    let _ = tokio::time::timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

async fn talk(connection: Connection, desk: Arc<Desk>, stop: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(64);
    let service = service_fn(move |request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(answer(request, &desk).await) }
    });
    let mut conversation = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let outcome = tokio::select! {
        outcome = conversation.as_mut() => outcome,
        () = stop.cancelled() => {
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection to the webhook ended");
    }
}

async fn answer(request: Request<Incoming>, desk: &Desk) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return said(StatusCode::NOT_FOUND, format!("there is {PATH}, for the API server"));
    }
    if request.method() != Method::POST {
        return said(StatusCode::METHOD_NOT_ALLOWED, format!("{PATH} takes a POST with an AdmissionReview"));
    }
    let outcome = match tokio::time::timeout(LIMIT, read(request, desk)).await {
        Ok(outcome) => outcome,
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            format!("the question did not arrive within {} s", LIMIT.as_secs()),
        )),
    };
    match outcome {
        Ok((question, verdict)) => {
            desk.context.metrics.judged(plural(&question), verdict.word());
            let mut response = Response::new(Full::from(verdict.body(&question.uid).to_string()));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err((code, why)) => {
            desk.context.metrics.judged("unknown", "unreadable");
            said(code, why)
        }
    }
}

/// Reads a question and answers it. The room for it is given back before anybody else's is taken.
async fn read(request: Request<Incoming>, desk: &Desk) -> Result<(Question, Verdict), (StatusCode, String)> {
    let Ok(_seat) = desk.readers.acquire().await else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "the webhook is stopping".into()));
    };
    let body = Limited::new(request.into_body(), LONGEST).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let most = LONGEST >> 20;
            (StatusCode::PAYLOAD_TOO_LARGE, format!("the question is longer than {most} MiB"))
        } else {
            (StatusCode::BAD_REQUEST, format!("the question did not arrive: {error}"))
        }
    })?;
    let question = Question::read(&body.to_bytes()).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let verdict = judge(&question, &desk.context.caches);
    if let Some(why) = &verdict.refusal {
        let (kind, namespace, name) = (&question.resource.plural, &question.namespace, &question.name);
        tracing::info!(%kind, %namespace, %name, "refused: {why}");
    }
    Ok((question, verdict))
}

/// The kind for metrics: one of ours, or none in particular. Whoever asks does not choose what is counted.
fn plural(question: &Question) -> &'static str {
    let mut controllers = gantry_api::resources().into_iter().map(|resource| resource.plural);
    controllers.find(|plural| *plural == question.resource.plural).unwrap_or("unknown")
}

fn said(code: StatusCode, why: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(why + "\n"));
    *response.status_mut() = code;
    response
}
