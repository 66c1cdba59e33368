//! Status streams: snapshots and subscriptions.

use super::{Stream, WINDOW, deliver};
use crate::{engine::Handle, outbox::Subscribers};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Response;

/// Sends the current state of every object, then changes. Messages are built when sent, so a slow subscriber gets the
/// latest state.
pub(super) fn subscribe<T: Send + 'static>(
    engine: &Handle,
    kind: &'static str,
    subscribers: &Subscribers,
    everything: fn(&Handle) -> Vec<Arc<str>>,
    describe: fn(&Handle, &Arc<str>) -> Vec<T>,
) -> Response<Stream<T>> {
    subscribe_between(engine, kind, subscribers, everything, describe, [None, None])
}

/// As [`subscribe`], with messages before and after the current state.
pub(super) fn subscribe_between<K: Clone + Ord + Send + Sync + 'static, T: Send + 'static>(
    engine: &Handle,
    kind: &'static str,
    subscribers: &Subscribers<K>,
    everything: fn(&Handle) -> Vec<K>,
    describe: fn(&Handle, &K) -> Vec<T>,
    [before, after]: [Option<T>; 2],
) -> Response<Stream<T>> {
    let outbox = subscribers.join();
    let engine = engine.clone();
    let (sender, receiver) = mpsc::channel(WINDOW);
    tokio::spawn(async move {
        let _counted = engine.metrics.subscribed(kind);
        let current = everything(&engine);
        let current = current.iter().flat_map(|name| describe(&engine, name));
        for message in before.into_iter().chain(current).chain(after) {
            if !deliver(&sender, message).await {
                return;
            }
        }
        loop {
            let names = tokio::select! {
                biased;
                () = sender.closed() => return,
                () = engine.stop.cancelled() => return,
                names = outbox.changed() => names,
            };
            for name in names {
                for message in describe(&engine, &name) {
                    if !deliver(&sender, message).await {
                        return;
                    }
                }
            }
        }
    });
    Response::new(Stream::new(receiver))
}

/// Sends the current state, then ends.
pub(super) fn snapshot<T: Send + 'static>(
    engine: &Handle,
    names: Vec<Arc<str>>,
    describe: impl Fn(&Handle, &Arc<str>) -> Option<T> + Send + 'static,
) -> Response<Stream<T>> {
    let engine = engine.clone();
    let (sender, receiver) = mpsc::channel(WINDOW);
    tokio::spawn(async move {
        for name in names {
            if let Some(message) = describe(&engine, &name)
                && !deliver(&sender, message).await
            {
                return;
            }
        }
    });
    Response::new(Stream::new(receiver))
}
