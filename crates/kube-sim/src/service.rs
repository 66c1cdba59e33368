//! The HTTP service for `kube::Client`.

use super::{
    request::HttpRequest,
    server::{Delivery, Server},
    state::Reply,
    watch::Watch,
};
use ::kube::client::Body;
use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use http::{HeaderMap, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Clone, Debug)]
pub struct HttpService {
    server: Server,
    actor: String,
}

impl HttpService {
    /// `actor` names the client in the trace.
    pub fn new(server: Server, actor: &str) -> Self {
        Self { server, actor: actor.into() }
    }
}

impl tower_service::Service<Request<Body>> for HttpService {
    type Response = Answer;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<Answer, io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { server, actor } = self.clone();
        Box::pin(async move {
            let raw = read(request).await?;
            match server.deliver(&actor, &raw) {
                Delivery::Lost { after } => {
                    tokio::time::sleep(after).await;
                    Err(io::Error::new(io::ErrorKind::TimedOut, "injected connection loss"))
                }
                Delivery::Answer { reply, after } => {
                    if !after.is_zero() {
                        tokio::time::sleep(after).await;
                    }
                    written(server, reply)
                }
            }
        })
    }
}

async fn read(request: Request<Body>) -> io::Result<HttpRequest> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let text = |headers: &HeaderMap, name: header::HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    Ok(HttpRequest {
        method: parts.method.to_string(),
        target: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        content_type: text(&parts.headers, header::CONTENT_TYPE),
        accept: text(&parts.headers, header::ACCEPT),
        user_agent: text(&parts.headers, header::USER_AGENT),
        body: body.to_vec(),
    })
}

fn written(server: Server, reply: Reply) -> io::Result<Answer> {
    let answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
    let answer = match reply {
        Reply::Json { code, body, retry_after } => {
            let answer = match retry_after {
                Some(seconds) => answer.header(header::RETRY_AFTER, seconds),
                None => answer,
            };
            let text = match body {
                Value::String(text) => text,
                document => document.to_string(),
            };
            answer.status(code).body(Full::new(Bytes::from(text)).boxed_unsync())
        }
        Reply::Watch(watch) => answer.status(200).body(streamed(server, *watch)),
    };
    answer.map_err(io::Error::other)
}

struct Streaming {
    changes: watch::Receiver<u64>,
    server: Server,
    watch: Watch,
    ready: VecDeque<Value>,
    bookmark_at: Instant,
}

fn streamed(server: Server, watch: Watch) -> UnsyncBoxBody<Bytes, Infallible> {
    let changes = server.changes();
    let bookmark_at = Instant::now() + BOOKMARK_EVERY;
    let start = Streaming { changes, server, watch, ready: VecDeque::new(), bookmark_at };
    let events = stream::unfold(start, |mut streaming| async move {
        let event = streaming.next().await?;
        Some((event, streaming))
    });
    let frames = events.map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
    StreamBody::new(frames).boxed_unsync()
}

impl Streaming {
    /// `None` at the end of the watch.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.watch.ended() || self.server.now() >= self.watch.until {
                return None;
            }
            self.changes.borrow_and_update();
            let (events, look_at) = self.server.next_events(&mut self.watch);
            self.ready.extend(events);
            if !self.ready.is_empty() || self.watch.ended() {
                continue;
            }
            if self.watch.bookmarks && Instant::now() >= self.bookmark_at {
                self.bookmark_at = Instant::now() + BOOKMARK_EVERY;
                return Some(self.watch.bookmark());
            }
            self.wait(look_at).await?;
        }
    }

    async fn wait(&mut self, look_at: Option<jiff::Timestamp>) -> Option<()> {
        let mut wake = self.server.instant(self.watch.until);
        if let Some(look_at) = look_at {
            wake = wake.min(self.server.instant(look_at));
        }
        if self.watch.bookmarks {
            wake = wake.min(self.bookmark_at);
        }
        tokio::select! {
            biased;
            changed = self.changes.changed() => {
                changed.ok()?;
                if self.watch.trouble.coalesce {
                    tokio::time::sleep(Duration::from_millis(self.watch.trouble.gathers_millis)).await;
                }
            }
            () = tokio::time::sleep_until(wake) => {}
        }
        Some(())
    }
}
