//! What people and programs ask: models and servers, and whose they are.

use super::{
    Millis,
    command::{Effects, Refusal},
    desk::Desk,
    manager::{Kind, Manager, may_change, owner_after},
    model::{Definition, Demand, Model, Version},
    server::Expectation,
    state::State,
};
use std::sync::Arc;

impl State {
    fn check_model_owner(&self, name: &Arc<str>, by: &Manager, delete: bool) -> Result<(), Refusal> {
        let Some(model) = self.models.get(name).filter(|m| !m.deleted) else { return Ok(()) };
        match &model.manager {
            Some(owner) if !may_change(Some(owner), by) => Err(Refusal::Owned {
                kind: Kind::Model,
                name: name.clone(),
                owner: owner.clone(),
                generation: model.latest().and_then(|v| v.definition.generation),
                delete,
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn load_model(
        &mut self,
        definition: Definition,
        by: Manager,
        now: Millis,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let name = definition.name.clone();
        self.check_model_owner(&name, &by, false)?;
        let known = self.models.get(&name);
        if known.is_some_and(|m| m.deleted && m.versions.iter().any(|v| !v.is_nowhere())) {
            return Err(Refusal::StillTerminating(name));
        }
        fx.models.insert(name.clone());
        if known.is_none_or(|m| m.deleted) {
            self.create_model(definition, by, now);
            fx.store_models.insert(name.clone());
        } else {
            self.with(&name, now, fx, |desk, model| desk.change_model(model, definition, by));
        }
        self.with(&name, now, fx, |desk, model| {
            if let Some(latest) = model.versions.last_mut() {
                latest.autoscaled = desk.is_autoscaled(latest);
                if latest.autoscaled && model.demand.is_none() {
                    model.demand = Some(Box::new(Demand { active: desk.passed, ..Demand::default() }));
                }
            }
            // Asking again for a model that failed means: try again.
            desk.settle(model, true);
        });
        Ok(())
    }

    fn create_model(&mut self, definition: Definition, by: Manager, now: Millis) {
        let name = definition.name.clone();
        let earlier = self.models.get(&name);
        if let Some(journal) = &mut self.journal {
            journal.remember(&name, earlier);
        }
        let first = definition.generation.and_then(|g| u32::try_from(g).ok()).unwrap_or(1).max(1);
        // Agents and gateways know versions by number: one number must not come to mean two things.
        let number = earlier.and_then(Model::latest).map_or(first, |last| {
            let same = last.definition.spec == definition.spec;
            first.max(if same { last.number } else { last.number.saturating_add(1) })
        });
        let mut model =
            Model::new(vec![Version::new(number, Arc::new(definition), now)], owner_after(None, by));
        if let Some(mut earlier) = self.models.remove(&name) {
            model.route_sequence = earlier.route_sequence;
            let timer = super::index::Timer::Model(name.clone());
            self.index.set_timer(&mut earlier.due, None, &timer);
        }
        self.models.insert(name, model);
    }

    pub(super) fn unload_model(
        &mut self,
        name: &Arc<str>,
        by: &Manager,
        now: Millis,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        self.check_model_owner(name, by, true)?;
        let known = self.with(name, now, fx, |desk, model| {
            if !model.deleted {
                model.deleted = true;
                model.manager = None;
                model.demand = None;
                desk.fx.store_models.insert(name.clone());
                desk.fx.models.insert(name.clone());
            }
            desk.settle(model, true);
        });
        known.ok_or_else(|| Refusal::UnknownModel(name.clone()))
    }

    pub(super) fn adopt_model(
        &mut self,
        name: Arc<str>,
        by: Manager,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let Some(model) = self.models.get_mut(&name).filter(|m| !m.deleted) else {
            return Err(Refusal::UnknownModel(name));
        };
        if by == Manager::Gateway || model.manager.as_ref() == Some(&by) {
            return Ok(());
        }
        if let Some(journal) = &mut self.journal {
            journal.remember(&name, Some(&*model));
        }
        model.manager = Some(by);
        fx.models.insert(name.clone());
        fx.store_models.insert(name);
        Ok(())
    }

    pub(super) fn adopt_server(
        &mut self,
        name: Arc<str>,
        by: Manager,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let Some(server) = self.servers.get_mut(&name) else {
            return Err(Refusal::UnknownServer(name));
        };
        if by == Manager::Gateway || server.manager.as_ref() == Some(&by) {
            return Ok(());
        }
        server.manager = Some(by);
        fx.servers.insert(name.clone());
        fx.store_servers.insert(name);
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one announcement, taken apart once")]
    pub(super) fn expect_server(
        &mut self,
        name: &Arc<str>,
        expected: Expectation,
        shared: bool,
        namespace: Option<String>,
        by: Manager,
        now: Millis,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let known = self.servers.get(name);
        if let Some(server) = known
            && let Some(owner) = server.manager.clone().filter(|o| !may_change(Some(o), &by))
        {
            return Err(Refusal::Owned {
                kind: Kind::Server,
                name: name.clone(),
                owner,
                generation: server.expected.and_then(|e| e.generation),
                delete: expected.replicas == 0,
            });
        }
        let server = self.servers.entry(name.clone()).or_default();
        let manager = owner_after(server.manager.clone(), by);
        let shared = shared || server.joined_shared;
        let changed = server.manager != manager
            || server.expected != Some(expected)
            || server.namespace != namespace
            || server.shared != shared;
        if !changed {
            return Ok(());
        }
        let was_leaving = server.is_leaving();
        server.manager = manager;
        server.expected = Some(expected);
        server.namespace = namespace;
        server.shared = shared;
        server.asked = None;
        server.since = now;
        fx.store_servers.insert(name.clone());
        fx.servers.insert(name.clone());
        if server.is_leaving() != was_leaving {
            let replicas: Vec<u32> = server.replicas.keys().copied().collect();
            for index in replicas {
                let id = super::ReplicaId { server: name.clone(), index };
                self.settle_all_on(&id, false, now, fx);
            }
        }
        self.forget_server_if_gone(name, fx);
        self.retry_waiting(name, true, now, fx);
        Ok(())
    }
}

impl Desk<'_> {
    fn change_model(&mut self, model: &mut Model, definition: Definition, by: Manager) {
        let owner = owner_after(model.manager.clone(), by);
        if model.manager != owner {
            model.manager = owner;
            self.fx.store_models.insert(self.name.clone());
        }
        let Some(latest) = model.versions.last_mut() else { return };
        if latest.definition.spec != definition.spec {
            let mut version = Version::new(latest.number.saturating_add(1), Arc::new(definition), self.now);
            // What demand called for, and what the runtime takes, is as true of the next version; but one that sleeps
            // is woken, so that whoever changed it learns whether it loads.
            let same = latest.definition.scaling == version.definition.scaling;
            version.scaled = latest.scaled.filter(|scaled| same && *scaled > 0);
            version.multiplier = latest.multiplier;
            if let Some(demand) = &mut model.demand {
                demand.active = self.passed;
            }
            model.versions.push(version);
            self.fx.store_models.insert(self.name.clone());
        } else if *latest.definition != definition {
            if latest.definition.scaling != definition.scaling {
                latest.scaled = None;
            }
            latest.definition = Arc::new(definition);
            self.fx.store_models.insert(self.name.clone());
        }
    }
}
