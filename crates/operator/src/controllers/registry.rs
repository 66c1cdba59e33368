//! Registrations: one per kind. Everything that the operator does for every kind is derived from them.

use super::{
    algorithm::AlgorithmController, cached::Cached, experiment::ExperimentController,
    inference_graph::InferenceGraphController, inference_service::InferenceServiceController,
    model::ModelController, pipeline::PipelineController, rollout_policy::RolloutPolicyController,
    seldon_config::SeldonConfigController, seldon_runtime::SeldonRuntimeController, server::ServerController,
    server_config::ServerConfigController, trained_model::TrainedModelController,
};
use crate::{
    admission::{AdmissionRequest, Decision},
    caches::{CacheSlot, Caches},
    cluster::{ClusterServingRuntime, ClusterStorageContainer, KindId, ResourceKind, ServingRuntime},
    context::Context,
    controller::{Controller, SchedulerRole},
    operator::Operator,
    reconcile,
    settings::Settings,
    triggers,
};
use futures::future::BoxFuture;
use std::{any::TypeId, fmt, sync::Arc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The kinds that an operator reconciles.
#[derive(Debug, Default)]
pub struct Registry(Vec<Registration>);

impl Registry {
    pub fn built_in() -> Self {
        Self::default()
            .with::<SeldonConfigController>()
            .with::<ServerConfigController>()
            .with::<SeldonRuntimeController>()
            .with::<ServerController>()
            .with::<ModelController>()
            .with::<PipelineController>()
            .with::<ExperimentController>()
            .with::<RolloutPolicyController>()
    }

    /// The kinds that an operator with these settings reconciles.
    pub fn of(settings: &Settings) -> Self {
        let mut registry = Self::built_in();
        if settings.inference_services {
            registry = registry.with_inference_services();
        }
        if settings.algorithms { registry.with_algorithms() } else { registry }
    }

    /// Algorithms in addition.
    #[must_use]
    pub fn with_algorithms(self) -> Self {
        self.with::<AlgorithmController>()
    }

    /// The kinds of KServe in addition.
    #[must_use]
    pub fn with_inference_services(self) -> Self {
        self.with::<Cached<ServingRuntime>>()
            .with::<Cached<ClusterServingRuntime>>()
            .with::<Cached<ClusterStorageContainer>>()
            .with::<InferenceServiceController>()
            .with::<InferenceGraphController>()
            .with::<TrainedModelController>()
    }

    #[must_use]
    pub fn with<C: Controller>(mut self) -> Self {
        self.0.push(Registration::of::<C>());
        self
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Registration> {
        self.0.iter()
    }

    /// By what a URL contains.
    pub fn find(&self, group: &str, plural: &str) -> Option<&Registration> {
        self.iter().find(|r| r.id.group == group && r.id.plural == plural)
    }

    /// Kinds of the objects that controllers create.
    pub fn owned_kinds(&self) -> Vec<ResourceKind> {
        distinct(self.iter().flat_map(|r| r.owns))
    }

    /// Kinds of the objects that controllers read only.
    pub fn read_kinds(&self) -> Vec<ResourceKind> {
        distinct(self.iter().flat_map(|r| r.reads))
    }

    /// Kinds of the objects that controllers read by name.
    pub fn input_kinds(&self) -> Vec<ResourceKind> {
        distinct(self.iter().flat_map(|r| r.inputs))
    }

    /// RBAC rules of the operator's role, one per group, resource and verbs, without duplicates.
    pub fn rbac_rules(&self) -> Vec<RbacRule> {
        let mut rules = Vec::new();
        for registration in self {
            let (group, plural) = (registration.id.group, registration.id.plural);
            let mut rule = |suffix: &str, verbs: &'static [&'static str]| {
                rules.push(RbacRule { group, resource: format!("{plural}{suffix}"), verbs });
            };
            rule("", if registration.patches { &["list", "watch", "patch"] } else { &["list", "watch"] });
            rule("/status", &["patch"]);
            // Owner references with `blockOwnerDeletion`, under OwnerReferencesPermissionEnforcement.
            if !registration.owns.is_empty() {
                rule("/finalizers", &["update"]);
            }
        }
        let resource =
            |kind: ResourceKind, verbs| RbacRule { group: kind.group, resource: kind.plural.into(), verbs };
        let owned: &[&str] = &["list", "watch", "create", "patch", "delete"];
        rules.extend(self.owned_kinds().into_iter().map(|kind| resource(kind, owned)));
        let read = distinct(self.read_kinds().iter().chain(&self.input_kinds()));
        rules.extend(read.into_iter().map(|kind| resource(kind, &["list", "watch"])));
        rules
    }
}

impl<'a> IntoIterator for &'a Registry {
    type Item = &'a Registration;
    type IntoIter = std::slice::Iter<'a, Registration>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn distinct<'a>(kinds: impl Iterator<Item = &'a ResourceKind>) -> Vec<ResourceKind> {
    let mut distinct = Vec::new();
    for kind in kinds {
        if !distinct.contains(kind) {
            distinct.push(*kind);
        }
    }
    distinct
}

/// Verbs that the operator needs on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbacRule {
    pub group: &'static str,
    pub resource: String,
    pub verbs: &'static [&'static str],
}

