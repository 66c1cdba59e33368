//! What is to happen, as data: made from a seed, kept in a file when it once failed, made smaller by leaving out steps.

mod generate;
mod shrink;

pub(crate) use generate::generate;
pub(crate) use shrink::shrink;

use serde::{Deserialize, Serialize};
use std::fmt;

/// A world and everything that happens in it from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// What everything that the steps do not say follows from: times, orders, which request goes where.
    pub(crate) seed: u64,
    /// How long things happen, in virtual milliseconds. Then the world has to come to rest.
    pub(crate) length: u64,
    /// Gateways, from the start.
    pub(crate) gateways: u32,
    /// Servers, all replicas there from the start.
    pub(crate) servers: Vec<ServerPlan>,
    /// What happens, in order of time.
    pub(crate) steps: Vec<Step>,
}

/// A server with its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerPlan {
    pub(crate) name: String,
    pub(crate) replicas: u32,
    /// Memory of each replica.
    pub(crate) memory: u64,
    pub(crate) capabilities: Vec<String>,
    /// Whether models that do not name it may be placed on it.
    pub(crate) shared: bool,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// When, in virtual milliseconds from the start.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) action: Action,
}

/// How a model's files behave when they are loaded.
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

/// A model as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Tells contents apart: another number makes a new version.
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

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Asked {
    /// Where the model is; says how it behaves.
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

/// What people do, and what goes wrong. Times are virtual milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Action {
    /// Somebody asks for a model.
    Load { model: String, asked: Asked },
    /// Somebody asks for something that makes no sense; the number says what.
    Nonsense { model: String, kind: u32 },
    /// Somebody wants a model gone.
    Unload { model: String },
    /// Somebody announces a server again.
    Announce { server: String, replicas: u32 },
    /// A replica is drained, leaves, and is back after a time.
    Drain { server: String, replica: u32, down: u64 },
    /// A replica leaves without being drained, and is back after a time.
    Leave { server: String, replica: u32, down: u64 },
    /// A replica dies and is back, empty, after a time. Silently: as when a machine loses power.
    CrashReplica { server: String, replica: u32, silent: bool, down: u64 },
    /// Only the agent dies: what the server beside it holds stays.
    CrashAgent { server: String, replica: u32, down: u64 },
    /// The inference server dies below its agent and is back, empty, at once.
    RestartServer { server: String, replica: u32 },
    /// A gateway dies and is back after a time, with no routes.
    CrashGateway { gateway: u32, silent: bool, down: u64 },
    /// The scheduler dies, what was not synced is lost or torn, and it is back after a time.
    CrashScheduler { silent: bool, down: u64 },
    /// Nothing gets from one host to another for a time.
    Block { from: String, to: String, lasts: u64 },
    /// The connections between two hosts are reset.
    Cut { a: String, b: String },
    /// The connections between two hosts carry nothing any more, and neither is told.
    Freeze { a: String, b: String },
    /// The next answers between two hosts are lost after their effect; the connection ends after a time.
    LoseReplies { a: String, b: String, ends_after: u64 },
    /// Bytes between two hosts take so much longer for a time.
    Slow { a: String, b: String, by: u64, lasts: u64 },
    /// The scheduler's disk is full for a time.
    FullDisk { lasts: u64 },
    /// The scheduler's disk fails for a time.
    BrokenDisk { lasts: u64 },
    /// The scheduler's wall clock jumps.
    Jump { by: i64 },
    /// Somebody subscribes to statuses and never reads.
    DeafSubscriber { lasts: u64 },
}

impl Action {
    /// Whether something goes wrong, other than by people's doing.
    pub(crate) const fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Load { .. }
                | Self::Nonsense { .. }
                | Self::Unload { .. }
                | Self::Announce { .. }
                | Self::Drain { .. }
                | Self::Jump { .. }
                | Self::DeafSubscriber { .. }
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

impl Plan {
    /// Whether nothing goes wrong: then every request must be answered.
    pub(crate) fn is_calm(&self) -> bool {
        !self.steps.iter().any(|step| step.action.is_fault())
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| format!("this is not a plan: {e}"))
    }

    /// The plan as a file: a step a line.
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
    fn a_plan_survives_its_file() {
        for seed in 0..50 {
            let plan = generate(seed, 600_000);
            assert_eq!(Plan::read(&plan.write()).unwrap(), plan);
            assert!(plan.steps.is_sorted_by_key(|s| s.at));
        }
    }
}
