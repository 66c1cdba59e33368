//! Requests that arrive together become one call of the model server.

use super::{
    batch_queue::{Batch, BatchLimits, BatchQueue},
    component::ComponentClient,
};
use bytes::Bytes;
use gantry_oip::{
    Error, Limits,
    server::{self, Reply},
    v1::{self, Instances},
};
use gantry_transport::request_id::RequestIds;
use http::{Response, StatusCode};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::task::TaskTracker;

#[derive(Clone, Copy, Debug)]
pub struct BatcherSettings {
    /// Instances of a batch.
    pub max_size: usize,
    /// How long the first request of a batch waits for others.
    pub max_latency: Duration,
    /// Deadline of the call of a batch.
    pub timeout: Duration,
}

struct Submission {
    path: String,
    instances: Instances,
    reply: oneshot::Sender<Response<Reply>>,
}

pub(super) struct Batcher {
    queue: mpsc::Sender<Submission>,
}

#[derive(Clone, Default)]
struct Metrics {
    batches: Counter,
    requests: Counter,
    failed: Counter,
}

impl Batcher {
    /// `capacity` is the number of requests that can wait; the limit of requests in flight is the same.
    pub(super) fn start(
        settings: BatcherSettings,
        component: Arc<ComponentClient>,
        capacity: usize,
        tasks: &TaskTracker,
        registry: &mut Registry,
    ) -> Self {
        let metrics = Metrics::default();
        registry.register("gantry_batches", "Batches sent to the model server", metrics.batches.clone());
        registry.register("gantry_batch_requests", "Requests in batches", metrics.requests.clone());
        registry.register("gantry_batches_failed", "Batches without predictions", metrics.failed.clone());
        let (queue, submissions) = mpsc::channel(capacity.max(1));
        let runner =
            Arc::new(Runner { component, metrics, timeout: settings.timeout, ids: RequestIds::new(1) });
        let limits = BatchLimits {
            size: settings.max_size,
            bytes: runner.component.max_body(),
            latency: settings.max_latency,
        };
        tasks.spawn(collect(submissions, BatchQueue::new(limits), runner, tasks.clone()));
        Self { queue }
    }

    /// The response to one request of a batch. A caller that is gone leaves its batch if it is not sent yet.
    pub(super) async fn predict(&self, path: &str, body: &Bytes) -> Result<Response<Reply>, Error> {
        let instances = v1::read_instances(body, &Limits::default())?;
        let (reply, response) = oneshot::channel();
        let submission = Submission { path: path.to_owned(), instances, reply };
        let stopped = || Error::unavailable("the batcher is stopping", 1);
        self.queue.send(submission).await.map_err(|_| stopped())?;
        response.await.map_err(|_| stopped())
    }
}

/// Collects batches until the last request is submitted, then sends the incomplete ones.
async fn collect(
    mut submissions: mpsc::Receiver<Submission>,
    mut queue: BatchQueue<oneshot::Sender<Response<Reply>>>,
    runner: Arc<Runner>,
    tasks: TaskTracker,
) {
    loop {
        let due = queue.next_due();
        let is_due = async {
            match due {
                Some(due) => tokio::time::sleep_until(Instant::from_std(due)).await,
                None => std::future::pending().await,
            }
        };
        let complete = tokio::select! {
            submission = submissions.recv() => match submission {
                None => break,
                Some(Submission { path, instances, reply }) => {
                    queue.add(&path, instances, reply, Instant::now().into_std())
                }
            },
            () = is_due => queue.take_due(Instant::now().into_std()),
        };
        for batch in complete {
            tasks.spawn(Arc::clone(&runner).run(batch));
        }
    }
    for batch in queue.take_all() {
        tasks.spawn(Arc::clone(&runner).run(batch));
    }
}

struct Runner {
    component: Arc<ComponentClient>,
    metrics: Metrics,
    timeout: Duration,
    ids: RequestIds,
}

impl Runner {
    async fn run(self: Arc<Self>, mut batch: Batch<oneshot::Sender<Response<Reply>>>) {
        batch.members.retain(|(_, reply)| !reply.is_closed());
        if batch.members.is_empty() {
            return;
        }
        self.metrics.batches.inc();
        self.metrics.requests.inc_by(batch.members.len() as u64);
        let id = self.ids.next();
        let id_text = id.to_str().unwrap_or_default();
        let counts: Vec<usize> = batch.members.iter().map(|(instances, _)| instances.count).collect();
        let body = v1::join_instances(batch.members.iter().map(|(instances, _)| instances));
        let deadline = gantry_transport::deadline(Instant::now(), self.timeout);
        let called = self.component.predict(&batch.path, body, id.clone(), deadline).await;
        let replies: Vec<oneshot::Sender<_>> = batch.members.into_iter().map(|(_, reply)| reply).collect();
        let split = match called {
            Ok((StatusCode::OK, body)) => v1::split_predictions(&body, &counts, &Limits::default())
                .map_err(|error| (StatusCode::BAD_GATEWAY, id_text, error.message)),
            // The batch has no ID where the model has not predicted, as in KServe.
            Ok((status, body)) => Err((status, "", String::from_utf8_lossy(&body).into_owned())),
            Err(error) => Err((error.code.http(), "", error.message)),
        };
        match split {
            Ok(predictions) => {
                for (reply, own) in replies.into_iter().zip(predictions) {
                    let body = v1::encode_batched("", id_text, Some(&own));
                    let _ = reply.send(server::json(StatusCode::OK, body));
                }
            }
            Err((status, id, message)) => {
                self.metrics.failed.inc();
                tracing::debug!(path = batch.path, %status, message, "batch failed");
                // A status that is no error would hide the failure from clients.
                let is_error = status.is_client_error() || status.is_server_error();
                let status = if is_error { status } else { StatusCode::BAD_GATEWAY };
                let body = v1::encode_batched(&message, id, None);
                for reply in replies {
                    let _ = reply.send(server::json(status, body.clone()));
                }
            }
        }
    }
}
