//! The predictor under a `RolloutPolicy`: the stable and the new version run side by side, and the scheduler's rollout engine
//! decides about their shares.
//!
//! The engine is that of the scheduler, not of the operator: it has the statistics of gateways, durable state and commands
//! already, and moves weights within a second while the operator restarts. The operator sends the policy, the latest revision
//! and the readiness of each version with the route, in one message, so that no version is routed without its policy. It
//! deploys what the rollout retains. Which version a Deployment runs is in its annotation, so that a crash changes nothing.
//!
//! There are two Deployments. `{name}-predictor` has the stable version, `{name}-predictor-canary` the new one. After a
//! promotion and its bake the first one is updated, and the second one deleted when the first serves. A spec that changes
//! before that is deployed into the first one, because the second one serves; if it fails, the stable version moves there.

use super::{
    component::Component,
    config::Config,
    objects::{is_deployed, owner, pod_template},
    plan::{has_ready_pods, is_frozen},
    route::is_gateway,
    scale_to_zero::replicas,
    snapshot::Snapshot,
    status::Fact,
};
use crate::{
    cluster::{Custom, Desired, InferenceService, OwnedObject, ResourceKind, digest},
    conditions::ConditionStatus,
    workload::Rollout,
};
use gantry_api::kserve::InferenceServiceSpec;
use gantry_proto::gantry::{RolloutStatus, ServiceBackend, ServiceDelivery, service_backend::Readiness};
use serde_json::{Value, json};
use std::fmt;

/// The annotation of a Deployment with the number and the revision of its version.
pub(super) const VERSION: &str = "gantry.dev/version";
/// Whether the policy that selects the service acts on it.
pub(in crate::controllers) const POLICY_ACCEPTED: &str = "RolloutPolicyAccepted";
/// After the name of the predictor.
const CANARY: &str = "-canary";
/// Of the label `app` of pods, without `isvc.`.
const MAX_NAME: usize = 58;

/// A policy that selects the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    /// As JSON.
    pub spec: Vec<u8>,
}

/// What a policy does not act on, and what to do.
pub(super) fn obstacle(
    snapshot: &Snapshot,
    object: &Custom<InferenceService>,
    spec: &InferenceServiceSpec,
    config: &Config,
    mode: &str,
) -> Option<String> {
    let predictor = &spec.predictor;
    let is_split = predictor.component.canary_traffic_percent.is_some();
    let name = format!("{}-predictor{CANARY}", snapshot.key.name);
    let problems = [
        (mode == "ModelMesh", "the mode ModelMesh: name the Model of the service in targetRef instead"),
        (
            mode == "Knative",
            "the mode Knative: set canaryTrafficPercent of the predictor, or use the mode Standard",
        ),
        (is_split, "spec.predictor.canaryTrafficPercent: remove it, the policy has the percentages"),
        (!spec.canary.is_empty(), "spec.canary: remove it, the policy has the percentages"),
        (predictor.name.as_ref().is_some_and(|name| !name.is_empty()), "spec.predictor.name: remove it"),
        (spec.transformer.is_some(), "a transformer, which sends requests past the gateway: remove it"),
        (
            predictor.worker_spec.is_some(),
            "spec.predictor.workerSpec: remove it, or leave the service out of the policy",
        ),
        (
            !is_gateway(config, object.metadata.labels.as_ref(), snapshot),
            "a route without Gantry's gateway, which has the weights and the evidence: set ingress.ingressClassName of the \
             ConfigMap inferenceservice-config to gantry, and create a SeldonRuntime",
        ),
    ];
    let found = problems.iter().find(|(is_met, _)| *is_met).map(|(_, problem)| *problem);
    let too_long = || format!("a name that needs a Service {name}, which is too long: shorten metadata.name");
    found.map(str::to_owned).or_else(|| (name.len() > MAX_NAME).then(too_long))
}

/// The condition of a service that a policy selects.
pub(super) fn accepted(policy: &Policy, obstacle: Option<&str>) -> Fact {
    let name = &policy.name;
    match obstacle {
        None => Fact::new(true, "", format!("new versions are rolled out under RolloutPolicy {name}")),
        Some(obstacle) => {
            Fact::new(false, "NotSupported", format!("RolloutPolicy {name} does not support {obstacle}"))
        }
    }
}

/// A version of the predictor: `7-1a2b3c4d5e` in annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The generation of the service, or more: unique among the Deployments.
    pub number: u32,
    /// Digest of the pods.
    pub revision: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.revision)
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (number, revision) = text.split_once('-')?;
        let is_revision = !revision.is_empty() && revision.chars().all(|c| c.is_ascii_hexdigit());
        let number = number.parse().ok().filter(|_| is_revision)?;
        Some(Self { number, revision: revision.to_owned() })
    }
}

