//! `gantry.v1.Rollouts`: policies, and the rollouts of models.

use super::{Stream, answer, subscribe, within_deadline};
use crate::{convert, engine::Handle, status};
use gantry_core::scheduling::Command;
use gantry_proto::gantry::{
    DeletePolicyRequest, DeletePolicyResponse, ListPoliciesRequest, ListPoliciesResponse, PutPolicyResponse,
    Reset, RolloutEvent, RolloutPolicy, SteerRolloutRequest, SteerRolloutResponse, Synced,
    WatchRolloutsRequest, rollout_event::Event, rollouts_server,
};
use prost::Message as _;
use std::sync::Arc;
use tonic::{Request, Response, Status};

pub(crate) struct Rollouts {
    pub(crate) engine: Handle,
}

#[tonic::async_trait]
impl rollouts_server::Rollouts for Rollouts {
    async fn put_policy(
        &self,
        request: Request<RolloutPolicy>,
    ) -> Result<Response<PutPolicyResponse>, Status> {
        let record = convert::rollout_policy(request.into_inner())
            .map_err(|invalid| Status::invalid_argument(format!("invalid rollout policy: {invalid}")))?;
        within_deadline(self.engine.command(Command::PutRolloutPolicy(record))).await?;
        Ok(Response::new(PutPolicyResponse {}))
    }

    async fn delete_policy(
        &self,
        request: Request<DeletePolicyRequest>,
    ) -> Result<Response<DeletePolicyResponse>, Status> {
        let name = request.into_inner().name.into();
        within_deadline(self.engine.command(Command::DeleteRolloutPolicy { name })).await?;
        Ok(Response::new(DeletePolicyResponse {}))
    }

    async fn list_policies(
        &self,
        _: Request<ListPoliciesRequest>,
    ) -> Result<Response<ListPoliciesResponse>, Status> {
        let contents = self.engine.query(|state| {
            state.rollout_policies().values().map(|policy| policy.content.clone()).collect::<Vec<_>>()
        });
        let contents = answer(contents).await?;
        // Encoded by `convert::rollout_policy`.
        let policies = contents.iter().filter_map(|bytes| RolloutPolicy::decode(&**bytes).ok()).collect();
        Ok(Response::new(ListPoliciesResponse { policies }))
    }

    async fn steer_rollout(
        &self,
        request: Request<SteerRolloutRequest>,
    ) -> Result<Response<SteerRolloutResponse>, Status> {
        let SteerRolloutRequest { model, action } = request.into_inner();
        let Some(steer) = convert::steer(action) else {
            return Err(Status::invalid_argument(format!("action: {action} is unknown")));
        };
        let command = Command::SteerRollout { model: model.into(), steer };
        within_deadline(self.engine.command(command)).await?;
        Ok(Response::new(SteerRolloutResponse {}))
    }

    type WatchRolloutsStream = Stream<RolloutEvent>;

    async fn watch_rollouts(
        &self,
        _: Request<WatchRolloutsRequest>,
    ) -> Result<Response<Self::WatchRolloutsStream>, Status> {
        let event = |event| RolloutEvent { event: Some(event) };
        let describe = |engine: &Handle, name: &Arc<str>| {
            let snapshot = engine.read_model.model(name);
            let event = match snapshot.and_then(|snapshot| status::rollout(name, &snapshot.model)) {
                Some(status) => Event::Upsert(status),
                None => Event::Delete(name.to_string()),
            };
            vec![RolloutEvent { event: Some(event) }]
        };
        let frame = [Event::Reset(Reset {}), Event::Synced(Synced {})].map(|e| Some(event(e)));
        let everything = |engine: &Handle| {
            let has_rollout = |name: &Arc<str>| {
                engine.read_model.model(name).is_some_and(|snapshot| snapshot.model.rollout.is_some())
            };
            engine.read_model.models().into_iter().filter(has_rollout).collect()
        };
        let subscribers = &self.engine.rollouts;
        Ok(subscribe::subscribe_between(&self.engine, "rollout", subscribers, everything, describe, frame))
    }
}
