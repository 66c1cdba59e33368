//! What happens because time passes, or because there is room again.

use super::{
    Millis,
    command::Effects,
    index::{Shape, Timer},
    placement::offers,
    server::ReplicaId,
    state::State,
};
use std::{ops::Bound, sync::Arc};

impl State {
    /// When [`super::Command::Tick`] is next of use.
    pub(super) fn wake_at(&self, now: Millis) -> Option<Millis> {
        if !self.stale.is_empty() {
            return Some(now);
        }
        let (due, _) = self.index.timers.first()?;
        // Longer steps do not count in full: wake often enough that time passes as it should.
        let wait = due.saturating_sub(self.clock.passed).clamp(1, self.policy.longest_step.max(1));
        Some(now.saturating_add(wait))
    }

    pub(super) fn tick(&mut self, now: Millis, fx: &mut Effects) {
        // What is due again by the time that it is done is for the next tick: this one comes to an end.
        let later = Bound::Excluded((self.clock.passed.saturating_add(1), Timer::Model("".into())));
        let due = self.index.timers.range((Bound::Unbounded, later)).take(self.policy.batch.max(1));
        let due: Vec<Timer> = due.map(|(_, timer)| timer.clone()).collect();
        for timer in due {
            match timer {
                Timer::Model(name) => self.model_due(&name, now, fx),
                Timer::Replica(id) => self.replica_lost(&id, now, fx),
                Timer::Server(name) => self.shrink(&name, now, fx),
            }
        }
        self.retry_stale(now, fx);
        let draining: Vec<ReplicaId> = self
            .servers
            .iter()
            .flat_map(|(name, server)| server.replicas.iter().map(move |(&index, r)| (name, index, r)))
            .filter(|(_, _, r)| r.owes_answer)
            .map(|(name, index, _)| ReplicaId { server: name.clone(), index })
            .collect();
        for id in draining {
            self.answer_drain(&id, fx);
        }
    }

    fn model_due(&mut self, name: &Arc<str>, now: Millis, fx: &mut Effects) {
        let passed = self.clock.passed;
        let Some(model) = self.models.get_mut(name) else { return };
        if model.deleted && model.forget_at.is_some_and(|at| at <= passed) {
            if let Some(journal) = &mut self.journal {
                journal.remember(name, Some(&*model));
            }
            self.index.set_timer(&mut model.due, None, &Timer::Model(name.clone()));
            self.models.remove(name);
            fx.store_models.insert(name.clone());
            return;
        }
        self.with(name, now, fx, |desk, model| {
            desk.autoscale(model);
            desk.settle(model, false);
        });
    }

    /// Tries models that wait, because something changed on a server: those that need little first, until one cannot be
    /// placed; then none of its shape can. When the set of replicas changed, all that wait are tried again in parts,
    /// because what stands in their way may be another thing now.
    pub(super) fn retry_waiting(&mut self, server: &Arc<str>, replicas: bool, now: Millis, fx: &mut Effects) {
        if self.index.waiting.is_empty() {
            return;
        }
        for shape in self.index.shapes_for(server) {
            let placed = self.could_help(server, &shape) && self.retry_shape(&shape, now, fx);
            if (replicas || placed) && self.index.waiting.contains_key(&shape) {
                self.stale.insert(shape, None);
            }
        }
    }

    /// Tries models of a shape until one cannot be placed. Returns whether any was.
    fn retry_shape(&mut self, shape: &Arc<Shape>, now: Millis, fx: &mut Effects) -> bool {
        let mut placed = false;
        while let Some((demand, name)) =
            self.index.waiting.get(shape).and_then(|names| names.first().cloned())
        {
            self.with(&name, now, fx, |desk, model| desk.settle(model, false));
            if self.index.waiting.get(shape).is_some_and(|names| names.contains(&(demand, name))) {
                break;
            }
            placed = true;
        }
        placed
    }

    /// Whether a server offers what a model of this shape needs.
    fn could_help(&self, name: &Arc<str>, shape: &Shape) -> bool {
        let needed = || {
            let explainer = shape.explainer.then_some("alibi-explain");
            shape.requirements.iter().map(|r| r.trim()).chain(explainer)
        };
        self.servers.get(name).is_some_and(|server| {
            let admitted = server.shared || shape.server.is_some();
            admitted && server.replicas.values().any(|r| r.takes_models() && needed().all(|n| offers(r, n)))
        })
    }

    /// Tries a part of those that are to be tried again.
    fn retry_stale(&mut self, now: Millis, fx: &mut Effects) {
        let mut budget = self.policy.batch.max(1);
        while budget > 0
            && let Some((shape, done)) = self.stale.pop_first()
        {
            let Some(names) = self.index.waiting.get(&shape) else { continue };
            let from = done.map_or(Bound::Unbounded, Bound::Excluded);
            let part: Vec<(u64, Arc<str>)> =
                names.range((from, Bound::Unbounded)).take(budget).cloned().collect();
            let complete = part.len() < budget;
            budget -= part.len();
            let last = part.last().cloned();
            for (_, name) in part {
                self.with(&name, now, fx, |desk, model| desk.settle(model, false));
            }
            if !complete {
                self.stale.insert(shape, last);
            }
        }
    }

    /// Looks later whether a server has too many replicas.
    pub(super) fn look_at_server_later(&mut self, name: &Arc<str>) {
        let due = self.clock.passed.saturating_add(self.policy.cool_down);
        if let Some(server) = self.servers.get_mut(name)
            && server.due.is_none()
            && server.expected.is_some_and(|e| e.max > 0)
        {
            self.index.set_timer(&mut server.due, Some(due), &Timer::Server(name.clone()));
        }
    }
}
