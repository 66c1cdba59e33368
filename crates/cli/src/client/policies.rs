//! Rollout policies of the scheduler.

use super::{Scheduler, scheduler::as_cli};
use crate::error::CommandError;
use gantry_proto::gantry::{
    DeletePolicyRequest, ListPoliciesRequest, RolloutPolicy, rollouts_client::RolloutsClient,
};
use tonic::{Code, transport::Channel};

impl Scheduler {
    /// Empty for a scheduler without the service.
    pub(crate) async fn policies(&self) -> Result<Vec<RolloutPolicy>, CommandError> {
        let mut client = self.rollouts_client();
        match self.call(client.list_policies(ListPoliciesRequest {})).await {
            Ok(response) => Ok(response.into_inner().policies),
            Err(status) if status.code() == Code::Unimplemented => Ok(Vec::new()),
            Err(status) => Err(self.error(&status)),
        }
    }

    pub(super) async fn put_policy(&self, policy: RolloutPolicy) -> Result<(), CommandError> {
        let mut client = self.rollouts_client();
        let result = self.call(client.put_policy(as_cli(policy))).await;
        result.map(drop).map_err(|status| self.unsupported("rollout policies", &status))
    }

    pub(super) async fn delete_policy(&self, name: String) -> Result<(), CommandError> {
        let mut client = self.rollouts_client();
        let result = self.call(client.delete_policy(as_cli(DeletePolicyRequest { name }))).await;
        result.map(drop).map_err(|status| self.unsupported("rollout policies", &status))
    }

    pub(super) fn rollouts_client(&self) -> RolloutsClient<Channel> {
        RolloutsClient::new(self.channel())
    }
}