/// One kind and its controller, without their types.
pub struct Registration {
    pub id: KindId,
    pub name: &'static str,
    pub owns: &'static [ResourceKind],
    pub reads: &'static [ResourceKind],
    pub inputs: &'static [ResourceKind],
    pub scheduler: SchedulerRole,
    pub patches: bool,
    pub many: bool,
    /// The webhook's verdict on a change of an object.
    pub admit: fn(&AdmissionRequest, &Caches) -> Decision,
    pub(crate) type_id: TypeId,
    pub(crate) new_cache: fn() -> CacheSlot,
    pub(crate) subscribe: fn(&Arc<Context>),
    pub(crate) watch: fn(&Operator, &mut JoinSet<()>),
    pub(crate) work: fn(Arc<Context>, CancellationToken) -> BoxFuture<'static, ()>,
}

impl Registration {
    fn of<C: Controller>() -> Self {
        Self {
            id: KindId::of::<C::Kind>(),
            name: C::NAME,
            owns: C::OWNS,
            reads: C::READS,
            inputs: C::INPUTS,
            scheduler: C::SCHEDULER,
            patches: C::PATCHES,
            many: C::MANY,
            admit: C::admit,
            type_id: TypeId::of::<C::Kind>(),
            new_cache: CacheSlot::new::<C::Kind>,
            subscribe: triggers::subscribe::<C>,
            watch: Operator::watch_custom::<C>,
            work: |context, stop| Box::pin(reconcile::work::<C>(context, stop)),
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn registered_kinds_are_the_kinds_with_a_crd() {
        let registry = Registry::built_in().with_inference_services().with_algorithms();
        let registered: BTreeSet<_> = registry.iter().map(|r| (r.id.kind, r.id.plural)).collect();
        let defined: BTreeSet<_> =
            gantry_api::resources().map(|resource| (resource.kind, resource.plural)).into();
        assert_eq!(registered, defined);
    }

    /// Complaint 17: the objects of users stay as they are, so that `GitOps` shows no difference.
    #[test]
    fn complaint_17_users_objects_of_kserve_are_never_written() {
        let registry = Registry::built_in().with_inference_services();
        let rules = registry.rbac_rules();
        let of_users = |rule: &&RbacRule| rule.group == "serving.kserve.io" && !rule.resource.contains('/');
        let rules: Vec<_> = rules.iter().filter(of_users).collect();
        assert_eq!(rules.len(), 6);
        assert!(rules.iter().all(|rule| rule.verbs == ["list", "watch"]), "{rules:?}");
    }

    #[test]
    fn docs_list_every_kind_with_its_short_name() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/crds.md");
        let docs = std::fs::read_to_string(file).unwrap();
        for resource in gantry_api::resources() {
            let short = resource.short_names.first().map(|name| format!("`{name}` ")).unwrap_or_default();
            let row = format!("\n| {} | {short}|", resource.kind);
            assert!(docs.contains(&row), "docs/crds.md has no row {row}");
        }
    }

    type Grants = BTreeSet<(String, String, String)>;

    /// Group, resource and verb of each rule that is not for named objects; events belong to no kind.
    fn granted(rules: &Value) -> Grants {
        let words = |rule: &Value, field: &str| -> Vec<String> {
            rule[field].as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect()
        };
        let mut granted = BTreeSet::new();
        let rules = rules.as_array().unwrap().iter();
        for rule in rules.filter(|r| r.get("resourceNames").is_none() && r["resources"][0] != "events") {
            for group in words(rule, "apiGroups") {
                for resource in words(rule, "resources") {
                    let verbs = words(rule, "verbs").into_iter();
                    granted.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
                }
            }
        }
        granted
    }

    fn needed(registry: &Registry) -> Grants {
        let mut needed = BTreeSet::new();
        for rule in registry.rbac_rules() {
            let verbs = rule.verbs.iter();
            needed.extend(verbs.map(|v| (rule.group.to_owned(), rule.resource.clone(), (*v).to_owned())));
        }
        needed
    }

    #[test]
    fn chart_grants_the_registered_rbac_rules() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/manifests/gantry.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let is_role =
            |d: &&str| d.contains("\nkind: ClusterRole\n") && d.contains("\n  name: gantry-operator\n");
        let role: Value = serde_saphyr::from_str(text.split("\n---").find(is_role).unwrap()).unwrap();
        assert_eq!(granted(&role["rules"]), needed(&Registry::built_in()));
    }

    /// The rules of the chart under a value, with those that it always grants.
    fn granted_with(value: &str) -> Grants {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/templates/rbac.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let (_, rest) = text.split_once(&format!("{{{{- if .Values.{value}.enabled }}}}\n")).unwrap();
        let (rules, _) = rest.split_once("{{- end }}").unwrap();
        let mut all = granted(&serde_saphyr::from_str(rules).unwrap());
        all.extend(needed(&Registry::built_in()));
        all
    }

    #[test]
    fn chart_grants_the_rules_of_optional_kinds_on_request() {
        let services = Registry::built_in().with_inference_services();
        assert_eq!(granted_with("inferenceServices"), needed(&services));
        let algorithms = Registry::built_in().with_algorithms();
        assert_eq!(granted_with("algorithms"), needed(&algorithms));
    }
}
