//! Status subscribers: one that reads, and one that does not.

use super::client::SchedulerApi;
use gantry_proto::scheduler::{ModelStatusResponse, ModelSubscriptionRequest};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The latest received status of each model.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastStatuses(Arc<Mutex<BTreeMap<String, ModelStatusResponse>>>);

impl LastStatuses {
    pub(crate) fn of(&self, model: &str) -> Option<ModelStatusResponse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    fn record(&self, status: ModelStatusResponse) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(status.model_name.clone(), status);
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
            while let Some(status) = stream.message().await? {
                last_statuses.record(status);
            }
            Ok::<(), tonic::Status>(())
        };
        let _ = subscription.await;
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
