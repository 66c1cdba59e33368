//! Streams of statuses: what there is and then the end, or what there is and then every change.

use super::{Stream, WINDOW, deliver};
use crate::{engine::Handle, outbox::Subscribers};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Response;

/// The current state of everything, then every change. The answer is made when it is sent: a slow subscriber gets the
/// newest, not the oldest.
pub(super) fn subscribe<T: Send + 'static>(
    engine: &Handle,
    kind: &'static str,
    subscribers: &Subscribers,
    everything: fn(&Handle) -> Vec<Arc<str>>,
    describe: fn(&Handle, &Arc<str>) -> Vec<T>,
) -> Response<Stream<T>> {
    let outbox = subscribers.join();
    let engine = engine.clone();
    let (sender, receiver) = mpsc::channel(WINDOW);
    tokio::spawn(async move {
        let _counted = engine.metrics.subscribed(kind);
        for name in everything(&engine) {
            for message in describe(&engine, &name) {
                if !deliver(&sender, message).await {
                    return;
                }
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

/// Sends what is there, then ends.
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
