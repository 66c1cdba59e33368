//! Watching what becomes of the models, over the scheduler's gRPC.

use gantry_proto::scheduler::{
    ModelStatusResponse, ModelSubscriptionRequest, model_status::ModelState,
    scheduler_client::SchedulerClient,
};
use std::collections::BTreeMap;
use tonic::{Status, Streaming, transport::Channel};

/// How a model fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// On its way.
    Pending,
    /// Serving.
    Ready,
    /// It will not serve until something changes.
    Failed {
        /// Why, for people.
        reason: String,
        /// Why, as a word to match.
        code: String,
    },
}

/// The fate of every model that is not deleted.
pub(crate) struct Statuses {
    stream: Streaming<ModelStatusResponse>,
    pub(crate) known: BTreeMap<String, Fate>,
    versions: BTreeMap<String, u32>,
}

impl Statuses {
    pub(crate) async fn open(client: &mut SchedulerClient<Channel>) -> Result<Self, Status> {
        let request =
            ModelSubscriptionRequest { subscriber_name: "gantry up".into(), is_model_gateway: false };
        let stream = client.subscribe_model_status(request).await?.into_inner();
        Ok(Self { stream, known: BTreeMap::new(), versions: BTreeMap::new() })
    }

    /// Waits until the fate of a model changes; `None` when the scheduler is gone.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            let status = self.stream.message().await.ok()??;
            if let Some(name) = self.take(status) {
                return Some(name);
            }
        }
    }

    fn take(&mut self, status: ModelStatusResponse) -> Option<String> {
        let name = status.model_name;
        if status.deleted {
            self.versions.remove(&name);
            return self.known.remove(&name).map(|_| name);
        }
        let state = status.versions.first().and_then(|v| v.state.clone()).unwrap_or_default();
        let fate = match state.state() {
            ModelState::ModelAvailable | ModelState::ModelScaledDown => Fate::Ready,
            ModelState::ModelFailed | ModelState::ScheduleFailed | ModelState::ModelTerminateFailed => {
                Fate::Failed { reason: state.reason, code: state.reason_code }
            }
            _ => Fate::Pending,
        };
        // A new version is news, also when the model was ready before.
        let version = status.versions.first().map_or(0, |v| v.version);
        let before = self.known.insert(name.clone(), fate.clone());
        let seen = self.versions.insert(name.clone(), version);
        let same = before.as_ref() == Some(&fate) && seen == Some(version);
        (!same).then_some(name)
    }

    pub(crate) fn settled(&self) -> bool {
        self.known.values().all(|fate| *fate != Fate::Pending)
    }
}
