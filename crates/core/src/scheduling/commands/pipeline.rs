//! Commands about pipelines.

use crate::scheduling::{
    Millis,
    command::{Effects, Rejection},
    index::Timer,
    owner::{Kind, Owner, check_generation, check_owner, owner_after},
    pipeline::{Pipeline, PipelineDefinition, PipelineVersion},
    state::State,
};
use std::sync::Arc;

impl State {
    fn check_pipeline_owner(&self, name: &Arc<str>, by: &Owner, delete: bool) -> Result<(), Rejection> {
        let Some(pipeline) = self.pipelines.get(name).filter(|p| !p.deleted) else { return Ok(()) };
        let generation = pipeline.latest().and_then(|v| v.definition.generation);
        check_owner(Kind::Pipeline, name, pipeline.owner.as_ref(), generation, by, delete)
    }

    pub(in crate::scheduling) fn load_pipeline(
        &mut self,
        definition: PipelineDefinition,
        uid: Arc<str>,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        let name = definition.name.clone();
        self.check_pipeline_owner(&name, &by, false)?;
        let known = self.pipelines.get(&name);
        if known.is_some_and(|p| p.deleted && p.awaits != 0) {
            return Err(Rejection::PipelineTerminating(name));
        }
        let latest = known.filter(|p| !p.deleted).and_then(Pipeline::latest);
        let generation = latest.and_then(|v| v.definition.generation);
        let PipelineDefinition { generation: sent, replaces, .. } = definition;
        check_generation(Kind::Pipeline, &name, generation, sent, replaces)?;
        let repeated = generation.is_some() && generation == sent && replaces != generation;
        let definition = PipelineDefinition { replaces: None, ..definition };
        if latest.is_none() {
            self.create_pipeline(definition, uid, by, now, effects);
            return Ok(());
        }
        self.with_pipeline(&name, now, effects, |pipeline| {
            pipeline.owner = owner_after(pipeline.owner.take(), by);
            let Some(latest) = pipeline.versions.last_mut() else { return };
            if latest.definition.spec == definition.spec {
                latest.definition = Arc::new(definition);
            } else if !repeated {
                let number = latest.number.saturating_add(1);
                pipeline.versions.push(PipelineVersion::new(number, uid, Arc::new(definition), now));
            }
        });
        Ok(())
    }

    fn create_pipeline(
        &mut self,
        definition: PipelineDefinition,
        uid: Arc<str>,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) {
        let name = definition.name.clone();
        let earlier = self.pipelines.remove(&name);
        if let Some(undo_log) = &mut self.undo_log {
            undo_log.save_pipeline(&name, earlier.as_ref());
        }
        let version = PipelineVersion::new(1, uid, Arc::new(definition), now);
        let mut pipeline = Pipeline::new(vec![version], owner_after(None, by));
        if let Some(mut earlier) = earlier {
            pipeline.route_sequence = earlier.route_sequence;
            self.index.set_timer(&mut earlier.due, None, &Timer::Pipeline(name.clone()));
        }
        self.dependants.pipeline_changed(&name, None, Some(&pipeline));
        effects.store_pipelines.insert(name.clone());
        effects.pipelines.insert(name.clone());
        self.pipelines.insert(name.clone(), pipeline);
        self.assign_pipeline_policy(&name, now, effects);
    }

    pub(in crate::scheduling) fn unload_pipeline(
        &mut self,
        name: Arc<str>,
        by: &Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        self.check_pipeline_owner(&name, by, true)?;
        let known = self.with_pipeline(&name, now, effects, |pipeline| {
            pipeline.deleted = true;
            pipeline.owner = None;
        });
        if known { Ok(()) } else { Err(Rejection::UnknownPipeline(name)) }
    }

    pub(in crate::scheduling) fn adopt_pipeline(
        &mut self,
        name: Arc<str>,
        by: Owner,
        now: Millis,
        effects: &mut Effects,
    ) -> Result<(), Rejection> {
        if self.pipelines.get(&name).is_none_or(|p| p.deleted) {
            return Err(Rejection::UnknownPipeline(name));
        }
        if by != Owner::Gateway {
            self.with_pipeline(&name, now, effects, |pipeline| pipeline.owner = Some(by));
        }
        Ok(())
    }

    /// A report about another version than a current one is late.
    pub(in crate::scheduling) fn pipeline_reported(
        &mut self,
        name: &Arc<str>,
        uid: &Arc<str>,
        failure: Option<&String>,
        now: Millis,
        effects: &mut Effects,
    ) {
        self.with_pipeline(name, now, effects, |pipeline| {
            for version in pipeline.versions.iter_mut().filter(|v| v.uid == *uid) {
                version.failure = failure.cloned();
            }
        });
    }
}