fn revision(of: &Value) -> String {
    digest(of).chars().take(10).collect()
}

/// What a Deployment is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is deleted when the route is in effect.
    Nothing,
    /// What it runs.
    Kept,
    /// The latest spec.
    Latest,
    /// The stable version, which the other Deployment runs.
    Moved,
}

/// What a Deployment runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    service: String,
    /// `None` without a Deployment.
    version: Option<Version>,
    readiness: Readiness,
    content: Content,
}

impl Slot {
    fn revision(&self) -> Option<&str> {
        self.version.as_ref().map(|version| version.revision.as_str())
    }
}

/// The versions of a predictor.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    policy: Policy,
    /// The version of the latest spec.
    desired: Version,
    primary: Slot,
    secondary: Slot,
    rollout: Option<RolloutStatus>,
    /// Pods of the Deployment with the stable version.
    replicas: Option<i64>,
}

/// The rollout as far as it concerns Deployments.
#[derive(Clone, Copy, Debug)]
struct Known<'a> {
    /// `None` before a version has been ready.
    stable: Option<&'a str>,
    /// The version that is rolled out or back, or returned to, and the previous one during the bake.
    retained: &'a [&'a str],
    failed: &'a [&'a str],
}

/// What the Deployments are to run, by the revisions that they run now. `is_serving` is whether all pods of the first one run
/// its version and are ready.
fn contents(
    desired: &str,
    primary: Option<&str>,
    secondary: Option<&str>,
    is_serving: bool,
    rollout: Option<Known<'_>>,
) -> (Content, Content) {
    use Content::{Kept, Latest, Moved, Nothing};
    let kept = |slot: Option<&str>| if slot.is_some() { Kept } else { Nothing };
    let Some(Known { stable, retained, failed }) = rollout else {
        // The versions may be under analysis.
        let is_latest = primary == Some(desired) || (primary, secondary) == (None, None);
        return (if is_latest { Latest } else { kept(primary) }, kept(secondary));
    };
    // No version has been ready yet: there is nothing to protect.
    let Some(stable) = stable else { return (Latest, Nothing) };
    let is_retained = |slot: Option<&str>| slot.is_some_and(|revision| retained.contains(&revision));
    let has_candidate = desired != stable && !failed.contains(&desired);
    if secondary == Some(stable) && primary != Some(stable) {
        let content = match (is_retained(primary), has_candidate || desired == stable) {
            _ if has_candidate && primary == Some(desired) => Latest,
            (true, _) => Kept,
            (false, true) => Latest,
            (false, false) => Moved,
        };
        return (content, Kept);
    }
    let first = if primary.is_none() || primary == Some(desired) { Latest } else { Kept };
    let second = match secondary {
        // The first one takes over.
        Some(revision) if revision == stable && !is_serving => Kept,
        Some(revision) if revision == desired && has_candidate => Latest,
        Some(revision) if revision != stable && is_retained(secondary) => Kept,
        _ if has_candidate && primary != Some(desired) => Latest,
        _ => Nothing,
    };
    (first, second)
}

impl Delivery {
    pub(super) fn new(
        snapshot: &Snapshot,
        object: &Custom<InferenceService>,
        policy: &Policy,
        predictor: &Component,
        config: &Config,
    ) -> Self {
        let latest = revision(&pod_template(predictor, owner(&snapshot.key.name, object.uid()), config));
        let service = &predictor.key.name;
        let live = |name: &str| snapshot.owned.get(ResourceKind::DEPLOYMENT, name);
        let generation = u32::try_from(object.generation()).unwrap_or(u32::MAX).max(1);
        let version_of = |live: &OwnedObject| {
            let stamp = live.metadata.annotations.as_ref().and_then(|all| all.get(VERSION));
            stamp.and_then(|stamp| Version::parse(stamp)).unwrap_or_else(|| {
                // It was deployed without a policy: by this spec, or by an earlier one.
                let owner = owner(&snapshot.key.name, object.uid());
                let unknown = || revision(&json!(live.metadata.uid));
                if is_deployed(predictor, owner, config, live) {
                    Version { number: generation, revision: latest.clone() }
                } else {
                    Version { number: 1, revision: unknown() }
                }
            })
        };
        let slot = |service: String| Slot {
            version: live(&service).map(version_of),
            readiness: live(&service).map_or(Readiness::NotReady, readiness),
            content: Content::Nothing,
            service,
        };
        let mut primary = slot(service.clone());
        let mut secondary = slot(format!("{service}{CANARY}"));
        let slots = [&primary, &secondary];
        let versions = || slots.iter().filter_map(|slot| slot.version.as_ref());
        let newest = versions().map(|version| version.number).max().unwrap_or_default();
        let known = versions().find(|version| version.revision == latest).cloned();
        let frozen = primary.version.clone().filter(|_| is_frozen(object));
        let number = generation.max(newest.saturating_add(1));
        let desired = frozen.or(known).unwrap_or(Version { number, revision: latest });
        let rollout = snapshot.rollout.clone();
        (primary.content, secondary.content) =
            decide(&desired.revision, &primary, secondary.revision(), rollout.as_ref());
        let stable = rollout.as_ref().and_then(|rollout| rollout.stable.as_ref());
        let runs = |slot: &&Slot| slot.revision() == stable.map(|stable| stable.revision.as_str());
        let serving = [&primary, &secondary].into_iter().find(|slot| stable.is_some() && runs(slot));
        let replicas = serving.and_then(|slot| live(&slot.service)).map(replicas);
        Self { policy: policy.clone(), desired, primary, secondary, rollout, replicas }
    }

