//! Rollout policies of the schedulers, and the rollouts of the objects that they select.

use super::{
    SchedulerCache,
    scheduler_cache::NamespaceState,
    services::key_of,
    views::{LoadedView, ModelView, PolicyView, ServingVersion},
};
use crate::{
    cluster::{InferenceService, Key, KindId, Model, Pipeline, RolloutPolicy},
    plan::Known,
};
use gantry_api::TargetKind;
use gantry_proto::gantry::{self as own, RevisionStatus, RolloutStatus, policy_event, rollout_event};

/// An object by kind and name; that of a service has the namespace.
pub(super) type Target = (&'static str, String);

/// The object of a rollout.
pub fn target_of(status: &RolloutStatus) -> (TargetKind, &str) {
    match (status.pipeline.as_str(), status.service.as_str()) {
        ("", "") => (TargetKind::Model, &status.model),
        (pipeline, "") => (TargetKind::Pipeline, pipeline),
        (_, service) => (TargetKind::InferenceService, service),
    }
}

/// Without the namespace of a service.
pub fn target_name(status: &RolloutStatus) -> &str {
    let (_, name) = target_of(status);
    name.rsplit_once('/').map_or(name, |(_, name)| name)
}

/// The objects of a kind that a policy of the scheduler applies to.
pub fn targets_in(policy: &own::RolloutPolicy, kind: TargetKind) -> &[String] {
    match kind {
        TargetKind::Model => &policy.models,
        TargetKind::Pipeline => &policy.pipelines,
        TargetKind::InferenceService | TargetKind::Algorithm => &[],
    }
}

impl SchedulerCache {
    /// Returns whether the policy changed.
    pub fn apply_policy(&self, scheduler: &str, policy: own::RolloutPolicy) -> bool {
        let name = policy.name.clone();
        self.apply(scheduler, &name, PolicyView::from(policy))
    }

    /// Returns the policy that changed.
    pub(super) fn apply_policy_event(&self, scheduler: &str, event: policy_event::Event) -> Option<String> {
        use policy_event::Event;
        match event {
            Event::Upsert(policy) => {
                let name = policy.name.clone();
                self.apply_policy(scheduler, policy).then_some(name)
            }
            Event::Delete(name) => {
                let at = (KindId::of::<RolloutPolicy>(), name.clone());
                self.update(scheduler, |state| state.views.remove(&at).is_some()).then_some(name)
            }
            Event::Reset(_) | Event::Synced(_) => None,
        }
    }

    /// Returns the objects to reconcile. Changes of evidence are none of theirs: policies with rollouts under way are
    /// reconciled at intervals.
    pub(super) fn apply_rollout_event(
        &self,
        scheduler: &str,
        event: rollout_event::Event,
    ) -> Vec<(KindId, Key)> {
        use rollout_event::Event;
        match event {
            Event::Upsert(status) => self.apply_rollout(scheduler, status),
            Event::Delete(model) => self.remove_rollout(scheduler, &(TargetKind::Model.name(), model)),
            Event::DeletePipeline(pipeline) => {
                self.remove_rollout(scheduler, &(TargetKind::Pipeline.name(), pipeline))
            }
            Event::DeleteService(service) => {
                self.remove_rollout(scheduler, &(TargetKind::InferenceService.name(), service))
            }
            Event::Reset(_) => {
                self.update(scheduler, |state| state.rollouts.clear());
                Vec::new()
            }
            Event::Synced(_) => Vec::new(),
        }
    }

    fn remove_rollout(&self, scheduler: &str, target: &Target) -> Vec<(KindId, Key)> {
        self.update(scheduler, |state| match state.rollouts.remove(target) {
            Some(before) => changed(scheduler, state, target, vec![before.policy]),
            None => Vec::new(),
        })
    }

    /// Returns the objects to reconcile.
    pub fn apply_rollout(&self, scheduler: &str, status: RolloutStatus) -> Vec<(KindId, Key)> {
        self.update(scheduler, |state| {
            let (kind, name) = target_of(&status);
            let target = (kind.name(), name.to_owned());
            let before = state.rollouts.insert(target.clone(), status.clone());
            if before.as_ref().is_some_and(|before| without_evidence(before) == without_evidence(&status)) {
                return Vec::new();
            }
            let policies = before.map(|before| before.policy).into_iter().chain([status.policy]);
            changed(scheduler, state, &target, policies.collect())
        })
    }

    pub fn rollout_of(&self, kind: TargetKind, object: &Key) -> Option<RolloutStatus> {
        let target = (kind.name(), object.name.clone());
        self.read(&object.namespace, |state| state.rollouts.get(&target).cloned()).flatten()
    }

    /// Rollouts under a policy. Those of services are in the scheduler of their gateways.
    pub fn rollouts_of(&self, policy: &Key) -> Vec<RolloutStatus> {
        let namespace = &policy.namespace;
        let find = |scheduler: &str, is_service: bool| {
            let of_policy = |status: &&RolloutStatus| {
                let (kind, name) = target_of(status);
                status.policy == policy.name
                    && (kind == TargetKind::InferenceService) == is_service
                    && (!is_service || key_of(scheduler, name).namespace == *namespace)
            };
            let read = |state: &NamespaceState| {
                state.rollouts.values().filter(of_policy).cloned().collect::<Vec<_>>()
            };
            self.read(scheduler, read).unwrap_or_default()
        };
        let of_services = self.service_scheduler(namespace).map(|scheduler| find(&scheduler, true));
        find(namespace, false).into_iter().chain(of_services.into_iter().flatten()).collect()
    }

    /// Whether the scheduler of the services of a namespace has reported their rollouts.
    pub fn knows_rollouts_of_services(&self, namespace: &str) -> bool {
        let scheduler = self.service_scheduler(namespace);
        scheduler.and_then(|scheduler| self.read(&scheduler, |state| state.is_synced)).unwrap_or_default()
    }

    /// Whether the scheduler has an object of this name that is not that of the namespace.
    pub fn has_foreign<V: LoadedView>(&self, object: &Key) -> bool {
        match self.get::<V>(object) {
            Known::Present(view) => !view.is_deleted() && !view.is_from(&object.namespace),
            Known::Absent | Known::Unknown(_) => false,
        }
    }
}

/// The object of a rollout that changed, and its policies.
fn changed(
    scheduler: &str,
    state: &mut NamespaceState,
    (kind, name): &Target,
    mut policies: Vec<String>,
) -> Vec<(KindId, Key)> {
    policies.dedup();
    let key = key_of(scheduler, name);
    let policy = |policy: String| (KindId::of::<RolloutPolicy>(), Key::new(key.namespace.clone(), policy));
    let mut objects: Vec<_> = policies.into_iter().map(policy).collect();
    if *kind == TargetKind::Model.name()
        && let Some(view) = state.view::<ModelView>(name).cloned()
    {
        let serving = serving_version(state, name);
        if state.set_view(name, ModelView { serving, ..view }) {
            objects.push((KindId::of::<Model>(), key.clone()));
        }
    }
    if *kind == TargetKind::Pipeline.name() {
        objects.push((KindId::of::<Pipeline>(), key.clone()));
    }
    if *kind == TargetKind::InferenceService.name() {
        objects.push((KindId::of::<InferenceService>(), key));
    }
    objects
}

/// The promoted version of a model under a policy.
pub(super) fn serving_version(state: &NamespaceState, model: &str) -> Option<ServingVersion> {
    let target = (TargetKind::Model.name(), model.to_owned());
    let stable = state.rollouts.get(&target)?.stable.as_ref().filter(|stable| stable.version > 0)?;
    Some(ServingVersion { version: stable.version, available: stable.available_replicas })
}

/// Without the fields that change with every report of a gateway.
fn without_evidence(status: &RolloutStatus) -> RolloutStatus {
    let counted = |revision: &RevisionStatus| RevisionStatus {
        requests: 0,
        failures: 0,
        p99_micros: 0,
        ..revision.clone()
    };
    RolloutStatus {
        message: if is_under_way(status) { String::new() } else { status.message.clone() },
        stable: status.stable.as_ref().map(counted),
        candidate: status.candidate.as_ref().map(counted),
        stage_ms: 0,
        ..status.clone()
    }
}

/// Whether a version is being rolled out or back.
pub fn is_under_way(status: &RolloutStatus) -> bool {
    status.phase != "Running"
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::scheduler as pb;

    fn status(weight: u32, requests: u64) -> RolloutStatus {
        let revision = |version, weight| {
            Some(RevisionStatus { version, weight, requests, available_replicas: 2, ..Default::default() })
        };
        RolloutStatus {
            model: "iris".into(),
            policy: "careful".into(),
            phase: "Progressing".into(),
            message: format!("{requests} requests show neither harm nor fitness"),
            stable: revision(1, 100 - weight),
            candidate: revision(2, weight),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn rollouts_enqueue_policy_and_model_without_changes_of_evidence() {
        let cache = SchedulerCache::default();
        cache.add_namespace("ml");
        cache.begin_sync("ml");
        let model = pb::ModelStatusResponse { model_name: "iris".into(), ..Default::default() };
        cache.apply_model_status("ml", model.clone());
        cache.synced("ml");
        let apply = |event| {
            let changed = cache.apply_rollout_event("ml", event);
            changed.into_iter().map(|(kind, key)| format!("{} {}", kind.kind, key.name)).collect::<Vec<_>>()
        };
        let upsert = |weight, requests| rollout_event::Event::Upsert(status(weight, requests));
        assert_eq!(apply(upsert(20, 10)), ["RolloutPolicy careful", "Model iris"]);
        assert_eq!(apply(upsert(20, 11)), [] as [&str; 0]);
        assert_eq!(cache.rollouts_of(&Key::new("ml", "careful"))[0].stable.as_ref().unwrap().requests, 11);
        assert_eq!(apply(upsert(50, 11)), ["RolloutPolicy careful"], "the model has its own status");
        // A later status of the model keeps what its rollout reported.
        assert!(!cache.apply_model_status("ml", model));
        let Known::Present(view) = cache.get::<ModelView>(&Key::new("ml", "iris")) else { panic!() };
        assert_eq!(view.serving, Some(ServingVersion { version: 1, available: 2 }));
        let delete = || rollout_event::Event::Delete("iris".into());
        assert_eq!(apply(delete()), ["RolloutPolicy careful", "Model iris"]);
        assert_eq!(apply(delete()), [] as [&str; 0]);
    }

    #[tokio::test]
    async fn deleted_policy_is_absent() {
        let cache = SchedulerCache::default();
        cache.add_namespace("ml");
        cache.synced("ml");
        let policy = own::RolloutPolicy { name: "careful".into(), ..Default::default() };
        let upsert = || policy_event::Event::Upsert(policy.clone());
        assert_eq!(cache.apply_policy_event("ml", upsert()), Some("careful".into()));
        assert_eq!(cache.apply_policy_event("ml", upsert()), None);
        let key = Key::new("ml", "careful");
        assert!(matches!(cache.get::<PolicyView>(&key), Known::Present(_)));
        let delete = || policy_event::Event::Delete("careful".into());
        assert_eq!(cache.apply_policy_event("ml", delete()), Some("careful".into()));
        assert_eq!(cache.apply_policy_event("ml", delete()), None);
        assert_eq!(cache.get::<PolicyView>(&key), Known::Absent);
    }
}
