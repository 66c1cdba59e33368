//! The durable state of a rollout, and the weights that follow from it.

use super::{
    analysis::Analysis,
    evidence::{ObservationId, Revision},
    policy::{Exposure, Percent, RolloutPolicy, Stage},
    verdict::{Finding, Reason},
    watch::Watch,
};
use crate::{scheduling::Millis, traffic::Traffic};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most failed revisions and history entries that are kept.
pub const MAX_FAILED: usize = 5;
pub const MAX_HISTORY: usize = 10;

/// Sums the time between steps. A wall clock set back pauses it; one set forward advances it by a bounded step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub wall: Option<Millis>,
    pub elapsed: Millis,
}

impl Clock {
    /// Returns the time that passed.
    pub(super) fn advance(&mut self, now: Millis, longest: Millis) -> Millis {
        let passed = self.wall.map_or(0, |wall| now.saturating_sub(wall)).min(longest);
        self.elapsed = self.elapsed.saturating_add(passed);
        self.wall = Some(now);
        passed
    }
}

/// The revision that serves by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stable {
    pub revision: Revision,
    /// The revision that served before.
    pub previous: Option<Revision>,
    pub watch: Watch,
}

/// Why a candidate does not advance although it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pause {
    Command,
    /// The stage passed and needs a `promote` command.
    Approval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// Without traffic until it is ready.
    Waiting,
    /// In a stage of the strategy, since an elapsed time. The policy may change later; the exposure does not.
    Stage { index: usize, exposure: Exposure, entered: Millis },
}

/// A revision under analysis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub revision: Revision,
    /// Wall-clock time.
    pub started: Millis,
    pub progress: Progress,
    pub pause: Option<Pause>,
    /// Time without progress; pauses and outages of the stable revision do not count.
    pub waited: Millis,
    /// Whether a stage was skipped by command.
    pub skipped: bool,
    pub analysis: Analysis,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// No revision has been ready yet.
    Deploying { target: Revision },
    /// One revision serves.
    Running { stable: Stable },
    /// A candidate waits, is mirrored to, or has a part of the traffic.
    Progressing { stable: Stable, candidate: Box<Candidate> },
    /// The revision has no weight any more, and is kept until gateways have applied that.
    RollingBack { stable: Stable, revision: Revision, since: Millis },
    /// Waits for a previous revision to become ready.
    Reverting { stable: Stable, to: Revision, cause: Option<Finding>, since: Millis },
}

impl Phase {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Deploying { .. } => "Deploying",
            Self::Running { .. } => "Running",
            Self::Progressing { .. } => "Progressing",
            Self::RollingBack { .. } => "RollingBack",
            Self::Reverting { .. } => "Reverting",
        }
    }

    pub const fn stable(&self) -> Option<&Stable> {
        match self {
            Self::Deploying { .. } => None,
            Self::Running { stable }
            | Self::Progressing { stable, .. }
            | Self::RollingBack { stable, .. }
            | Self::Reverting { stable, .. } => Some(stable),
        }
    }

    /// The other revision of the phase.
    pub fn other(&self) -> Option<&Revision> {
        match self {
            Self::Deploying { target } => Some(target),
            Self::Running { .. } => None,
            Self::Progressing { candidate, .. } => Some(&candidate.revision),
            Self::RollingBack { revision, .. } => Some(revision),
            Self::Reverting { to, .. } => Some(to),
        }
    }
}

/// A revision that is not rolled out again until it changes or a `retry` command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRevision {
    pub revision: Revision,
    pub finding: Finding,
    /// Wall-clock time.
    pub at: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The first revision.
    Deployed,
    Promoted,
    RolledBack(Reason),
    /// The desired revision changed.
    Cancelled,
    /// By a desired revision that is the previous one.
    Reverted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub revision: Revision,
    /// Wall-clock times.
    pub started: Millis,
    pub ended: Millis,
    pub outcome: Outcome,
}

/// Weights that sum to 100.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Receives the rest.
    pub stable: Revision,
    pub candidate: Option<(Revision, Percent)>,
    pub mirror: Option<(Revision, Percent)>,
}

impl Weights {
    const fn all(stable: Revision) -> Self {
        Self { stable, candidate: None, mirror: None }
    }

    /// As the split of a route; backends of weight 0 are left out.
    pub fn traffic(&self) -> Traffic<Revision> {
        let part = self.candidate.as_ref().map_or(0, |(_, percent)| percent.get());
        let stable = (self.stable.clone(), 100 - part);
        let candidate = self.candidate.iter().map(|(revision, percent)| (revision.clone(), percent.get()));
        Traffic {
            backends: std::iter::once(stable).chain(candidate).filter(|(_, weight)| *weight > 0).collect(),
            mirror: self.mirror.as_ref().map(|(revision, percent)| (revision.clone(), percent.get())),
        }
    }
}

