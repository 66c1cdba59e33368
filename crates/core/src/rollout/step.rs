//! One step of a rollout: `(policy, state, input, now) → decision`.

use super::{
    analysis::{Analysis, Position},
    command::{Command, CommandRejection, Event, Request},
    evidence::{Evidence, Readiness, Revision},
    policy::{Exposure, RolloutPolicy},
    state::{
        Candidate, FailedRevision, HistoryEntry, MAX_FAILED, MAX_HISTORY, Outcome, Pause, Phase, Progress,
        Rollout, Stable, Weights, stage_at,
    },
    verdict::{Finding, Reason},
    watch::Watch,
};
use crate::scheduling::Millis;

/// How long a rolled-back revision is kept when gateways do not confirm their weights.
const UNCONFIRMED_ROLLBACK: Millis = 30_000;
/// More transitions than a step can cause.
const MAX_TRANSITIONS: usize = 16;

/// Everything that a step observes.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The revision of the spec.
    pub desired: &'a Revision,
    /// Readiness of revisions; those that are not listed are unknown.
    pub readiness: &'a [(Revision, Readiness)],
    pub evidence: Option<&'a Evidence>,
    pub request: Option<&'a Request>,
    /// The generation of the weights that every gateway has applied.
    pub applied: u64,
}

/// How soon a state must be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing but the time has changed.
    Unchanged,
    /// Only statistics have changed; if they are lost, the rollout takes longer.
    Deferrable,
    /// Before anything is done with it.
    Required,
}

/// The result of a step. It reveals weights and events only after its state was stored, so that a crash repeats a step and
/// never skips it.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Decision {
    state: Rollout,
    events: Vec<Event>,
    durability: Durability,
    requeue_after: Option<Millis>,
}

/// A stored state with its consequences.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub state: Rollout,
    /// `None` before the first revision is ready.
    pub weights: Option<Weights>,
    pub events: Vec<Event>,
    pub requeue_after: Option<Millis>,
}

impl Decision {
    /// The state to store.
    pub const fn state(&self) -> &Rollout {
        &self.state
    }

    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// To be called after [`Self::state`] was stored, or need not be.
    pub fn stored(self) -> Stored {
        let weights = self.state.weights();
        Stored { state: self.state, weights, events: self.events, requeue_after: self.requeue_after }
    }
}

impl Rollout {
    /// A state read back from the store, with its weights.
    pub fn restored(self) -> Stored {
        let weights = self.weights();
        Stored { state: self, weights, events: Vec::new(), requeue_after: Some(0) }
    }
}

/// Advances a rollout. With the same arguments again it changes nothing.
pub fn step(policy: &RolloutPolicy, state: &Rollout, input: &Input<'_>, now: Millis) -> Decision {
    let mut run = Run { policy, input, now, state: state.clone(), events: Vec::new() };
    let passed = run.state.clock.advance(now, policy.max_clock_step);
    run.update_readiness();
    run.count_wait(passed);
    if let Some(request) = input.request.filter(|request| request.id > run.state.handled) {
        run.state.handled = request.id;
        if let Err(rejection) = run.command(&request.command) {
            run.events.push(Event::CommandRejected { id: request.id, rejection });
        }
    }
    let evidence = input.evidence.filter(|evidence| evidence.id().follows(state.last_evidence));
    if let Some(evidence) = evidence {
        run.state.last_evidence = Some(evidence.id());
    }
    run.observe(evidence);
    for _ in 0..MAX_TRANSITIONS {
        if !run.transition() {
            break;
        }
        // A check may be due in the new phase, too.
        run.observe(None);
    }
    run.forget_others();
    let requeue_after = run.requeue_after();
    let Run { state: next, events, .. } = run;
    let durability = if !next.same_decisions(state) || !events.is_empty() {
        Durability::Required
    } else if next.phase == state.phase {
        Durability::Unchanged
    } else {
        Durability::Deferrable
    };
    Decision { state: next, events, durability, requeue_after }
}

struct Run<'a> {
    policy: &'a RolloutPolicy,
    input: &'a Input<'a>,
    now: Millis,
    state: Rollout,
    events: Vec<Event>,
}

