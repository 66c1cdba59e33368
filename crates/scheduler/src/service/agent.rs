//! `seldon.mlops.agent.AgentService`.

use super::{Stream, WINDOW, answer, deliver, identity};
use crate::{
    access::Caller,
    audit::Object,
    convert,
    engine::{Handle, Message, Subscription},
    outbox::{AgentOrder, Outbox},
};
use gantry_api::check_name;
use gantry_core::scheduling::{Command, Endpoint, LoadedVersion, Replica, ReplicaEvent, ReplicaId};
use gantry_proto::{agent as pb, scheduler};
use std::{collections::VecDeque, time::Duration};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

/// Includes loading the models elsewhere.
const DRAIN_DEADLINE: Duration = Duration::from_mins(5);

pub(crate) struct Agents {
    pub(crate) engine: Handle,
}

/// Reports the end of the connection when dropped.
struct Connection {
    engine: Handle,
    id: ReplicaId,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.engine.send_detached(Message::AgentLeft { id: self.id.clone(), connection: self.number });
    }
}

#[tonic::async_trait]
impl pb::agent_service_server::AgentService for Agents {
    type SubscribeStream = Stream<pb::ModelOperationMessage>;

    async fn subscribe(
        &self,
        request: Request<pb::AgentSubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let caller = Caller::of(request.extensions())?;
        let request = request.into_inner();
        let id = ReplicaId { server: request.server_name.as_str().into(), index: request.replica_idx };
        caller.change().add(Object::replica(&id));
        caller.check_replica(&id)?;
        if let Err(problem) = check_name(&request.server_name) {
            return Err(Status::failed_precondition(format!("serverName {problem}")));
        }
        let Some(config) = request.replica_config else {
            return Err(Status::failed_precondition(
                "replicaConfig is missing: it contains the inference endpoints",
            ));
        };
        let port = |value: i32, field: &str| {
            u16::try_from(value).map_err(|_| {
                Status::failed_precondition(format!("replicaConfig.{field} {value} is not a port"))
            })
        };
        let replica = Replica {
            endpoint: Endpoint {
                http_port: port(config.inference_http_port, "inferenceHttpPort")?,
                grpc_port: port(config.inference_grpc_port, "inferenceGrpcPort")?,
                host: config.inference_svc,
            },
            capabilities: config.capabilities.iter().map(|c| c.trim().to_owned()).collect(),
            memory_total: config.memory_bytes.saturating_add(
                (config.memory_bytes / 100).saturating_mul(u64::from(config.over_commit_percentage)),
            ),
            memory_free: request.available_memory_bytes,
            over_commit: config.over_commit_percentage,
            ..Replica::default()
        };
        let loaded = request
            .loaded_models
            .iter()
            .filter_map(|loaded| {
                let model = loaded.model.as_ref()?;
                let spec = convert::spec_digest(model);
                let model = model.meta.as_ref()?.name.as_str().into();
                Some(LoadedVersion { model, version: loaded.version, spec })
            })
            .collect();
        let outbox = Outbox::<VecDeque<AgentOrder>>::new();
        let token = self.engine.stop.child_token();
        let connection =
            Connection { engine: self.engine.clone(), id: id.clone(), number: self.engine.next_connection() };
        let joined = self.engine.call(|reply| Message::AgentJoined {
            command: Command::ReplicaJoined { id: id.clone(), replica, shared: request.shared, loaded },
            id,
            connection: connection.number,
            outbox: outbox.clone(),
            guard: token.clone().drop_guard(),
            reply,
        });
        answer(joined).await?;
        let subscription = Subscription { start: self.engine.start, connection: connection.number };
        let counted = self.engine.metrics.subscribed("agent");
        let (sender, receiver) = mpsc::channel(WINDOW);
        tokio::spawn(async move {
            let _connection = connection;
            let _counted = counted;
            loop {
                let orders = tokio::select! {
                    biased;
                    () = sender.closed() => return,
                    () = token.cancelled() => return,
                    orders = outbox.orders() => orders,
                };
                for order in orders {
                    if !deliver(&sender, operation(&order)).await {
                        return;
                    }
                }
            }
        });
        let mut response = Response::new(Stream::new(receiver));
        // Returned with reports, it identifies those of an earlier subscription.
        if let Ok(value) = identity::subscription_header(subscription).parse() {
            response.metadata_mut().insert(identity::SUBSCRIPTION, value);
        }
        Ok(response)
    }

