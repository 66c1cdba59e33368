//! A scenario as data: generated from a seed, read from a file, or shrunk.

mod generate;
mod shrink;

pub(crate) use generate::generate;
pub(crate) use shrink::shrink;

use serde::{Deserialize, Serialize};
use std::fmt;

/// A cluster and the events that act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scenario {
    /// Determines everything that the steps do not: latencies, ordering, request targets.
    pub(crate) seed: u64,
    /// Virtual milliseconds until faults end and the cluster has to converge.
    pub(crate) length: u64,
    pub(crate) gateways: u32,
    pub(crate) servers: Vec<ServerSpec>,
    /// In order of time.
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerSpec {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    /// Of each replica.
    pub(crate) memory: u64,
    pub(crate) capabilities: Vec<String>,
    /// Whether models that name no server may be placed on it.
    pub(crate) shared: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Virtual milliseconds from the start.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) action: Action,
}

/// How loading behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Artifact {
    /// Loaded within a second.
    Good,
    /// Loaded within a minute.
    Slow,
    /// Fails the first time on each replica, then loads.
    Flaky,
    /// Never loads.
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DesiredModel {
    /// A different number is a new version.
    pub(crate) content: u32,
    pub(crate) artifact: Artifact,
    pub(crate) memory: u64,
    pub(crate) requirement: String,
    pub(crate) replicas: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) min: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
}

