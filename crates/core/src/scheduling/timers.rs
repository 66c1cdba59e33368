//! Timers, and retries of waiting models when capacity changes.

use super::{
    Millis,
    command::Effects,
    index::{EquivalenceClass, Timer},
    placement::offers,
    server::ReplicaId,
    state::State,
};
use std::{ops::Bound, sync::Arc};

impl State {
    /// When the next [`super::Command::Tick`] is due.
    pub(super) fn wake_at(&self, now: Millis) -> Option<Millis> {
        if !self.retry_queue.is_empty() {
            return Some(now);
        }
        let (due, _) = self.index.timers.first()?;
        // The logical clock caps its steps: wake often enough for it to keep up.
        let wait = due.saturating_sub(self.clock.monotonic_now).clamp(1, self.policy.max_clock_step.max(1));
        Some(now.saturating_add(wait))
    }

    pub(super) fn tick(&mut self, now: Millis, effects: &mut Effects) {
        // Timers that are rearmed during this tick wait for the next one, so that it terminates.
        let later = Bound::Excluded((self.clock.monotonic_now.saturating_add(1), Timer::Model("".into())));
        let due = self.index.timers.range((Bound::Unbounded, later)).take(self.policy.batch.max(1));
        let due: Vec<Timer> = due.map(|(_, timer)| timer.clone()).collect();
        for timer in due {
            match timer {
                Timer::Model(name) => self.model_due(&name, now, effects),
                Timer::Replica(id) => self.replica_lost(&id, now, effects),
                Timer::Server(name) => self.scale_down_server(&name, now, effects),
                Timer::Pipeline(name) => self.pipeline_due(&name, now, effects),
                Timer::Experiment(name) => self.forget_experiment(&name, effects),
                Timer::Service(name) => self.service_due(&name, now, effects),
            }
        }
        self.retry_queued(now, effects);
        let draining: Vec<ReplicaId> = self
            .servers
            .iter()
            .flat_map(|(name, server)| server.replicas.iter().map(move |(&index, r)| (name, index, r)))
            .filter(|(_, _, r)| r.drain_pending)
            .map(|(name, index, _)| ReplicaId { server: name.clone(), index })
            .collect();
        for id in draining {
            self.answer_drain(&id, effects);
        }
    }

    fn model_due(&mut self, name: &Arc<str>, now: Millis, effects: &mut Effects) {
        let monotonic_now = self.clock.monotonic_now;
        let Some(model) = self.models.get_mut(name) else { return };
        if model.deleted && model.forget_at.is_some_and(|at| at <= monotonic_now) {
            if let Some(undo_log) = &mut self.undo_log {
                undo_log.save_previous(name, Some(&*model));
            }
            self.index.set_timer(&mut model.due, None, &Timer::Model(name.clone()));
            self.models.remove(name);
            effects.store_models.insert(name.clone());
            return;
        }
        self.with(name, now, effects, |ctx, model| {
            ctx.autoscale(model);
            ctx.reconcile(model, false);
        });
    }

    /// Retries waiting models after a change on a server, smallest first. When one cannot be placed, no larger one of its
    /// class can. When the set of replicas changed, all waiting models are also retried in batches, because their reason
    /// may have changed.
    pub(super) fn retry_waiting(
        &mut self,
        server: &Arc<str>,
        replicas: bool,
        now: Millis,
        effects: &mut Effects,
    ) {
        if self.index.waiting.is_empty() {
            return;
        }
        for class in self.index.classes_for(server) {
            let placed = self.could_place(server, &class) && self.retry_class(&class, now, effects);
            if (replicas || placed) && self.index.waiting.contains_key(&class) {
                self.retry_queue.insert(class, None);
            }
        }
    }

    /// Retries models of a class until one cannot be placed. Returns whether any was placed.
    fn retry_class(&mut self, class: &Arc<EquivalenceClass>, now: Millis, effects: &mut Effects) -> bool {
        let mut placed = false;
        while let Some((demand, name)) =
            self.index.waiting.get(class).and_then(|names| names.first().cloned())
        {
            self.with(&name, now, effects, |ctx, model| ctx.reconcile(model, false));
            if self.index.waiting.get(class).is_some_and(|names| names.contains(&(demand, name))) {
                break;
            }
            placed = true;
        }
        placed
    }

    /// Whether a server is suitable for models of this class.
    fn could_place(&self, name: &Arc<str>, class: &EquivalenceClass) -> bool {
        let needed = || {
            let explainer = class.explainer.then_some("alibi-explain");
            class.requirements.iter().map(|r| r.trim()).chain(explainer)
        };
        self.servers.get(name).is_some_and(|server| {
            let admitted = server.shared || class.server.is_some();
            admitted && server.replicas.values().any(|r| r.takes_models() && needed().all(|n| offers(r, n)))
        })
    }

    /// Retries one batch of the queue.
    fn retry_queued(&mut self, now: Millis, effects: &mut Effects) {
        let mut budget = self.policy.batch.max(1);
        while budget > 0
            && let Some((class, done)) = self.retry_queue.pop_first()
        {
            let Some(names) = self.index.waiting.get(&class) else { continue };
            let from = done.map_or(Bound::Unbounded, Bound::Excluded);
            let part: Vec<(u64, Arc<str>)> =
                names.range((from, Bound::Unbounded)).take(budget).cloned().collect();
            let complete = part.len() < budget;
            budget -= part.len();
            let last = part.last().cloned();
            for (_, name) in part {
                self.with(&name, now, effects, |ctx, model| ctx.reconcile(model, false));
            }
            if !complete {
                self.retry_queue.insert(class, last);
            }
        }
    }

    /// Schedules a check whether the server has too many replicas.
    pub(super) fn schedule_scale_down(&mut self, name: &Arc<str>) {
        let due = self.clock.monotonic_now.saturating_add(self.policy.cool_down);
        if let Some(server) = self.servers.get_mut(name)
            && server.due.is_none()
            && server.expected.is_some_and(|e| e.max > 0)
        {
            self.index.set_timer(&mut server.due, Some(due), &Timer::Server(name.clone()));
        }
    }
}
