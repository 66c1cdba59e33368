//! Status subscribers: one that reads, and one that does not.

use super::client::SchedulerApi;
use gantry_proto::scheduler::{
    ExperimentStatusResponse, ExperimentSubscriptionRequest, ModelStatusResponse, ModelSubscriptionRequest,
    PipelineStatusResponse, PipelineSubscriptionRequest,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The latest received status of each object of one kind.
#[derive(Debug)]
struct Latest<T>(Mutex<BTreeMap<String, T>>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Latest<T> {
    fn of(&self, name: &str) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn record(&self, name: String, status: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, status);
    }
}

/// The latest received statuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastStatuses {
    models: Arc<Latest<ModelStatusResponse>>,
    pipelines: Arc<Latest<PipelineStatusResponse>>,
    experiments: Arc<Latest<ExperimentStatusResponse>>,
}

impl LastStatuses {
    pub(crate) fn of(&self, model: &str) -> Option<ModelStatusResponse> {
        self.models.of(model)
    }

    pub(crate) fn pipeline(&self, name: &str) -> Option<PipelineStatusResponse> {
        self.pipelines.of(name)
    }

    pub(crate) fn experiment(&self, name: &str) -> Option<ExperimentStatusResponse> {
        self.experiments.of(name)
    }
}

fn request(name: &str) -> ModelSubscriptionRequest {
    ModelSubscriptionRequest { subscriber_name: name.to_owned(), is_model_gateway: false }
}

/// Resubscribes whenever the stream ends.
pub(crate) async fn subscribe(api: SchedulerApi, last_statuses: LastStatuses) {
    loop {
        let subscription = async {
            let mut client = api.connect().await?;
            let mut stream = client.subscribe_model_status(request("listener")).await?.into_inner();
            let request = PipelineSubscriptionRequest::default();
            let mut pipelines = client.subscribe_pipeline_status(request).await?.into_inner();
            let request = ExperimentSubscriptionRequest::default();
            let mut experiments = client.subscribe_experiment_status(request).await?.into_inner();
            loop {
                tokio::select! {
                    biased;
                    status = stream.message() => match status? {
                        Some(status) => last_statuses.models.record(status.model_name.clone(), status),
                        None => return Ok(()),
                    },
                    status = pipelines.message() => match status? {
                        Some(status) => last_statuses.pipelines.record(status.pipeline_name.clone(), status),
                        None => return Ok(()),
                    },
                    status = experiments.message() => match status? {
                        Some(status) => last_statuses.experiments.record(status.experiment_name.clone(), status),
                        None => return Ok(()),
                    },
                }
            }
        };
        let _: Result<(), tonic::Status> = subscription.await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Subscribes and never reads.
pub(crate) async fn stall(api: SchedulerApi, lasts: Duration) {
    if let Ok(mut client) = api.connect().await
        && let Ok(stream) = client.subscribe_model_status(request("stalled")).await
    {
        tokio::time::sleep(lasts).await;
        drop(stream);
    }
}