/// A chain of models.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DesiredPipeline {
    pub(crate) steps: Vec<String>,
    /// A different number is a new version, too.
    pub(crate) window: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DesiredExperiment {
    /// Whether the candidates are pipelines; models otherwise.
    pub(crate) of_pipelines: bool,
    /// With their weights; the first one is the default.
    pub(crate) candidates: Vec<(String, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mirror: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DesiredService {
    pub(crate) pods: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl DesiredModel {
    /// Encodes the artifact's behaviour.
    pub(crate) fn uri(&self) -> String {
        let kind = match self.artifact {
            Artifact::Good => "good",
            Artifact::Slow => "slow",
            Artifact::Flaky => "flaky",
            Artifact::Broken => "broken",
        };
        format!("sim://{kind}/{}", self.content)
    }
}

/// A client request or a fault. Times are virtual milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Action {
    Load {
        model: String,
        #[serde(alias = "asked")]
        desired: DesiredModel,
    },
    /// The number selects the defect.
    #[serde(alias = "nonsense")]
    InvalidLoad {
        model: String,
        kind: u32,
    },
    Unload {
        model: String,
    },
    LoadPipeline {
        pipeline: String,
        desired: DesiredPipeline,
    },
    UnloadPipeline {
        pipeline: String,
    },
    StartExperiment {
        experiment: String,
        desired: DesiredExperiment,
    },
    StopExperiment {
        experiment: String,
    },
    PutService {
        service: String,
        desired: DesiredService,
    },
    DeleteService {
        service: String,
    },
    Announce {
        server: String,
        replicas: u32,
    },
    /// Drains a replica, stops it and restarts it later.
    Drain {
        server: String,
        replica: u32,
        down: u64,
    },
    /// Stops a replica without draining and restarts it later.
    Leave {
        server: String,
        replica: u32,
        down: u64,
    },
    /// The replica restarts empty. `silent`: peers see no reset, as after a power failure.
    CrashReplica {
        server: String,
        replica: u32,
        silent: bool,
        down: u64,
    },
    /// Only the agent: the inference server keeps its models.
    CrashAgent {
        server: String,
        replica: u32,
        down: u64,
    },
    /// The inference server restarts empty while its agent runs.
    RestartServer {
        server: String,
        replica: u32,
    },
    /// The gateway restarts without routes.
    CrashGateway {
        gateway: u32,
        silent: bool,
        down: u64,
    },
    /// Unsynced writes are lost or torn.
    CrashScheduler {
        silent: bool,
        down: u64,
    },
    /// A one-way partition.
    Block {
        from: String,
        to: String,
        lasts: u64,
    },
    /// Resets the connections between two hosts.
    Cut {
        a: String,
        b: String,
    },
    /// The connections between two hosts become half-open: no data, no reset.
    Freeze {
        a: String,
        b: String,
    },
    /// Requests take effect, but their responses are lost; the connection is reset later.
    LoseReplies {
        a: String,
        b: String,
        ends_after: u64,
    },
    /// Adds latency between two hosts.
    Slow {
        a: String,
        b: String,
        by: u64,
        lasts: u64,
    },
    FullDisk {
        lasts: u64,
    },
    BrokenDisk {
        lasts: u64,
    },
    /// A write takes this long.
    StallDisk {
        lasts: u64,
    },
    /// The scheduler restarts with an empty disk; its clients send their desired state again.
    LoseState {
        silent: bool,
        down: u64,
    },
    /// The node of a replica disappears from the network with everything on it.
    LoseNode {
        server: String,
        replica: u32,
        down: u64,
    },
    /// A client that reads its response slowly: the request stays in flight.
    SlowRequest {
        gateway: u32,
        model: String,
        lasts: u64,
    },
    /// The wall clock of the scheduler jumps.
    Jump {
        by: i64,
    },
    /// A status subscriber that never reads.
    #[serde(alias = "deaf_subscriber")]
    StalledSubscriber {
        lasts: u64,
    },
}

impl Action {
    pub(crate) const fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Load { .. }
                | Self::InvalidLoad { .. }
                | Self::Unload { .. }
                | Self::LoadPipeline { .. }
                | Self::UnloadPipeline { .. }
                | Self::StartExperiment { .. }
                | Self::StopExperiment { .. }
                | Self::PutService { .. }
                | Self::DeleteService { .. }
                | Self::Announce { .. }
                | Self::Drain { .. }
                | Self::Jump { .. }
                | Self::StalledSubscriber { .. }
                | Self::SlowRequest { .. }
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

impl Scenario {
    /// Without faults, every request has to succeed.
    pub(crate) fn is_fault_free(&self) -> bool {
        !self.steps.iter().any(|step| step.action.is_fault())
    }

    /// Whether the scheduler always knows the free memory of replicas.
    pub(crate) fn keeps_replicas_connected(&self) -> bool {
        let is_replica = |host: &String| self.servers.iter().any(|s| host.starts_with(&s.name));
        !self.steps.iter().any(|step| match &step.action {
            Action::Leave { .. }
            | Action::CrashReplica { .. }
            | Action::CrashAgent { .. }
            | Action::LoseNode { .. }
            | Action::LoseState { .. }
            | Action::RestartServer { .. }
            | Action::CrashScheduler { .. } => true,
            Action::Block { from: a, to: b, .. }
            | Action::Cut { a, b }
            | Action::Freeze { a, b }
            | Action::LoseReplies { a, b, .. }
            | Action::Slow { a, b, .. } => is_replica(a) || is_replica(b),
            _ => false,
        })
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("invalid scenario: {e}"))
    }

    /// One step per line.
    pub(crate) fn write(&self) -> String {
        fn lines<T: Serialize>(of: &[T]) -> String {
            let line = |one: &T| format!("    {}", serde_json::to_string(one).unwrap_or_default());
            of.iter().map(line).collect::<Vec<_>>().join(",\n")
        }
        format!(
            "{{\n  \"seed\": {},\n  \"length\": {},\n  \"gateways\": {},\n  \"servers\": [\n{}\n  ],\n  \"steps\": [\n{}\n  ]\n}}\n",
            self.seed,
            self.length,
            self.gateways,
            lines(&self.servers),
            lines(&self.steps),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_round_trips_through_json() {
        for seed in 0..50 {
            let scenario = generate(seed, 600_000);
            assert_eq!(Scenario::read(&scenario.write()).unwrap(), scenario);
            assert!(scenario.steps.is_sorted_by_key(|s| s.at));
        }
    }
}