    /// Makes the components of the two Deployments of that of the latest spec.
    pub(super) fn components(&self, predictor: &mut Component) -> Option<Component> {
        let mut secondary = predictor.clone();
        secondary.key.name.clone_from(&self.secondary.service);
        for (component, slot) in [(&mut *predictor, &self.primary), (&mut secondary, &self.secondary)] {
            component.is_held = slot.content != Content::Latest;
            component.version = (slot.content == Content::Latest).then(|| self.desired.to_string());
            // A version that may get all requests at once needs as many pods as the one that has them.
            let least = self.replicas.filter(|_| !self.is_stable(slot));
            let least = least.and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or_default();
            component.spec.min_replicas = Some(component.min_replicas().max(least));
        }
        (self.secondary.content != Content::Nothing).then_some(secondary)
    }

    fn is_stable(&self, slot: &Slot) -> bool {
        let stable = self.rollout.as_ref().and_then(|rollout| rollout.stable.as_ref());
        stable.is_some_and(|stable| slot.revision() == Some(&stable.revision))
    }

    /// The stable version in the first Deployment, with the pods of the second one.
    pub(super) fn moved(&self, snapshot: &Snapshot, predictor: &Component, uid: &str) -> Option<Desired> {
        if self.primary.content != Content::Moved {
            return None;
        }
        let live = snapshot.owned.get(ResourceKind::DEPLOYMENT, &self.secondary.service)?;
        let mut template = live.data.pointer("/spec/template")?.clone();
        let labels = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut)?;
        labels.extend(predictor.selector().into_iter().map(|(name, value)| (name, value.into())));
        let version = self.secondary.version.as_ref()?.to_string();
        let body = json!({
            "metadata": {
                "labels": predictor.labels,
                "annotations": { VERSION: version },
                "ownerReferences": owner(&snapshot.key.name, uid).references(),
            },
            "spec": {
                "replicas": replicas(live),
                "selector": { "matchLabels": predictor.selector() },
                "template": template,
            },
        });
        Some(Desired::new(ResourceKind::DEPLOYMENT, predictor.key.clone(), body))
    }

    /// The Deployments that are routed: one for each version. The scheduler replaces the weights as soon as it knows one of
    /// the versions.
    fn routed(&self) -> Vec<&Slot> {
        let (primary, secondary) = (&self.primary, &self.secondary);
        let is_same = primary.revision() == secondary.revision();
        let is_serving = primary.readiness == Readiness::Ready;
        let slots = [(primary, !is_same || is_serving), (secondary, !is_same || !is_serving)];
        let is_kept = |slot: &Slot| slot.version.is_some() && slot.content != Content::Nothing;
        let live = slots.into_iter().filter(|(slot, is_routed)| is_kept(slot) && *is_routed);
        live.map(|(slot, _)| slot).collect()
    }

    /// The Services of the predictor with weights; `None` while no version runs.
    pub(super) fn backends(&self, snapshot: &Snapshot) -> Option<Vec<(String, i32)>> {
        let live = |slot: &Slot| snapshot.owned.get(ResourceKind::DEPLOYMENT, &slot.service);
        let routed = self.routed();
        routed.iter().any(|slot| has_ready_pods(live(slot))).then(|| {
            let weighted =
                |(index, slot): (usize, &&Slot)| (slot.service.clone(), if index == 0 { 100 } else { 0 });
            routed.iter().enumerate().map(weighted).collect()
        })
    }

    /// Adds the version to a backend.
    pub(super) fn describe(&self, backend: ServiceBackend) -> ServiceBackend {
        let routed = self.routed();
        let found = routed.iter().find(|slot| slot.service == backend.name);
        let Some((slot, version)) = found.and_then(|slot| Some((slot, slot.version.clone()?))) else {
            return backend;
        };
        // Pods may be terminating already.
        let readiness = match slot.readiness {
            Readiness::Ready if backend.pods.is_empty() => Readiness::NotReady,
            readiness => readiness,
        };
        let Version { number, revision } = version;
        ServiceBackend { revision, version: number, readiness: readiness.into(), ..backend }
    }

    pub(super) fn route(&self) -> ServiceDelivery {
        let Policy { name, spec } = self.policy.clone();
        ServiceDelivery { policy: name, spec, desired_revision: self.desired.revision.clone() }
    }

    /// The percentage of the requests that the latest version has, unless it is the stable one.
    pub(super) fn percent(&self) -> Option<i32> {
        let rollout = self.rollout.as_ref()?;
        let is_desired = |revision: &str| revision == self.desired.revision;
        let stable = rollout.stable.as_ref()?;
        let candidate = rollout.candidate.as_ref().filter(|candidate| is_desired(&candidate.revision));
        let weight = candidate.map_or(0, |candidate| i32::try_from(candidate.weight).unwrap_or(100));
        (!is_desired(&stable.revision)).then_some(weight)
    }

    /// Whether the latest version could get requests; `of_pods` is whether its pods are ready.
    pub(super) fn is_ready(&self, of_pods: bool) -> bool {
        let Some(rollout) = &self.rollout else { return of_pods && self.is_alone() };
        let Some(stable) = &rollout.stable else { return of_pods };
        let mut versions = std::iter::once(stable).chain(&rollout.candidate);
        versions.any(|version| version.revision == self.desired.revision && version.ready)
    }

    fn is_alone(&self) -> bool {
        self.primary.content == Content::Latest && self.secondary.version.is_none()
    }

    /// Whether the latest spec has all requests; `of_pods` is the condition of its pods, `before` that of the status.
    pub(super) fn fact(&self, of_pods: Fact, before: Option<Fact>) -> Fact {
        let Version { number, revision: desired } = &self.desired;
        let Some(rollout) = &self.rollout else {
            let unknown = || {
                Fact::new(
                    ConditionStatus::Unknown,
                    "RolloutUnknown",
                    "the scheduler has not reported the rollout yet",
                )
            };
            return if self.is_alone() { of_pods } else { before.unwrap_or_else(unknown) };
        };
        let Some(stable) = &rollout.stable else { return of_pods };
        if stable.revision == *desired {
            return if stable.ready { Fact::new(true, "", "") } else { of_pods };
        }
        let serving = stable.version;
        if let Some(failed) = rollout.failed.iter().find(|failed| failed.revision == *desired) {
            let why = &failed.message;
            let message = format!("version {number} was rolled back: {why}; version {serving} serves");
            return Fact::new(false, "RolledBack", message);
        }
        let candidate = rollout.candidate.as_ref().filter(|candidate| candidate.revision == *desired);
        let message = match candidate {
            Some(candidate) if candidate.ready => format!(
                "version {number} is rolled out to {} % of the requests; version {serving} serves the others",
                candidate.weight
            ),
            Some(_) => {
                let Fact { reason, message, .. } = of_pods;
                let reason = if reason.is_empty() { "RollingOut".into() } else { reason };
                return Fact::new(
                    false,
                    reason,
                    format!("version {number}: {message}; version {serving} serves"),
                );
            }
            None => format!("version {number} waits for its rollout; version {serving} serves"),
        };
        Fact::new(false, "RollingOut", message)
    }
}

