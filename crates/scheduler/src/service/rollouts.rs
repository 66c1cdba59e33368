//! `gantry.v1.Rollouts`: policies, and the rollouts of models, pipelines and services.

use super::{Stream, identity, subscribe, within_deadline};
use crate::{access::Caller, audit::Object, convert, engine::Handle, status};
use gantry_core::scheduling::{Command, Kind, Owner, ReplicaState, RolloutKind, RolloutTarget, Version};
use gantry_proto::gantry::{
    DeletePolicyRequest, DeletePolicyResponse, ListPoliciesRequest, ListPoliciesResponse, PolicyEvent,
    PutPolicyResponse, Reset, RolloutEvent, RolloutPolicy, RolloutStatus, SteerRolloutRequest,
    SteerRolloutResponse, Synced, WatchPoliciesRequest, WatchRolloutsRequest, policy_event,
    rollout_event::Event, rollouts_server,
};
use prost::Message as _;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};
use tonic::{Request, Response, Status, metadata::MetadataMap};

pub(crate) struct Rollouts {
    engine: Handle,
    /// Held from the check of the owner to the commit.
    policy_writes: Mutex<()>,
}

impl Rollouts {
    pub(crate) fn new(engine: Handle) -> Self {
        Self { engine, policy_writes: Mutex::default() }
    }

    /// Rejects a change of an operator's policy by another owner, and one of another owner's policy by an operator.
    async fn check_owner(
        &self,
        caller: &Caller,
        name: &str,
        metadata: &MetadataMap,
    ) -> Result<(Owner, MutexGuard<'_, ()>), Status> {
        caller.change().add(Object::new("rolloutpolicy", name));
        let by = identity::owner(caller, metadata, None)?;
        let guard = self.policy_writes.lock().await;
        let manager = policy(&self.engine, name).map(|policy| policy.manager).unwrap_or_default();
        let Ok(owner) = manager.parse::<Owner>();
        let is_operator = |owner: &Owner| matches!(owner, Owner::Operator { .. });
        if manager.is_empty() || owner == by || !(is_operator(&owner) || is_operator(&by)) {
            return Ok((by, guard));
        }
        let remedy = match &owner {
            Owner::Operator { namespace } => {
                format!("change it with kubectl in namespace {namespace}, or use another name")
            }
            _ => format!("delete it with `gantry delete rolloutpolicy/{name}`, or use another name"),
        };
        Err(Status::failed_precondition(format!("rollout policy {name} is managed by {owner}: {remedy}")))
    }
}

/// `None` without a policy of that name.
fn policy(engine: &Handle, name: &str) -> Option<RolloutPolicy> {
    // Encoded by `convert::rollout_policy`.
    RolloutPolicy::decode(&*engine.read_model.policy(name)?.content).ok()
}

/// `None` without a rollout policy.
fn status_of(engine: &Handle, target: &RolloutTarget) -> Option<RolloutStatus> {
    let (read_model, now) = (&engine.read_model, engine.now());
    match target.kind {
        RolloutKind::Model => {
            let model = &read_model.model(&target.name)?.model;
            let rollout = model.rollout.as_deref()?;
            let available = |v: &Version| v.count(|state| state == ReplicaState::Available);
            let versions = model.versions.iter().map(|v| (v.number, v.revision(), available(v)));
            Some(status::rollout(target, rollout, &versions.collect::<Vec<_>>(), now))
        }
        RolloutKind::Pipeline => {
            let pipeline = &read_model.pipeline(&target.name)?.pipeline;
            let rollout = pipeline.rollout.as_deref()?;
            let versions = pipeline.versions.iter().map(|v| (v.number, v.revision(), 0));
            Some(status::rollout(target, rollout, &versions.collect::<Vec<_>>(), now))
        }
        RolloutKind::Service => {
            let service = &read_model.service(&target.name)?.service;
            let (rollout, delivery) = (service.rollout.as_deref()?, service.delivery.as_ref()?);
            let versions = delivery.versions.iter().map(|v| (v.number, v.revision.clone(), v.pods));
            Some(status::rollout(target, rollout, &versions.collect::<Vec<_>>(), now))
        }
    }
}

#[tonic::async_trait]
impl rollouts_server::Rollouts for Rollouts {
    async fn put_policy(
        &self,
        request: Request<RolloutPolicy>,
    ) -> Result<Response<PutPolicyResponse>, Status> {
        let (metadata, extensions, policy) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let (by, _guard) = self.check_owner(&caller, &policy.name, &metadata).await?;
        let record = convert::rollout_policy(RolloutPolicy { manager: by.to_string(), ..policy })
            .map_err(|invalid| Status::invalid_argument(format!("invalid rollout policy: {invalid}")))?;
        within_deadline(self.engine.command(Command::PutRolloutPolicy(record))).await?;
        Ok(Response::new(PutPolicyResponse {}))
    }