    async fn agent_event(
        &self,
        request: Request<pb::ModelEventMessage>,
    ) -> Result<Response<pb::ModelEventResponse>, Status> {
        use pb::model_event_message::Event;
        let subscription = identity::subscription(request.metadata());
        let permanent = identity::is_permanent_failure(request.metadata());
        let caller = Caller::of(request.extensions())?;
        let report = request.into_inner();
        let id = ReplicaId { server: report.server_name.as_str().into(), index: report.replica_idx };
        caller.check_replica(&id)?;
        let event = match report.event() {
            Event::Loaded => {
                ReplicaEvent::Loaded { multiplier: report.runtime_info.as_ref().and_then(multiplier) }
            }
            Event::LoadFailed if permanent => ReplicaEvent::LoadRejected { reason: report.message.clone() },
            Event::LoadFailed => ReplicaEvent::LoadFailed { reason: report.message.clone() },
            Event::LoadFailMemory => ReplicaEvent::LoadFailedMemory { reason: report.message.clone() },
            Event::Unloaded => ReplicaEvent::Unloaded,
            Event::UnloadFailed => ReplicaEvent::UnloadFailed { reason: report.message.clone() },
            Event::Removed | Event::RemoveFailed | Event::Rsync | Event::UnknownEvent => {
                return Ok(Response::new(pb::ModelEventResponse {}));
            }
        };
        match &event {
            ReplicaEvent::LoadFailed { reason }
            | ReplicaEvent::LoadRejected { reason }
            | ReplicaEvent::LoadFailedMemory { reason }
            | ReplicaEvent::UnloadFailed { reason } => tracing::warn!(
                model = %report.model_name, version = report.model_version,
                server = %report.server_name, replica = report.replica_idx, "{reason}"
            ),
            ReplicaEvent::Loaded { .. } | ReplicaEvent::Unloaded => tracing::info!(
                model = %report.model_name, version = report.model_version,
                server = %report.server_name, replica = report.replica_idx,
                "{}", if event == ReplicaEvent::Unloaded { "unloaded" } else { "loaded" }
            ),
        }
        let command = Command::ReplicaReported {
            id: id.clone(),
            model: report.model_name.into(),
            version: report.model_version,
            event,
            memory_free: report.available_memory_bytes,
        };
        if !self.engine.send(Message::Report { id, subscription, command }).await {
            return Err(Status::unavailable("the scheduler is stopping"));
        }
        Ok(Response::new(pb::ModelEventResponse {}))
    }

    async fn model_scaling_trigger(
        &self,
        request: Request<Streaming<pb::ModelScalingTriggerMessage>>,
    ) -> Result<Response<pb::ModelScalingTriggerResponse>, Status> {
        use pb::model_scaling_trigger_message::Trigger;
        let subscription = identity::subscription(request.metadata());
        let caller = Caller::of(request.extensions())?;
        let mut triggers = request.into_inner();
        while let Some(trigger) = triggers.message().await? {
            let amount = i32::try_from(trigger.amount).unwrap_or(i32::MAX);
            let change = match trigger.trigger() {
                Trigger::ScaleUp => amount,
                Trigger::ScaleDown => -amount,
            };
            let id = ReplicaId { server: trigger.server_name.into(), index: trigger.replica_idx };
            caller.check_replica(&id)?;
            let name = trigger.model_name.into();
            let command = Command::ScaleModel { name, version: trigger.model_version, change };
            if !self.engine.send(Message::Report { id, subscription, command }).await {
                return Err(Status::unavailable("the scheduler is stopping"));
            }
        }
        Ok(Response::new(pb::ModelScalingTriggerResponse {}))
    }

    async fn agent_drain(
        &self,
        request: Request<pb::AgentDrainRequest>,
    ) -> Result<Response<pb::AgentDrainResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let pb::AgentDrainRequest { server_name, replica_idx } = request.into_inner();
        let id = ReplicaId { server: server_name.into(), index: replica_idx };
        caller.change().add(Object::replica(&id));
        caller.check_replica(&id)?;
        tracing::info!(server = %id.server, replica = id.index, "draining replica");
        let drained = self.engine.call(|reply| Message::Drain { id, reply });
        match tokio::time::timeout(DRAIN_DEADLINE, drained).await {
            Ok(success) => Ok(Response::new(pb::AgentDrainResponse { success: success? })),
            // Not drained in time; the agent decides whether to stop.
            Err(_) => Ok(Response::new(pb::AgentDrainResponse { success: false })),
        }
    }
}

fn operation(AgentOrder { order, definition }: &AgentOrder) -> pb::ModelOperationMessage {
    use pb::model_operation_message::Operation;
    let model = match definition {
        Some(definition) => convert::decode(definition),
        None => scheduler::Model {
            meta: Some(scheduler::MetaData { name: order.model.to_string(), ..Default::default() }),
            ..Default::default()
        },
    };
    let operation = if order.load.is_some() { Operation::LoadModel } else { Operation::UnloadModel };
    pb::ModelOperationMessage {
        operation: operation as i32,
        model_version: Some(pb::ModelVersion { model: Some(model), version: order.version }),
        autoscaling_enabled: order.autoscaled,
    }
}

/// Memory multiplier: one copy per worker or instance.
fn multiplier(info: &scheduler::ModelRuntimeInfo) -> Option<u64> {
    use scheduler::model_runtime_info::ModelRuntimeInfo;
    match info.model_runtime_info.as_ref()? {
        ModelRuntimeInfo::Mlserver(settings) => Some(u64::from(settings.parallel_workers.max(1))),
        ModelRuntimeInfo::Triton(config) => config.cpu.first().map(|c| u64::from(c.instance_count.max(1))),
    }
}
