//! Model status subscription to the scheduler.

use gantry_proto::scheduler::{
    ModelStatusResponse, ModelSubscriptionRequest, model_status::ModelState,
    scheduler_client::SchedulerClient,
};
use std::collections::BTreeMap;
use tonic::{Status, Streaming, transport::Channel};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelOutcome {
    Pending,
    Ready,
    /// Does not become ready without a change.
    Failed {
        reason: String,
        code: String,
    },
}

/// The outcome of every model that is not deleted.
pub(crate) struct StatusStream {
    stream: Streaming<ModelStatusResponse>,
    pub(crate) outcomes: BTreeMap<String, ModelOutcome>,
    versions: BTreeMap<String, u32>,
}

impl StatusStream {
    pub(crate) async fn open(client: &mut SchedulerClient<Channel>) -> Result<Self, Status> {
        let request =
            ModelSubscriptionRequest { subscriber_name: "gantry up".into(), is_model_gateway: false };
        let stream = client.subscribe_model_status(request).await?.into_inner();
        Ok(Self { stream, outcomes: BTreeMap::new(), versions: BTreeMap::new() })
    }

    /// The next model whose outcome or version changes; `None` after the scheduler closed the stream.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            let status = self.stream.message().await.ok()??;
            if let Some(name) = self.update(status) {
                return Some(name);
            }
        }
    }

    fn update(&mut self, status: ModelStatusResponse) -> Option<String> {
        let name = status.model_name;
        if status.deleted {
            self.versions.remove(&name);
            return self.outcomes.remove(&name).map(|_| name);
        }
        let state = status.versions.first().and_then(|v| v.state.clone()).unwrap_or_default();
        let outcome = match state.state() {
            ModelState::ModelAvailable | ModelState::ModelScaledDown => ModelOutcome::Ready,
            ModelState::ModelFailed | ModelState::ScheduleFailed | ModelState::ModelTerminateFailed => {
                ModelOutcome::Failed { reason: state.reason, code: state.reason_code }
            }
            _ => ModelOutcome::Pending,
        };
        // A new version is a change even if the model stays ready.
        let version = status.versions.first().map_or(0, |v| v.version);
        let before = self.outcomes.insert(name.clone(), outcome.clone());
        let seen = self.versions.insert(name.clone(), version);
        let unchanged = before == Some(outcome) && seen == Some(version);
        (!unchanged).then_some(name)
    }

    /// Whether no model is pending.
    pub(crate) fn is_settled(&self) -> bool {
        self.outcomes.values().all(|outcome| *outcome != ModelOutcome::Pending)
    }
}