impl Run<'_> {
    const fn elapsed(&self) -> Millis {
        self.state.clock.elapsed
    }

    /// Changes the state; the generation follows the weights.
    fn change<T>(&mut self, work: impl FnOnce(&mut Rollout) -> T) -> T {
        let before = self.state.weights();
        let result = work(&mut self.state);
        if self.state.weights() != before {
            self.state.generation = self.state.generation.saturating_add(1);
        }
        result
    }

    fn set_phase(&mut self, phase: Phase) {
        self.change(|state| state.phase = phase);
    }

    fn update_readiness(&mut self) {
        let mut ready = self.state.ready.clone();
        for (revision, readiness) in self.input.readiness {
            match readiness {
                Readiness::Unknown => {}
                Readiness::NotReady => ready.retain(|known| known != revision),
                Readiness::Ready if ready.contains(revision) => {}
                Readiness::Ready => ready.push(revision.clone()),
            }
        }
        ready.sort();
        self.change(|state| state.ready = ready);
    }

    /// Keeps the readiness of revisions of this rollout only.
    fn forget_others(&mut self) {
        let mut named = self.state.retained();
        named.extend(self.state.phase.stable().and_then(|stable| stable.previous.clone()));
        named.push(self.input.desired.clone());
        self.state.ready.retain(|revision| named.contains(revision));
    }

    fn count_wait(&mut self, passed: Millis) {
        let elapsed = self.elapsed();
        let stable_ready = self.stable_is_ready();
        let policy = self.policy;
        if let Phase::Progressing { candidate, .. } = &mut self.state.phase
            && candidate.pause.is_none()
            && stable_ready
            && !candidate.analysis.baseline_failing(policy, elapsed)
        {
            candidate.waited = candidate.waited.saturating_add(passed);
        }
    }

    fn stable_is_ready(&self) -> bool {
        self.state.phase.stable().is_some_and(|stable| self.state.is_ready(&stable.revision))
    }

    /// Counts new evidence, and makes checks that are due.
    fn observe(&mut self, evidence: Option<&Evidence>) {
        let (policy, elapsed, generation) = (self.policy, self.elapsed(), self.state.generation);
        match &mut self.state.phase {
            Phase::Running { stable } => stable.watch.observe(policy, generation, evidence, elapsed),
            Phase::Progressing { candidate, .. } => {
                if let Some(position) = position(policy, candidate) {
                    candidate.analysis.observe(policy, position, generation, evidence, elapsed);
                }
            }
            Phase::Deploying { .. } | Phase::RollingBack { .. } | Phase::Reverting { .. } => {}
        }
    }

    fn command(&mut self, command: &Command) -> Result<(), CommandRejection> {
        match command {
            Command::Retry { revision } => {
                let before = self.state.failed.len();
                self.state.failed.retain(|failed| failed.revision != *revision);
                return if self.state.failed.len() < before {
                    Ok(())
                } else {
                    Err(CommandRejection::NotFailed)
                };
            }
            Command::Undo => return self.undo(),
            _ => {}
        }
        let Phase::Progressing { candidate, .. } = &mut self.state.phase else {
            return Err(CommandRejection::NotProgressing);
        };
        let revision = candidate.revision.clone();
        match command {
            Command::Pause => {
                candidate.pause = Some(Pause::Command);
                self.events.push(Event::Paused { revision });
            }
            Command::Resume if candidate.pause.is_none() => return Err(CommandRejection::NotPaused),
            Command::Resume => {
                (candidate.pause, candidate.waited) = (None, 0);
                self.events.push(Event::Resumed { revision });
            }
            Command::Abort => self.roll_back(Finding::new(Reason::Aborted, "aborted by command")),
            Command::Promote | Command::PromoteFull => {
                if !self.state.ready.contains(&revision) {
                    return Err(CommandRejection::NotReady);
                }
                candidate.skipped |= candidate.pause != Some(Pause::Approval);
                candidate.pause = None;
                if *command == Command::PromoteFull { self.promote() } else { self.enter_next_stage() }
            }
            Command::Retry { .. } | Command::Undo => {}
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<(), CommandRejection> {
        let Phase::Running { stable } = &self.state.phase else {
            return Err(CommandRejection::NothingToUndo);
        };
        let Some(to) = stable.previous.clone() else { return Err(CommandRejection::NothingToUndo) };
        let stable = stable.clone();
        self.revert(stable, to, Some(Finding::new(Reason::Undone, "undone by command")));
        Ok(())
    }

    /// Makes one transition. Returns whether there may be another one.
    fn transition(&mut self) -> bool {
        match &self.state.phase {
            Phase::Deploying { target } => {
                let target = target.clone();
                self.deploying(target)
            }
            Phase::Running { stable } => {
                let stable = stable.clone();
                self.running(stable)
            }
            Phase::Progressing { .. } => self.progressing(),
            Phase::RollingBack { stable, since, .. } => {
                let expired = self.elapsed() >= since.saturating_add(UNCONFIRMED_ROLLBACK);
                if !expired && self.input.applied < self.state.generation {
                    return false;
                }
                let stable = stable.clone();
                self.set_phase(Phase::Running { stable });
                true
            }
            Phase::Reverting { stable, to, cause, since } => {
                let (stable, to, cause, since) = (stable.clone(), to.clone(), cause.clone(), *since);
                self.reverting(stable, to, cause, since)
            }
        }
    }

    fn deploying(&mut self, target: Revision) -> bool {
        if *self.input.desired != target {
            self.set_phase(Phase::Deploying { target: self.input.desired.clone() });
            return true;
        }
        if !self.state.is_ready(&target) {
            return false;
        }
        let watch = Watch::start(self.policy, self.elapsed());
        self.record(&target, self.now, Outcome::Deployed);
        self.events.push(Event::Deployed { revision: target.clone() });
        self.set_phase(Phase::Running { stable: Stable { revision: target, previous: None, watch } });
        true
    }

    fn running(&mut self, mut stable: Stable) -> bool {
        let (policy, elapsed) = (self.policy, self.elapsed());
        if let Some(finding) = stable.watch.finding(policy) {
            if let Some(to) = self.rollback_target(&stable) {
                self.revert(stable, to, Some(finding));
                return true;
            }
            if !stable.watch.reported() {
                stable.watch.set_reported();
                self.events.push(Event::Degraded { revision: stable.revision.clone(), finding });
                self.set_phase(Phase::Running { stable });
                return true;
            }
        }
        if stable.watch.bake_is_over(policy, elapsed) {
            stable.watch.end_bake(policy, elapsed);
            self.events.push(Event::BakeEnded { revision: stable.revision.clone() });
            self.set_phase(Phase::Running { stable });
            return true;
        }
        let desired = self.input.desired.clone();
        if desired == stable.revision || self.state.failure(&desired).is_some() {
            return false;
        }
        if matches!(stable.watch, Watch::Baking(_)) && stable.previous.as_ref() == Some(&desired) {
            self.revert(stable, desired, None);
            return true;
        }
        stable.watch.end_bake(policy, elapsed);
        self.events.push(Event::Started { revision: desired.clone() });
        let candidate = Candidate {
            revision: desired,
            started: self.now,
            progress: Progress::Waiting,
            pause: None,
            waited: 0,
            skipped: false,
            analysis: Analysis::new(policy, elapsed),
        };
        self.set_phase(Phase::Progressing { stable, candidate: Box::new(candidate) });
        true
    }

    /// The revision to which a problem of the stable one returns.
    fn rollback_target(&self, stable: &Stable) -> Option<Revision> {
        let to = stable.previous.clone().filter(|previous| self.state.failure(previous).is_none())?;
        match &stable.watch {
            Watch::Off => None,
            Watch::Baking(_) => Some(to),
            Watch::Drift(_) => {
                let allowed = self.policy.drift.as_ref().is_some_and(|rules| rules.rollback);
                (allowed && self.elapsed() >= self.state.cool_down_until).then_some(to)
            }
        }
    }

    fn revert(&mut self, stable: Stable, to: Revision, cause: Option<Finding>) {
        self.events.push(Event::Reverting { revision: stable.revision.clone(), to: to.clone() });
        let since = self.elapsed();
        self.set_phase(Phase::Reverting { stable, to, cause, since });
    }

    fn reverting(&mut self, mut stable: Stable, to: Revision, cause: Option<Finding>, since: Millis) -> bool {
        let elapsed = self.elapsed();
        if self.state.is_ready(&to) {
            let revision = stable.revision;
            let outcome =
                cause.as_ref().map_or(Outcome::Reverted, |finding| Outcome::RolledBack(finding.reason));
            self.record(&revision, self.now, outcome);
            self.events.push(match &cause {
                Some(finding) => {
                    Event::RolledBack { revision: revision.clone(), to: to.clone(), finding: finding.clone() }
                }
                None => Event::Reverted { revision: revision.clone(), to: to.clone() },
            });
            if let Some(finding) = cause {
                self.mark_failed(&revision, finding);
            }
            let stable = Stable { revision: to, previous: None, watch: Watch::Off };
            self.set_phase(Phase::RollingBack { stable, revision, since: elapsed });
            return true;
        }
        if elapsed < since.saturating_add(self.policy.progress_deadline) {
            return false;
        }
        self.events.push(Event::RevertFailed { revision: stable.revision.clone(), to });
        self.state.cool_down_until = elapsed.saturating_add(self.policy.cool_down);
        stable.previous = None;
        stable.watch.end_bake(self.policy, elapsed);
        self.set_phase(Phase::Running { stable });
        true
    }

    fn progressing(&mut self) -> bool {
        let (policy, elapsed) = (self.policy, self.elapsed());
        let stable_ready = self.stable_is_ready();
        let Phase::Progressing { stable, candidate } = &mut self.state.phase else { return false };
        if candidate.revision != *self.input.desired {
            let (stable, revision, started) = (stable.clone(), candidate.revision.clone(), candidate.started);
            self.record(&revision, started, Outcome::Cancelled);
            self.events.push(Event::Cancelled { revision: revision.clone() });
            self.set_phase(Phase::RollingBack { stable, revision, since: elapsed });
            return true;
        }
        if let Some(finding) = candidate.analysis.failed(policy).cloned() {
            self.roll_back(finding);
            return true;
        }
        let candidate_ready = self.state.ready.contains(&candidate.revision);
        let (index, entered) = match candidate.progress {
            Progress::Waiting => (None, elapsed),
            Progress::Stage { index, entered, .. } => (Some(index), entered),
        };
        let stage = index.and_then(|index| stage_at(policy, index)).map(|(stage, _)| stage);
        let hold = stage.map_or(0, |stage| stage.hold);
        if candidate.pause.is_none() && candidate.waited > policy.progress_deadline.saturating_add(hold) {
            let finding = deadline(policy, candidate, candidate_ready);
            self.roll_back(finding);
            return true;
        }
        if candidate.pause.is_some() || !candidate_ready || !stable_ready {
            return false;
        }
        let Some(stage) = stage else {
            self.enter_next_stage();
            return true;
        };
        if !candidate.analysis.passed(policy) || elapsed < entered.saturating_add(hold) {
            return false;
        }
        if stage.approval {
            candidate.pause = Some(Pause::Approval);
            let revision = candidate.revision.clone();
            self.events.push(Event::ApprovalNeeded { revision });
            return false;
        }
        self.enter_next_stage();
        true
    }

    /// The first stage, the next one, or promotion after the last.
    fn enter_next_stage(&mut self) {
        let (policy, elapsed) = (self.policy, self.elapsed());
        let Phase::Progressing { candidate, .. } = &self.state.phase else { return };
        let index = match candidate.progress {
            Progress::Waiting => 0,
            Progress::Stage { index, .. } => index + 1,
        };
        let Some(stage) = policy.strategy.stage(index) else { return self.promote() };
        let exposure = stage.exposure;
        self.events.push(Event::StageEntered { revision: candidate.revision.clone(), exposure });
        self.change(|state| {
            if let Phase::Progressing { candidate, .. } = &mut state.phase {
                candidate.progress = Progress::Stage { index, exposure, entered: elapsed };
                candidate.waited = 0;
                candidate.analysis.enter_stage(elapsed);
            }
        });
    }

    fn promote(&mut self) {
        let Phase::Progressing { stable, candidate } = &self.state.phase else { return };
        let (previous, revision, started) =
            (stable.revision.clone(), candidate.revision.clone(), candidate.started);
        self.record(&revision, started, Outcome::Promoted);
        self.events.push(Event::Promoted { revision: revision.clone() });
        let watch = Watch::start(self.policy, self.elapsed());
        self.set_phase(Phase::Running { stable: Stable { revision, previous: Some(previous), watch } });
    }

    fn roll_back(&mut self, finding: Finding) {
        let Phase::Progressing { stable, candidate } = &self.state.phase else { return };
        let (stable, revision, started) = (stable.clone(), candidate.revision.clone(), candidate.started);
        self.record(&revision, started, Outcome::RolledBack(finding.reason));
        let to = stable.revision.clone();
        self.events.push(Event::RolledBack { revision: revision.clone(), to, finding: finding.clone() });
        self.mark_failed(&revision, finding);
        let since = self.elapsed();
        self.set_phase(Phase::RollingBack { stable, revision, since });
    }

    fn mark_failed(&mut self, revision: &Revision, finding: Finding) {
        let state = &mut self.state;
        state.failed.retain(|failed| failed.revision != *revision);
        state.failed.push_back(FailedRevision { revision: revision.clone(), finding, at: self.now });
        while state.failed.len() > MAX_FAILED {
            state.failed.pop_front();
        }
        state.cool_down_until = state.clock.elapsed.saturating_add(self.policy.cool_down);
    }

    fn record(&mut self, revision: &Revision, started: Millis, outcome: Outcome) {
        let history = &mut self.state.history;
        history.push_back(HistoryEntry { revision: revision.clone(), started, ended: self.now, outcome });
        while history.len() > MAX_HISTORY {
            history.pop_front();
        }
    }

    /// When time alone can cause a transition; at most the longest step of the clock.
    fn requeue_after(&self) -> Option<Millis> {
        let elapsed = self.elapsed();
        let remaining = |due: Millis| due.saturating_sub(elapsed);
        let due = match &self.state.phase {
            Phase::Deploying { .. } => None,
            Phase::Running { stable } => stable.watch.due(self.policy).map(remaining),
            Phase::RollingBack { since, .. } => Some(remaining(since.saturating_add(UNCONFIRMED_ROLLBACK))),
            Phase::Reverting { since, .. } => {
                Some(remaining(since.saturating_add(self.policy.progress_deadline)))
            }
            Phase::Progressing { candidate, .. } => self.progressing_due(candidate),
        };
        due.map(|due| due.clamp(1, self.policy.max_clock_step.max(1)))
    }

    fn progressing_due(&self, candidate: &Candidate) -> Option<Millis> {
        let elapsed = self.elapsed();
        // A check that is overdue after a step waits for evidence, not for time.
        let analysis = candidate.analysis.due(self.policy).and_then(|due| due.checked_sub(elapsed));
        let analysis = analysis.filter(|due| *due > 0);
        if candidate.pause.is_some() {
            return analysis;
        }
        let hold = match candidate.progress {
            Progress::Waiting => 0,
            Progress::Stage { index, .. } => stage_at(self.policy, index).map_or(0, |(stage, _)| stage.hold),
        };
        let held = match candidate.progress {
            Progress::Stage { entered, .. } => Some(entered.saturating_add(hold).saturating_sub(elapsed)),
            Progress::Waiting => None,
        };
        let deadline = self.policy.progress_deadline.saturating_add(hold).saturating_add(1);
        let deadline = deadline.saturating_sub(candidate.waited);
        [analysis, held.filter(|held| *held > 0), Some(deadline)].into_iter().flatten().min()
    }
}

/// The position of a candidate's analysis.
fn position(policy: &RolloutPolicy, candidate: &Candidate) -> Option<Position> {
    let (index, exposure) = match candidate.progress {
        Progress::Waiting => (0, policy.strategy.stage(0)?.exposure),
        Progress::Stage { index, exposure, .. } => (index, exposure),
    };
    let (_, last) = stage_at(policy, index)?;
    let share = policy.strategy.evidence_share(index);
    Some(Position { exposure, share, total: last && !candidate.skipped })
}

fn deadline(policy: &RolloutPolicy, candidate: &Candidate, ready: bool) -> Finding {
    let seconds = policy.progress_deadline / 1000;
    let text = if ready {
        let exposure = match candidate.progress {
            Progress::Stage { exposure: Exposure::Weight(percent), .. } => format!("at {percent}"),
            Progress::Stage { exposure: Exposure::Mirror(percent), .. } => format!("mirrored at {percent}"),
            Progress::Waiting => "without traffic".into(),
        };
        format!("no progress in {seconds} s {exposure}: {}", candidate.analysis.summary())
    } else {
        format!("not ready in {seconds} s")
    };
    Finding::new(Reason::ProgressDeadlineExceeded, text)
}
