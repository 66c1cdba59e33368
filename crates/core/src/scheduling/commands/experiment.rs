//! Commands about experiments.

use crate::scheduling::{
    Millis,
    command::{Effects, Rejection},
    experiment::{Experiment, ExperimentDefinition},
    index::Timer,
    owner::{Kind, Owner, check_generation, check_owner, owner_after},
    state::State,
};
use std::sync::Arc;

impl State {
    fn check_experiment_owner(&self, name: &Arc<str>, by: &Owner, delete: bool) -> Result<(), Rejection> {
        let Some(experiment) = self.experiments.get(name).filter(|e| !e.deleted) else { return Ok(()) };
        let generation = experiment.definition.generation;
        check_owner(Kind::Experiment, name, experiment.owner.as_ref(), generation, by, delete)
    }

    /// A name leads to one experiment only.
    fn check_baseline(&self, definition: &ExperimentDefinition) -> Result<(), Rejection> {
        let Some(default) = &definition.default else { return Ok(()) };
        match self.dependants.baseline(definition.resource, default) {
            Some(other) if *other != definition.name => {
                Err(Rejection::BaselineTaken { resource: default.clone(), experiment: other.clone() })
            }
            _ => Ok(()),
        }
    }

    pub(in crate::scheduling) fn start_experiment(
        &mut self,
        definition: ExperimentDefinition,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let name = definition.name.clone();
        self.check_experiment_owner(&name, &by, false)?;
        let known = self.experiments.get(&name).filter(|e| !e.deleted).map(|e| &e.definition);
        let generation = known.and_then(|d| d.generation);
        let ExperimentDefinition { generation: sent, replaces, .. } = definition;
        check_generation(Kind::Experiment, &name, generation, sent, replaces)?;
        self.check_baseline(&definition)?;
        definition.validate().map_err(Rejection::InvalidExperiment)?;
        let repeated = generation.is_some() && generation == sent && replaces != generation;
        let definition = ExperimentDefinition { replaces: None, ..definition };
        if known.is_none() {
            self.create_experiment(definition, by, now, effects);
            return Ok(());
        }
        self.with_experiment(&name, now, effects, |experiment| {
            experiment.owner = owner_after(experiment.owner.take(), by);
            if !repeated || experiment.definition.spec == definition.spec {
                experiment.definition = Arc::new(definition);
            }
        });
        Ok(())
    }

    fn create_experiment(
        &mut self,
        definition: ExperimentDefinition,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) {
        let name = definition.name.clone();
        let earlier = self.experiments.remove(&name);
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_experiment(&name, earlier.as_ref());
        }
        let mut experiment = Experiment::new(Arc::new(definition), owner_after(None, by), now);
        if let Some(mut earlier) = earlier {
            experiment.route_sequence = earlier.route_sequence;
            self.index.set_timer(&mut earlier.due, None, &Timer::Experiment(name.clone()));
        }
        self.dependants.experiment_changed(&name, None, Some(&experiment));
        effects.store_experiments.insert(name.clone());
        effects.experiments.insert(name.clone());
        self.experiments.insert(name.clone(), experiment);
        self.with_experiment(&name, now, effects, |_| ());
    }

    pub(in crate::scheduling) fn stop_experiment(
        &mut self,
        name: Arc<str>,
        by: &Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        self.check_experiment_owner(&name, by, true)?;
        let known = self.with_experiment(&name, now, effects, |experiment| {
            experiment.deleted = true;
            experiment.owner = None;
        });
        if known { Ok(()) } else { Err(Rejection::UnknownExperiment(name)) }
    }

    pub(in crate::scheduling) fn adopt_experiment(
        &mut self,
        name: Arc<str>,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        if self.experiments.get(&name).is_none_or(|e| e.deleted) {
            return Err(Rejection::UnknownExperiment(name));
        }
        if by != Owner::Gateway {
            self.with_experiment(&name, now, effects, |experiment| experiment.owner = Some(by));
        }
        Ok(())
    }
}