    async fn delete_policy(
        &self,
        request: Request<DeletePolicyRequest>,
    ) -> Result<Response<DeletePolicyResponse>, Status> {
        let (metadata, extensions, DeletePolicyRequest { name }) = request.into_parts();
        let caller = Caller::of(&extensions)?;
        let (_, _guard) = self.check_owner(&caller, &name, &metadata).await?;
        let name = name.into();
        within_deadline(self.engine.command(Command::DeleteRolloutPolicy { name })).await?;
        Ok(Response::new(DeletePolicyResponse {}))
    }

    async fn list_policies(
        &self,
        _: Request<ListPoliciesRequest>,
    ) -> Result<Response<ListPoliciesResponse>, Status> {
        let names = self.engine.read_model.policies();
        let policies = names.iter().filter_map(|name| policy(&self.engine, name)).collect();
        Ok(Response::new(ListPoliciesResponse { policies }))
    }

    type WatchPoliciesStream = Stream<PolicyEvent>;

    async fn watch_policies(
        &self,
        _: Request<WatchPoliciesRequest>,
    ) -> Result<Response<Self::WatchPoliciesStream>, Status> {
        use policy_event::Event;
        let event = |event| PolicyEvent { event: Some(event) };
        let describe = |engine: &Handle, name: &Arc<str>| {
            let event = policy(engine, name).map_or_else(|| Event::Delete(name.to_string()), Event::Upsert);
            vec![PolicyEvent { event: Some(event) }]
        };
        let frame = [Event::Reset(Reset {}), Event::Synced(Synced {})].map(|e| Some(event(e)));
        let everything = |engine: &Handle| engine.read_model.policies();
        let subscribers = &self.engine.policies;
        Ok(subscribe::subscribe_between(&self.engine, "policy", subscribers, everything, describe, frame))
    }

    async fn steer_rollout(
        &self,
        request: Request<SteerRolloutRequest>,
    ) -> Result<Response<SteerRolloutResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let request = request.into_inner();
        let action_name = request.action().as_str_name();
        let SteerRolloutRequest { model, action, pipeline, service } = request;
        let Some(steer) = convert::steer(action) else {
            return Err(Status::invalid_argument(format!("action: {action} is unknown")));
        };
        let Some(target) = convert::rollout_target(&model, &pipeline, &service) else {
            return Err(Status::invalid_argument("either model, pipeline or service must be set"));
        };
        caller.change().set_action(action_name);
        let kind = match target.kind {
            RolloutKind::Model => Kind::Model,
            RolloutKind::Pipeline => Kind::Pipeline,
            RolloutKind::Service => Kind::Service,
        };
        caller.change().add(Object::of_kind(kind, &target.name));
        let command = Command::SteerRollout { target, steer };
        within_deadline(self.engine.command(command)).await?;
        Ok(Response::new(SteerRolloutResponse {}))
    }

    type WatchRolloutsStream = Stream<RolloutEvent>;

    async fn watch_rollouts(
        &self,
        _: Request<WatchRolloutsRequest>,
    ) -> Result<Response<Self::WatchRolloutsStream>, Status> {
        let event = |event| RolloutEvent { event: Some(event) };
        let describe = |engine: &Handle, target: &RolloutTarget| {
            let name = target.name.to_string();
            let event = match (status_of(engine, target), target.kind) {
                (Some(status), _) => Event::Upsert(status),
                (None, RolloutKind::Model) => Event::Delete(name),
                (None, RolloutKind::Pipeline) => Event::DeletePipeline(name),
                (None, RolloutKind::Service) => Event::DeleteService(name),
            };
            vec![RolloutEvent { event: Some(event) }]
        };
        let frame = [Event::Reset(Reset {}), Event::Synced(Synced {})].map(|e| Some(event(e)));
        let everything = |engine: &Handle| {
            let models = engine.read_model.models().into_iter().map(RolloutTarget::model);
            let pipelines = engine.read_model.pipelines().into_iter().map(RolloutTarget::pipeline);
            let services = engine.read_model.services().into_iter().map(RolloutTarget::service);
            models
                .chain(pipelines)
                .chain(services)
                .filter(|target| status_of(engine, target).is_some())
                .collect()
        };
        let subscribers = &self.engine.rollouts;
        Ok(subscribe::subscribe_between(&self.engine, "rollout", subscribers, everything, describe, frame))
    }
}
