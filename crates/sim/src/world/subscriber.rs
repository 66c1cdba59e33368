//! Somebody who follows the statuses of models, and somebody who only says so.

use super::user::Desk;
use gantry_proto::scheduler::{ModelStatusResponse, ModelSubscriptionRequest};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The last that was heard of each model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<BTreeMap<String, ModelStatusResponse>>>);

impl Heard {
    pub(crate) fn of(&self, model: &str) -> Option<ModelStatusResponse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(model).cloned()
    }

    fn note(&self, status: ModelStatusResponse) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(status.model_name.clone(), status);
    }
}

fn request(name: &str) -> ModelSubscriptionRequest {
    ModelSubscriptionRequest { subscriber_name: name.to_owned(), is_model_gateway: false }
}

/// Follows for ever; subscribes again when the stream ends.
pub(crate) async fn follow(desk: Desk, heard: Heard) {
    loop {
        let following = async {
            let mut client = desk.connect().await?;
            let mut stream = client.subscribe_model_status(request("listener")).await?.into_inner();
            while let Some(status) = stream.message().await? {
                heard.note(status);
            }
            Ok::<(), tonic::Status>(())
        };
        let _ = following.await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Subscribes, and never reads.
pub(crate) async fn ignore(desk: Desk, lasts: Duration) {
    if let Ok(mut client) = desk.connect().await
        && let Ok(stream) = client.subscribe_model_status(request("deaf")).await
    {
        tokio::time::sleep(lasts).await;
        drop(stream);
    }
}
