//! Which role may call which RPC, on which port.

use super::role::{Grant, Identity, Role, list};
use Effect::{Change, Read, Report};
use Role::{Agent, Client, Gateway, Operator, Viewer};

/// A port of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    Clients,
    Agents,
}

impl Port {
    const fn name(self) -> &'static str {
        match self {
            Self::Clients => "scheduler port",
            Self::Agents => "agent port",
        }
    }
}

/// What an RPC does; changes are audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    /// Reports state that its sender observed.
    Report,
    /// Changes desired state, or who takes part.
    Change,
}

/// Roles that may call an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Also without a role: probes.
    Everyone,
    Roles(&'static [Role]),
}

/// A row of the table: an RPC as `package.Service/Method`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rpc {
    pub name: &'static str,
    pub callers: Callers,
    pub effect: Effect,
}

const fn rpc(name: &'static str, roles: &'static [Role], effect: Effect) -> Rpc {
    Rpc { name, callers: Callers::Roles(roles), effect }
}

const fn probe(name: &'static str) -> Rpc {
    Rpc { name, callers: Callers::Everyone, effect: Read }
}

/// May read statuses. Gateways show them in their dashboards.
const READERS: &[Role] = &[Client, Viewer, Operator, Gateway];
/// May declare objects.
const DECLARERS: &[Role] = &[Client, Operator];

const CLIENT_PORT: &[Rpc] = &[
    rpc("seldon.mlops.scheduler.Scheduler/ServerNotify", DECLARERS, Change),
    // Gateways load and unload by name, on behalf of the owner.
    rpc("seldon.mlops.scheduler.Scheduler/LoadModel", &[Client, Operator, Gateway], Change),
    rpc("seldon.mlops.scheduler.Scheduler/UnloadModel", &[Client, Operator, Gateway], Change),
    rpc("seldon.mlops.scheduler.Scheduler/LoadPipeline", DECLARERS, Change),
    rpc("seldon.mlops.scheduler.Scheduler/UnloadPipeline", DECLARERS, Change),
    rpc("seldon.mlops.scheduler.Scheduler/StartExperiment", DECLARERS, Change),
    rpc("seldon.mlops.scheduler.Scheduler/StopExperiment", DECLARERS, Change),
    rpc("seldon.mlops.scheduler.Scheduler/ServerStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/ModelStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/PipelineStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/ExperimentStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/SchedulerStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/SubscribeServerStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/SubscribeModelStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/SubscribeExperimentStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/SubscribePipelineStatus", READERS, Read),
    rpc("seldon.mlops.scheduler.Scheduler/PipelineStatusEvent", &[Gateway], Report),
    rpc("seldon.mlops.scheduler.Scheduler/ModelStatusEvent", &[Gateway], Report),
    rpc("seldon.mlops.scheduler.Scheduler/SubscribeControlPlane", &[Operator], Read),
    // A gateway that takes part delays unloads until it acknowledges.
    rpc("gantry.v1.Routing/WatchRoutes", &[Gateway], Change),
    rpc("gantry.v1.Routing/AcknowledgeRoutes", &[Gateway], Report),
    rpc("gantry.v1.Routing/ReportDemand", &[Gateway], Report),
    rpc("gantry.v1.Routing/ReportTraffic", &[Gateway], Report),
    rpc("gantry.v1.Services/PutService", &[Operator], Change),
    rpc("gantry.v1.Services/DeleteService", &[Operator], Change),
    rpc("gantry.v1.Services/WatchServices", READERS, Read),
    rpc("gantry.v1.Services/GetServiceTraffic", &[Operator], Read),
    rpc("gantry.v1.Rollouts/PutPolicy", DECLARERS, Change),
    rpc("gantry.v1.Rollouts/DeletePolicy", DECLARERS, Change),
    rpc("gantry.v1.Rollouts/ListPolicies", READERS, Read),
    rpc("gantry.v1.Rollouts/WatchPolicies", READERS, Read),
    rpc("gantry.v1.Rollouts/SteerRollout", DECLARERS, Change),
    rpc("gantry.v1.Rollouts/WatchRollouts", READERS, Read),
    rpc("gantry.v1.Control/Explain", READERS, Read),
    // A dry run copies the state, so it is not for viewers.
    rpc("gantry.v1.Control/Plan", DECLARERS, Read),
    rpc("gantry.v1.Control/Adopt", DECLARERS, Change),
    probe("seldon.mlops.health.HealthCheckService/HealthCheck"),
    probe("grpc.health.v1.Health/Check"),
    probe("grpc.health.v1.Health/Watch"),
    rpc("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", READERS, Read),
    rpc("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", READERS, Read),
];

const AGENT_PORT: &[Rpc] = &[
    rpc("seldon.mlops.agent.AgentService/Subscribe", &[Agent], Change),
    rpc("seldon.mlops.agent.AgentService/AgentEvent", &[Agent], Report),
    rpc("seldon.mlops.agent.AgentService/ModelScalingTrigger", &[Agent], Report),
    rpc("seldon.mlops.agent.AgentService/AgentDrain", &[Agent], Change),
    probe("seldon.mlops.health.HealthCheckService/HealthCheck"),
    probe("grpc.health.v1.Health/Check"),
    probe("grpc.health.v1.Health/Watch"),
    rpc("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", &[Agent], Read),
    rpc("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &[Agent], Read),
];

/// All rows of a port.
pub(crate) const fn rows(port: Port) -> &'static [Rpc] {
    match port {
        Port::Clients => CLIENT_PORT,
        Port::Agents => AGENT_PORT,
    }
}

/// Whether a call is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed(Effect),
    /// With the message for the caller.
    Denied(String),
    /// The port has no RPC of this name.
    Unknown,
}

/// Decides about a call of `package.Service/Method`.
pub(crate) fn decide(port: Port, name: &str, caller: &Identity) -> Decision {
    let Some(rpc) = rows(port).iter().find(|rpc| rpc.name == name) else { return Decision::Unknown };
    let Callers::Roles(roles) = rpc.callers else { return Decision::Allowed(rpc.effect) };
    let is_allowed = match &caller.grant {
        Grant::All => true,
        Grant::Role { role, .. } => roles.contains(role),
        Grant::Nothing(_) => false,
    };
    if is_allowed {
        Decision::Allowed(rpc.effect)
    } else {
        Decision::Denied(denial(port, rpc, roles, caller))
    }
}

fn denial(port: Port, rpc: &Rpc, roles: &[Role], caller: &Identity) -> String {
    let who = describe(caller);
    let example = roles.first().map_or("client", |role| role.name());
    let remedy = format!(
        "use a certificate with the URI spiffe://TRUST-DOMAIN/gantry/role/{example} (deploy/certs.sh issues them)"
    );
    let flag = match &caller.grant {
        Grant::Nothing(reason) if reason.ends_with("without a role") => {
            ", or allow certificates without a role with --role-of-unmarked-certificates on the scheduler"
        }
        _ => "",
    };
    format!(
        "{who} may not call {} on the {}, which needs the role {}: {remedy}{flag}",
        rpc.name,
        port.name(),
        list(roles),
    )
}

/// The caller in a message: `spiffe://example/gantry/role/agent (role agent)`.
pub(crate) fn describe(caller: &Identity) -> String {
    let name = if caller.name.is_empty() { "the caller" } else { &caller.name };
    match &caller.grant {
        Grant::Nothing(reason) => format!("{name}, which {reason},"),
        _ => format!("{name} (role {})", caller.role()),
    }
}
