//! The scheduler in a world of its own: one thread, no sockets, time that a test lets pass.

use crate::support::{model, status_of, within};
use gantry_proto::scheduler::scheduler_client::SchedulerClient;
use gantry_scheduler::{Clock, Config, build, serve};
use gantry_store::Store;
use hyper_util::rt::TokioIo;
use std::{
    future::{Ready, ready},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    codegen::{Service, http::Uri},
    transport::Endpoint,
};

#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Connects once, to the other end of a pipe.
struct Pipe(Option<DuplexStream>);

impl Service<Uri> for Pipe {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().map(TokioIo::new).ok_or_else(|| io::ErrorKind::NotConnected.into()))
    }
}

#[tokio::test(start_paused = true)]
async fn it_runs_without_sockets_or_threads_on_a_clock_that_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Hands(AtomicU64::new(5_000)));
    let config = Config { clock: clock.clone(), ..Config::new(Store::open(dir.path()).unwrap()) };
    let (scheduler, engine) = build(config).unwrap();
    let running = tokio::spawn(engine.run());
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let stop = CancellationToken::new();
    let routes = scheduler.client_routes().unwrap();
    let incoming = tokio_stream::StreamExt::chain(
        tokio_stream::once(Ok::<_, io::Error>(theirs)),
        tokio_stream::pending(),
    );
    let serving = tokio::spawn(serve("clients", routes, incoming, stop.clone()));
    let channel =
        Endpoint::from_static("http://pipe").connect_with_connector(Pipe(Some(ours))).await.unwrap();
    let mut client = SchedulerClient::new(channel);
    client.load_model(model("iris", "/a")).await.unwrap();
    clock.0.store(9_000, Ordering::Relaxed);
    client.load_model(model("iris", "/b")).await.unwrap();
    let mut statuses = client.model_status(status_of("iris")).await.unwrap().into_inner();
    let status = within(statuses.message()).await.unwrap().unwrap();
    assert_eq!((status.versions[0].version, status.timestamp), (2, 9_000));
    // An hour passes in no time, and the writer is as well as before.
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(scheduler.progress().is_moving());
    scheduler.stop();
    within(running).await.unwrap();
    assert!(!scheduler.progress().is_moving());
    assert!(client.load_model(model("late", "/a")).await.is_err());
    stop.cancel();
    drop(client);
    within(serving).await.unwrap();
    Store::open(dir.path()).expect("the store is closed with the engine");
}