fn decide(
    desired: &str,
    primary: &Slot,
    secondary: Option<&str>,
    rollout: Option<&RolloutStatus>,
) -> (Content, Content) {
    let is_serving = primary.readiness == Readiness::Ready;
    let Some(rollout) = rollout else {
        return contents(desired, primary.revision(), secondary, is_serving, None);
    };
    let stable = rollout.stable.as_ref().map(|stable| stable.revision.as_str());
    let other = rollout.candidate.as_ref().map(|other| other.revision.as_str());
    let is_baking = rollout.phase == "Running" && rollout.watch == "Baking";
    let previous = Some(rollout.previous.as_str()).filter(|_| is_baking);
    let retained: Vec<&str> = other.into_iter().chain(previous).collect();
    let failed: Vec<&str> = rollout.failed.iter().map(|failed| failed.revision.as_str()).collect();
    let known = Known { stable, retained: &retained, failed: &failed };
    contents(desired, primary.revision(), secondary, is_serving, Some(known))
}

/// Ready when all pods run the version of the Deployment; unknown while some pods are ready, which are those of a rolling
/// update too.
fn readiness(live: &OwnedObject) -> Readiness {
    let rollout = Rollout::of(ResourceKind::DEPLOYMENT, Some(live), replicas(live).max(1));
    if rollout.is_done() && rollout.is_replaced() {
        Readiness::Ready
    } else if has_ready_pods(Some(live)) {
        Readiness::Unknown
    } else {
        Readiness::NotReady
    }
}

#[cfg(test)]
mod tests;
