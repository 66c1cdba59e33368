//! Commands about models.

use crate::scheduling::{
    Millis,
    command::{Effects, Rejection},
    index::Timer,
    model::{Definition, Demand, Model, Version},
    model_context::ModelContext,
    owner::{Kind, Owner, may_change, owner_after},
    state::State,
};
use std::sync::Arc;

impl State {
    fn check_model_owner(&self, name: &Arc<str>, by: &Owner, delete: bool) -> Result<(), Rejection> {
        let Some(model) = self.models.get(name).filter(|m| !m.deleted) else { return Ok(()) };
        match &model.owner {
            Some(owner) if !may_change(Some(owner), by) => Err(Rejection::Owned {
                kind: Kind::Model,
                name: name.clone(),
                owner: owner.clone(),
                generation: model.latest().and_then(|v| v.definition.generation),
                delete,
            }),
            _ => Ok(()),
        }
    }

    pub(in crate::scheduling) fn load_model(
        &mut self,
        definition: Definition,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let name = definition.name.clone();
        self.check_model_owner(&name, &by, false)?;
        let known = self.models.get(&name);
        if known.is_some_and(|m| m.deleted && m.versions.iter().any(|v| !v.has_no_replicas())) {
            return Err(Rejection::StillTerminating(name));
        }
        effects.models.insert(name.clone());
        if known.is_none_or(|m| m.deleted) {
            self.create_model(definition, by, now);
            effects.store_models.insert(name.clone());
        } else {
            self.with(&name, now, effects, |ctx, model| ctx.change_model(model, definition, by));
        }
        self.with(&name, now, effects, |ctx, model| {
            if let Some(latest) = model.versions.last_mut() {
                latest.autoscaled = ctx.is_autoscaled(latest);
                if latest.autoscaled && model.demand.is_none() {
                    model.demand = Some(Box::new(Demand { active: ctx.monotonic_now, ..Demand::default() }));
                }
            }
            // Applying a failed model again resets its backoff.
            model.versions.iter_mut().for_each(|v| v.attempts = 0);
            ctx.reconcile(model, true);
        });
        Ok(())
    }

    fn create_model(&mut self, definition: Definition, by: Owner, now: Millis) {
        let name = definition.name.clone();
        let earlier = self.models.get(&name);
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_previous(&name, earlier);
        }
        let first = definition.generation.and_then(|g| u32::try_from(g).ok()).unwrap_or(1).max(1);
        // Agents and gateways identify versions by number: a number is never reused for another spec.
        let number = earlier.and_then(Model::latest).map_or(first, |last| {
            let same = last.definition.spec == definition.spec;
            first.max(if same { last.number } else { last.number.saturating_add(1) })
        });
        let mut model =
            Model::new(vec![Version::new(number, Arc::new(definition), now)], owner_after(None, by));
        if let Some(mut earlier) = self.models.remove(&name) {
            model.route_sequence = earlier.route_sequence;
            let timer = Timer::Model(name.clone());
            self.index.set_timer(&mut earlier.due, None, &timer);
        }
        self.models.insert(name, model);
    }

    pub(in crate::scheduling) fn unload_model(
        &mut self,
        name: &Arc<str>,
        by: &Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        self.check_model_owner(name, by, true)?;
        let known = self.with(name, now, effects, |ctx, model| {
            if !model.deleted {
                model.deleted = true;
                model.owner = None;
                model.demand = None;
                ctx.effects.store_models.insert(name.clone());
                ctx.effects.models.insert(name.clone());
            }
            ctx.reconcile(model, true);
        });
        known.ok_or_else(|| Rejection::UnknownModel(name.clone()))
    }

    pub(in crate::scheduling) fn adopt_model(
        &mut self,
        name: Arc<str>,
        by: Owner,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let Some(model) = self.models.get_mut(&name).filter(|m| !m.deleted) else {
            return Err(Rejection::UnknownModel(name));
        };
        if by == Owner::Gateway || model.owner.as_ref() == Some(&by) {
            return Ok(());
        }
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_previous(&name, Some(&*model));
        }
        model.owner = Some(by);
        effects.models.insert(name.clone());
        effects.store_models.insert(name);
        Ok(())
    }
}

impl ModelContext<'_> {
    fn change_model(&mut self, model: &mut Model, definition: Definition, by: Owner) {
        let owner = owner_after(model.owner.clone(), by);
        if model.owner != owner {
            model.owner = owner;
            self.effects.store_models.insert(self.name.clone());
        }
        let Some(latest) = model.versions.last_mut() else { return };
        if latest.definition.spec != definition.spec {
            let mut version = Version::new(latest.number.saturating_add(1), Arc::new(definition), self.now);
            // Carry over the autoscaled count and the memory multiplier. A version that is scaled to zero gets a replica,
            // so that the update reveals whether it loads.
            let same = latest.definition.scaling == version.definition.scaling;
            version.scaled = latest.scaled.filter(|scaled| same && *scaled > 0);
            version.multiplier = latest.multiplier;
            if let Some(demand) = &mut model.demand {
                demand.active = self.monotonic_now;
            }
            model.versions.push(version);
            self.effects.store_models.insert(self.name.clone());
        } else if *latest.definition != definition {
            if latest.definition.scaling != definition.scaling {
                latest.scaled = None;
            }
            latest.definition = Arc::new(definition);
            self.effects.store_models.insert(self.name.clone());
        }
    }
}
