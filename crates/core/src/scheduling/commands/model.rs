//! Commands about models.

use crate::scheduling::{
    Millis, RolloutTarget,
    command::{Effects, Rejection},
    index::Timer,
    model::{Definition, Demand, Digest, Model, Version},
    model_context::ModelContext,
    owner::{Kind, Owner, check_generation, check_owner, owner_after},
    state::State,
};
use std::{collections::BTreeSet, sync::Arc};

impl State {
    fn check_model_owner(&self, name: &Arc<str>, by: &Owner, delete: bool) -> Result<(), Rejection> {
        let Some(model) = self.models.get(name).filter(|m| !m.deleted) else { return Ok(()) };
        let generation = model.latest().and_then(|v| v.definition.generation);
        check_owner(Kind::Model, name, model.owner.as_ref(), generation, by, delete)
    }

    fn check_model_generation(&self, definition: &Definition) -> Result<(), Rejection> {
        let model = self.models.get(&definition.name).filter(|m| !m.deleted);
        let known = model.and_then(Model::latest).and_then(|v| v.definition.generation);
        check_generation(Kind::Model, &definition.name, known, definition.generation, definition.replaces)
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
        self.check_model_generation(&definition)?;
        let definition = Definition { replaces: None, ..definition };
        let known = self.models.get(&name);
        if known.is_some_and(|m| m.deleted && m.versions.iter().any(|v| !v.has_no_replicas())) {
            return Err(Rejection::StillTerminating(name));
        }
        effects.models.insert(name.clone());
        if known.is_none_or(|m| m.deleted) {
            self.create_model(definition, by, now);
            let policy = self.policy_for(&RolloutTarget::model(name.clone()));
            self.with(&name, now, effects, |ctx, model| ctx.assign_policy(model, policy));
            effects.store_models.insert(name.clone());
        } else {
            let next = known.and_then(Model::latest).map_or(1, |latest| latest.number.saturating_add(1));
            let next = self.unused_number(&name, next, definition.spec);
            self.with(&name, now, effects, |ctx, model| ctx.change_model(model, definition, next, by));
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

    pub(in crate::scheduling) fn reload_model(
        &mut self,
        name: &Arc<str>,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let known = self.models.get(name).and_then(|model| Some((model, model.latest()?)));
        let Some((model, latest)) = known else { return Err(Rejection::UnknownModel(name.clone())) };
        if model.deleted && !model.unloaded {
            return Err(Rejection::Deleted(name.clone()));
        }
        let definition = (*latest.definition).clone();
        let by = model.owner.clone().unwrap_or(Owner::Gateway);
        self.load_model(definition, by, now, effects)
    }

    /// The first number from `from` on that no replica has loaded with another spec; preferably one with this spec.
    fn unused_number(&self, name: &Arc<str>, from: u32, spec: Digest) -> u32 {
        let held = || {
            let later = self.unexpected_specs.range((name.clone(), from)..);
            later.take_while(|((model, _), _)| model == name).map(|((_, number), by)| (*number, by))
        };
        let same = held().find(|(_, by)| by.values().all(|held| *held == Some(spec)));
        if let Some((number, _)) = same {
            return number;
        }
        held().fold(from, |free, (number, by)| {
            let other = by.values().any(|held| held.is_some_and(|held| held != spec));
            if number == free && other { number.saturating_add(1) } else { free }
        })
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
        let number = self.unused_number(&name, number, definition.spec);
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
            let by_gateway = *by == Owner::Gateway;
            if !model.deleted || (model.unloaded && !by_gateway) {
                model.deleted = true;
                model.unloaded = by_gateway;
                // A gateway acts for the owner, who gets the model back.
                model.owner = model.owner.take().filter(|_| by_gateway);
                model.demand = None;
                ctx.effects.store_models.insert(name.clone());
                ctx.effects.models.insert(name.clone());
            }
        });
        // Experiments stop sending requests to it before its route ends.
        self.update_dependants_of(&BTreeSet::from([name.clone()]), now, effects);
        self.with(name, now, effects, |ctx, model| ctx.reconcile(model, true));
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
    fn change_model(&mut self, model: &mut Model, definition: Definition, next: u32, by: Owner) {
        let owner = owner_after(model.owner.clone(), by);
        if model.owner != owner {
            model.owner = owner;
            self.effects.store_models.insert(self.name.clone());
        }
        let Some(latest) = model.versions.last_mut() else { return };
        if latest.definition.spec != definition.spec {
            let mut version = Version::new(next, Arc::new(definition), self.now);
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