/// State of the rollouts of one object. All of it is durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub phase: Phase,
    /// Changes with the weights.
    pub generation: u64,
    pub clock: Clock,
    /// The last observation that was counted.
    pub last_evidence: Option<ObservationId>,
    /// Revisions that were last known to be ready.
    pub ready: Vec<Revision>,
    /// Newest last.
    pub failed: VecDeque<FailedRevision>,
    /// Newest last.
    pub history: VecDeque<HistoryEntry>,
    /// Until then drift causes no rollback, in elapsed time.
    pub cool_down_until: Millis,
    /// The last command that was handled.
    pub handled: u64,
}

impl Rollout {
    /// Of a new object.
    pub fn new(target: Revision) -> Self {
        Self::in_phase(Phase::Deploying { target })
    }

    /// Of an object that served this revision before it had a policy.
    pub fn running(revision: Revision) -> Self {
        Self::in_phase(Phase::Running { stable: Stable { revision, previous: None, watch: Watch::Off } })
    }

    fn in_phase(phase: Phase) -> Self {
        Self {
            phase,
            generation: 1,
            clock: Clock::default(),
            last_evidence: None,
            ready: Vec::new(),
            failed: VecDeque::new(),
            history: VecDeque::new(),
            cool_down_until: 0,
            handled: 0,
        }
    }

    pub fn is_ready(&self, revision: &str) -> bool {
        self.ready.iter().any(|ready| **ready == *revision)
    }

    /// Why a revision is not rolled out.
    pub fn failure(&self, revision: &str) -> Option<&FailedRevision> {
        self.failed.iter().find(|failed| *failed.revision == *revision)
    }

    /// The weights of this state; `None` before the first revision is ready. Only ready revisions receive requests, except
    /// the stable one when no revision with traffic is ready.
    pub(super) fn weights(&self) -> Option<Weights> {
        match &self.phase {
            Phase::Deploying { target } => self.is_ready(target).then(|| Weights::all(target.clone())),
            Phase::Running {
                stable: Stable { revision, previous: Some(previous), watch: Watch::Baking(_) },
            } if !self.is_ready(revision) && self.is_ready(previous) => Some(Weights::all(previous.clone())),
            Phase::Progressing { stable, candidate } => Some(self.split(stable, candidate)),
            Phase::Running { stable }
            | Phase::RollingBack { stable, .. }
            | Phase::Reverting { stable, .. } => Some(Weights::all(stable.revision.clone())),
        }
    }

    fn split(&self, stable: &Stable, candidate: &Candidate) -> Weights {
        let weights = Weights::all(stable.revision.clone());
        if !self.is_ready(&candidate.revision) {
            return weights;
        }
        let backend = |percent| Some((candidate.revision.clone(), percent));
        match candidate.progress {
            Progress::Waiting => weights,
            Progress::Stage { exposure: Exposure::Mirror(percent), .. } => {
                Weights { mirror: backend(percent), ..weights }
            }
            Progress::Stage { exposure: Exposure::Weight(percent), .. } => {
                // A stable revision that is not ready cannot serve its part.
                let part = if self.is_ready(&stable.revision) { percent } else { Percent::ALL };
                Weights { candidate: backend(part), ..weights }
            }
        }
    }

    /// Revisions that must stay loaded.
    pub fn retained(&self) -> Vec<Revision> {
        let stable = self.phase.stable();
        let baking = stable.filter(|stable| {
            matches!((&self.phase, &stable.watch), (Phase::Running { .. }, Watch::Baking(_)))
        });
        let previous = baking.and_then(|stable| stable.previous.as_ref());
        let revisions = stable.map(|stable| &stable.revision).into_iter();
        let mut retained: Vec<Revision> =
            revisions.chain(self.phase.other()).chain(previous).cloned().collect();
        retained.sort();
        retained.dedup();
        retained
    }

    /// Whether only statistics and times differ.
    pub(super) fn same_decisions(&self, other: &Self) -> bool {
        let decisions = |state: &Self| {
            let candidate = match &state.phase {
                Phase::Progressing { candidate, .. } => {
                    let stage = match candidate.progress {
                        Progress::Waiting => None,
                        Progress::Stage { index, exposure, .. } => Some((index, exposure)),
                    };
                    Some((stage, candidate.pause, candidate.skipped))
                }
                _ => None,
            };
            let stable = state.phase.stable().map(|stable| {
                (
                    stable.revision.clone(),
                    stable.previous.clone(),
                    stable.watch.name(),
                    stable.watch.reported(),
                )
            });
            (state.phase.name(), state.phase.other().cloned(), stable, candidate)
        };
        (self.generation, &self.ready, &self.failed, &self.history, self.handled, self.cool_down_until)
            == (
                other.generation,
                &other.ready,
                &other.failed,
                &other.history,
                other.handled,
                other.cool_down_until,
            )
            && decisions(self) == decisions(other)
    }
}

/// The stage of an index, and whether promotion follows. A policy may have lost stages since the rollout began.
pub(super) fn stage_at(policy: &RolloutPolicy, index: usize) -> Option<(Stage, bool)> {
    let last = policy.strategy.stages().count().checked_sub(1)?;
    policy.strategy.stage(index.min(last)).map(|stage| (stage, index >= last))
}
