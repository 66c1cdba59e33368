//! Status and events of an Algorithm.

use super::{
    ALGORITHM, MetricsApi, TRACK, Track,
    engine::Advanced,
    placement::{Placement, stage_weight},
    retry::Retry,
    revision::Templates,
    route,
    snapshot::{LiveDeployment, Snapshot},
};
use crate::{
    cluster::{Algorithm, Custom, EventDraft, ResourceKind},
    conditions::{
        ConditionStatus, ConditionUpdate, Progress as Settling, READY, condition_status, conditions,
    },
    external_metrics::{API_SERVICE, METRIC},
    workload::Rollout as PodRollout,
};
use gantry_api::{
    AlgorithmAnalysis, AlgorithmPhase, AlgorithmSpec, AlgorithmStatus, EvidenceSource,
    FailedAlgorithmRevision, RevisionRecord,
};
use gantry_core::rollout::{
    Analysis, Candidate, Event, Evidence, Finding, HistoryEntry, Method, Outcome, Phase, Progress, Provider,
    Reason, Revision, Verdict, Watch,
};
use gantry_proto::gantry::ServiceRoute;
use k8s_openapi::jiff::Timestamp;

const METRICS_UNKNOWN: &str = "ExternalMetricsUnknown";
const METRICS_MISSING: &str = "ExternalMetricsMissing";
const METRICS_UNAVAILABLE: &str = "ExternalMetricsUnavailable";

/// Problems of the API of external metrics, which are known without evidence.
const SCALING_PROBLEMS: [&str; 3] = [METRICS_UNKNOWN, METRICS_MISSING, METRICS_UNAVAILABLE];

/// The status of an object whose spec is invalid.
pub(super) fn invalid(
    object: &Custom<Algorithm>,
    condition: &ConditionUpdate,
    now: Timestamp,
) -> AlgorithmStatus {
    let before = object.status.clone().unwrap_or_default();
    let own: &[(&str, &ConditionUpdate)] = &[];
    AlgorithmStatus {
        observed_generation: Some(object.generation()),
        phase: before.phase.or(Some(AlgorithmPhase::Pending)),
        conditions: conditions(&before.conditions, own, condition, object.generation(), now),
        ..before
    }
}

/// What the status is built from.
pub(super) struct Observed<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) object: &'a Custom<Algorithm>,
    pub(super) spec: &'a AlgorithmSpec,
    pub(super) desired: &'a Revision,
    pub(super) advanced: &'a Advanced,
    pub(super) templates: &'a Templates,
    pub(super) placement: &'a Placement,
    pub(super) retry: &'a Retry,
    /// The route of Gantry's gateway.
    pub(super) route: Option<&'a ServiceRoute>,
    pub(super) now: Timestamp,
}

fn settled(status: impl Into<ConditionStatus>, reason: &str, message: impl Into<String>) -> ConditionUpdate {
    ConditionUpdate::new(status, reason, message, Settling::Settled)
}

fn time(millis: u64) -> String {
    let time = i64::try_from(millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    stamp(time.unwrap_or_default())
}

/// RFC 3339 in whole seconds, as Kubernetes writes times.
fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Observed<'_> {
    pub(super) fn status(&self) -> AlgorithmStatus {
        let before = self.object.status.clone().unwrap_or_default();
        let state = &self.advanced.state;
        let stable = self.snapshot.deployment(Track::Stable);
        let generation = self.object.generation();
        let candidate = self.candidate();
        let analysis = self.analysis();
        let thresholds = analysis.and_then(|analysis| match &analysis.method {
            Method::Thresholds(state) => Some((number(state.passed), number(state.failed))),
            Method::Sequential(_) => None,
        });
        let step = candidate.and_then(|candidate| match candidate.progress {
            Progress::Stage { index, .. } => i32::try_from(index).ok(),
            Progress::Waiting => None,
        });
        let rollout =
            if self.advanced.is_changed { serde_json::to_string(state).ok() } else { before.rollout.clone() };
        let mut status = AlgorithmStatus {
            observed_generation: Some(generation),
            phase: Some(self.phase()),
            conditions: conditions(
                &before.conditions,
                &[
                    ("Available", &self.available()),
                    ("Progressing", &self.progressing()),
                    ("CanaryHealthy", &self.canary_healthy()),
                    ("Drifted", &self.drifted()),
                    ("RolledBack", &self.rolled_back()),
                    ("MetricsAvailable", &self.metrics_available()),
                ],
                &self.ready(),
                generation,
                self.now,
            ),
            stable_revision: state.phase.stable().map(|stable| stable.revision.to_string()),
            canary_revision: self.placement.canary.as_ref().map(|canary| canary.revision.to_string()),
            canary_weight: number(self.placement.weight),
            effective_weight: self.placement.effective_weight,
            step,
            checks_passed: thresholds.map(|(passed, _)| passed),
            consecutive_failures: thresholds.map(|(_, failed)| failed),
            consecutive_errors: analysis.and_then(|analysis| match &analysis.provider {
                Provider::Failing { consecutive, .. } => Some(number(*consecutive)),
                Provider::Working | Provider::NoData => None,
            }),
            last_analysis: self.last_analysis().or(before.last_analysis),
            failed_revisions: state
                .failed
                .iter()
                .map(|failed| FailedAlgorithmRevision {
                    revision: failed.revision.to_string(),
                    reason: failed.finding.reason.to_string(),
                    message: failed.finding.message.clone(),
                    time: time(failed.at),
                })
                .collect(),
            history: state.history.iter().map(|entry| self.record(entry, &before.history)).collect(),
            replicas: stable.map_or(0, LiveDeployment::pods),
            ready_replicas: stable.map_or(0, LiveDeployment::ready_pods),
            selector: Some(self.selector()),
            last_reconciled: before.last_reconciled,
            retry_count: self.retry.count,
            next_retry_time: self.retry.next.map(stamp),
            handled_retry: self.advanced.handled_retry.clone(),
            revisions: self.templates.stored(),
            rollout,
        };
        if self.object.status.as_ref() != Some(&status) {
            status.last_reconciled = Some(stamp(self.now));
        }
        status
    }

    fn selector(&self) -> String {
        format!("{ALGORITHM}={},{TRACK}={}", self.snapshot.key.name, Track::Stable.as_str())
    }

    fn candidate(&self) -> Option<&Candidate> {
        match &self.advanced.state.phase {
            Phase::Progressing { candidate, .. } => Some(candidate),
            _ => None,
        }
    }

    fn watch(&self) -> Option<&Watch> {
        match &self.advanced.state.phase {
            Phase::Running { stable } => Some(&stable.watch),
            _ => None,
        }
    }

    fn analysis(&self) -> Option<&Analysis> {
        let of_bake = || match self.watch() {
            Some(Watch::Baking(bake)) => Some(&bake.analysis),
            _ => None,
        };
        self.candidate().map(|candidate| &candidate.analysis).or_else(of_bake)
    }

    fn phase(&self) -> AlgorithmPhase {
        match &self.advanced.state.phase {
            Phase::Deploying { .. } => AlgorithmPhase::Deploying,
            Phase::Running { .. } if self.placement.is_promoting => AlgorithmPhase::Promoting,
            Phase::Running { stable } => {
                let is_available = self.available().status == ConditionStatus::True;
                if is_available && !stable.watch.reported() {
                    AlgorithmPhase::Running
                } else {
                    AlgorithmPhase::Degraded
                }
            }
            Phase::Progressing { candidate, .. } if candidate.pause.is_some() => AlgorithmPhase::Paused,
            Phase::Progressing { .. } if self.spec.steps().is_empty() => AlgorithmPhase::Deploying,
            Phase::Progressing { .. } => AlgorithmPhase::Canary,
            Phase::RollingBack { .. } | Phase::Reverting { .. } => AlgorithmPhase::RollingBack,
        }
    }

    /// Progress of the stable Deployment.
    fn pods(&self) -> ConditionUpdate {
        let live = self.snapshot.deployment(Track::Stable);
        let rollout = live.map_or_else(
            || {
                let desired = self.spec.initial_replicas();
                PodRollout::of(ResourceKind::DEPLOYMENT, None, desired.into())
            },
            LiveDeployment::rollout,
        );
        rollout.condition(&self.snapshot.key.namespace, &self.selector())
    }

    fn available(&self) -> ConditionUpdate {
        let live = self.snapshot.deployment(Track::Stable);
        if live.is_some_and(|live| live.ready_pods() > 0 || live.replicas() == 0) {
            return settled(true, "PodsReady", "");
        }
        let pods = self.pods();
        settled(false, "PodsNotReady", pods.message)
    }

    fn progressing(&self) -> ConditionUpdate {
        match (self.phase(), &self.advanced.state.phase) {
            (AlgorithmPhase::Promoting, _) => settled(true, "Promoting", "the stable Deployment is updated"),
            (AlgorithmPhase::Paused, _) => settled(false, "Paused", "spec.paused is true"),
            (_, Phase::Running { .. }) => settled(false, "Settled", ""),
            (_, Phase::Deploying { target }) => {
                settled(true, "Deploying", format!("revision {target} is deployed"))
            }
            (_, Phase::Progressing { candidate, .. }) => {
                settled(true, "NewRevision", self.candidate_message(candidate))
            }
            (_, Phase::RollingBack { stable, revision, .. }) => {
                let message = format!("revision {revision} is replaced by {}", stable.revision);
                settled(true, "RollingBack", message)
            }
            (_, Phase::Reverting { stable, to, .. }) => {
                settled(true, "Reverting", format!("revision {} is replaced by {to}", stable.revision))
            }
        }
    }

    fn candidate_message(&self, candidate: &Candidate) -> String {
        let revision = &candidate.revision;
        match stage_weight(candidate.progress) {
            _ if !self.advanced.state.is_ready(revision) => format!("revision {revision} is not ready yet"),
            Some(weight) => {
                format!("revision {revision} at {weight} %: {}", candidate.analysis.summary())
            }
            None => format!("revision {revision} has no requests yet"),
        }
    }

    fn canary_healthy(&self) -> ConditionUpdate {
        let Some(candidate) = self.candidate() else {
            return settled(ConditionStatus::Unknown, "NoCanary", "");
        };
        if !self.advanced.state.is_ready(&candidate.revision) {
            let message = format!("no pod of revision {} is ready", candidate.revision);
            return settled(false, "NotReady", message);
        }
        let message = candidate.analysis.summary();
        match &candidate.analysis.verdict {
            Verdict::Pass => settled(true, "Pass", message),
            Verdict::Fail(finding) => settled(false, &finding.reason.to_string(), message),
            Verdict::Inconclusive(finding) | Verdict::Error(finding) => {
                settled(ConditionStatus::Unknown, &finding.reason.to_string(), message)
            }
        }
    }

    fn drifted(&self) -> ConditionUpdate {
        match self.watch() {
            Some(Watch::Drift(drift)) => {
                let windows = self.advanced.policy.drift.as_ref().map_or(1, |rules| rules.windows.max(1));
                match drift.finding.as_ref().filter(|_| drift.exceeded >= windows) {
                    Some(finding) => settled(true, &finding.reason.to_string(), &finding.message),
                    None => settled(false, "NoDrift", ""),
                }
            }
            Some(Watch::Baking(bake)) if bake.reported => {
                settled(true, "ObjectivesMissed", bake.analysis.summary())
            }
            Some(Watch::Baking(_)) => settled(false, "Baking", ""),
            Some(Watch::Off) | None => settled(ConditionStatus::Unknown, "NotWatched", ""),
        }
    }

    fn rolled_back(&self) -> ConditionUpdate {
        let state = &self.advanced.state;
        match state.failure(self.desired) {
            Some(failed) => {
                let Finding { reason, message } = &failed.finding;
                let message = format!("revision {}: {message}", self.desired);
                settled(true, &reason.to_string(), message)
            }
            None => settled(false, "NotRolledBack", ""),
        }
    }

    fn metrics_available(&self) -> ConditionUpdate {
        let Some(source) = self.spec.evidence_source() else {
            let message = "nothing is measured: set spec.metrics.prometheus.address, or spec.expose to {} for the statistics of \
                           Gantry's gateway";
            return settled(false, "NoProvider", message);
        };
        match self.snapshot.observation.as_ref().map(|observation| &observation.evidence) {
            Some(Evidence::ProviderFailed { message, .. }) => settled(false, "ProviderFailed", message),
            Some(Evidence::NoData { .. }) => {
                let message = match source {
                    EvidenceSource::Prometheus(_) => {
                        "queries have no values: check that requests arrive and their metrics are scraped"
                    }
                    EvidenceSource::Gateway => {
                        "the gateway has counted no requests: check that clients send them to it, not to the Service"
                    }
                };
                settled(false, "NoData", message)
            }
            Some(Evidence::Window(_)) => self.scaling_problem().unwrap_or_else(|| self.measured()),
            None => self.scaling_problem().unwrap_or_else(|| self.measured_before()),
        }
    }

    /// Without a new observation the condition stays as it was, so that a restart of the operator changes nothing.
    fn measured_before(&self) -> ConditionUpdate {
        let mut before = self.object.status.iter().flat_map(|status| &status.conditions);
        let before = before.find(|condition| condition.r#type == "MetricsAvailable");
        let is_kept = |reason: &str| reason != "NoProvider" && !SCALING_PROBLEMS.contains(&reason);
        match before.filter(|before| is_kept(before.reason.as_deref().unwrap_or_default())) {
            Some(before) => settled(
                crate::conditions::condition_status(std::slice::from_ref(before), "MetricsAvailable")
                    .unwrap_or(ConditionStatus::Unknown),
                before.reason.as_deref().unwrap_or_default(),
                before.message.clone().unwrap_or_default(),
            ),
            None => settled(ConditionStatus::Unknown, "NotMeasured", ""),
        }
    }

    /// Why the autoscaler does not follow the latency, where it should.
    fn scaling_problem(&self) -> Option<ConditionUpdate> {
        match &self.snapshot.metrics_api {
            MetricsApi::NotNeeded | MetricsApi::Registered { unavailable: None, .. } => None,
            MetricsApi::Unknown(why) => Some(settled(ConditionStatus::Unknown, METRICS_UNKNOWN, why)),
            MetricsApi::Missing => {
                let message = format!(
                    "the autoscaler follows the CPU only, because nothing serves external metrics: install Gantry's APIService \
                     {API_SERVICE} (algorithms.externalMetrics.enabled in the chart)"
                );
                Some(settled(false, METRICS_MISSING, message))
            }
            MetricsApi::Registered { service, unavailable: Some(why), .. } => {
                let message = format!(
                    "the autoscaler cannot read the latency: APIService {API_SERVICE} of Service {service}: {why}"
                );
                Some(settled(false, METRICS_UNAVAILABLE, message))
            }
        }
    }

    fn measured(&self) -> ConditionUpdate {
        let message = match &self.snapshot.metrics_api {
            MetricsApi::Registered { is_gantry: false, service, .. } => format!(
                "the autoscaler reads {METRIC} from Service {service}, which serves the external metrics of this cluster"
            ),
            _ => String::new(),
        };
        settled(true, "Measured", message)
    }

    fn ready(&self) -> ConditionUpdate {
        let in_progress = |reason: &str, message: String| {
            ConditionUpdate::new(false, reason, message, Settling::InProgress)
        };
        if let Some(failure) = self.retry.held.first() {
            return failure.condition();
        }
        if self.spec.gateway().is_some() && !self.snapshot.has_http_routes {
            let message = "spec.expose.gateway needs HTTPRoutes, which the cluster does not have: install the CRDs of the \
                           Gateway API, or remove it";
            return in_progress("GatewayApiMissing", message.into());
        }
        let route = self.snapshot.owned.get(ResourceKind::HTTP_ROUTE, &self.snapshot.key.name);
        if self.spec.gateway().is_some() && route.is_none() {
            return in_progress("RouteMissing", "the HTTPRoute is being created".into());
        }
        if self.spec.has_own_route()
            && let Some((reason, message)) = route::obstacle(self.snapshot, self.route, self.was_ready())
        {
            return in_progress(reason, message);
        }
        let pods = self.pods();
        match (&self.advanced.state.phase, self.phase()) {
            (Phase::Deploying { .. }, _) => in_progress("Deploying", pods.message),
            (Phase::Running { .. }, AlgorithmPhase::Promoting) => {
                in_progress("Promoting", self.progressing().message)
            }
            (Phase::Progressing { candidate, .. }, phase) => {
                in_progress(&format!("{phase:?}"), self.candidate_message(candidate))
            }
            (Phase::RollingBack { .. } | Phase::Reverting { .. }, _) => {
                in_progress("RollingBack", self.progressing().message)
            }
            (Phase::Running { stable }, _) => {
                if stable.revision != *self.desired {
                    let rolled_back = self.rolled_back();
                    let message = format!(
                        "{}; revision {} serves: change the spec, or set the annotation {} to {}",
                        rolled_back.message,
                        stable.revision,
                        super::RETRY,
                        self.desired
                    );
                    return ConditionUpdate::new(false, "RolledBack", message, Settling::Stalled);
                }
                if pods.status != ConditionStatus::True {
                    return in_progress(&pods.reason, pods.message);
                }
                settled(true, "AlgorithmReady", pods.message)
            }
        }
    }

    fn was_ready(&self) -> bool {
        let before = self.object.status.iter().flat_map(|status| &status.conditions).cloned();
        condition_status(&before.collect::<Vec<_>>(), READY) == Some(ConditionStatus::True)
    }

    /// The latest evidence with its verdict, when it has just been counted.
    fn last_analysis(&self) -> Option<AlgorithmAnalysis> {
        let observation = self.snapshot.observation.as_ref().filter(|_| self.advanced.is_changed)?;
        let analysis = self.analysis()?;
        let round = |value: f64, digits: i32| {
            let factor = 10_f64.powi(digits);
            (value * factor).round() / factor
        };
        let figures = &observation.figures;
        Some(AlgorithmAnalysis {
            time: Some(stamp(observation.at)),
            success_rate: figures.success_rate.map(|rate| round(rate, 4)),
            latency_ms: figures.latency_ms.map(|latency| round(latency, 1)),
            requests: figures.requests.map(|requests| requests.round() as i64),
            baseline_success_rate: figures.baseline_success_rate.map(|rate| round(rate, 4)),
            verdict: match &analysis.verdict {
                Verdict::Pass => "Pass",
                Verdict::Fail(_) => "Fail",
                Verdict::Inconclusive(_) => "Inconclusive",
                Verdict::Error(_) => "Error",
            }
            .into(),
            message: analysis.summary().to_owned(),
        })
    }

    fn record(&self, entry: &HistoryEntry, before: &[RevisionRecord]) -> RevisionRecord {
        let template = self.templates.get(&entry.revision).map(|template| template.image.clone());
        let known = || before.iter().find(|known| known.revision == *entry.revision)?.image.clone();
        RevisionRecord {
            revision: entry.revision.to_string(),
            image: template.or_else(known),
            from: time(entry.started),
            to: time(entry.ended),
            result: match entry.outcome {
                Outcome::Deployed => "Deployed".into(),
                Outcome::Promoted => "Promoted".into(),
                Outcome::Cancelled => "Cancelled".into(),
                Outcome::Reverted => "Reverted".into(),
                Outcome::RolledBack(reason) => format!("RolledBack: {reason}"),
            },
        }
    }
}

/// The Kubernetes event of an event of the engine.
pub(super) fn event(event: &Event) -> Option<EventDraft> {
    let normal = |reason, message| Some(EventDraft { warning: false, reason, message });
    let warning = |reason, message| Some(EventDraft { warning: true, reason, message });
    match event {
        Event::Deployed { revision } => normal("Deployed", format!("revision {revision} is deployed")),
        Event::Started { revision } => normal("RolloutStarted", format!("revision {revision} is rolled out")),
        Event::StageEntered { revision, exposure } => normal(
            "StepStarted",
            format!("revision {revision} receives {} of the requests", exposure.percent()),
        ),
        Event::Paused { revision } => {
            normal("Paused", format!("the rollout of revision {revision} is paused"))
        }
        Event::Resumed { revision } => {
            normal("Resumed", format!("the rollout of revision {revision} continues"))
        }
        Event::Promoted { revision } => normal("Promoted", format!("revision {revision} is promoted")),
        Event::RolledBack { revision, to, finding } => {
            let message = format!("revision {revision} is rolled back to {to}: {}", finding.message);
            warning("RolledBack", message)
        }
        Event::Cancelled { revision } => {
            normal("RolloutCancelled", format!("revision {revision} is not desired any more"))
        }
        Event::Degraded { revision, finding } => {
            let reason = if finding.reason == Reason::Drifted { "Drifted" } else { "Degraded" };
            warning(reason, format!("revision {revision}: {}", finding.message))
        }
        Event::Reverting { revision, to } => {
            normal("Reverting", format!("revision {revision} is replaced by {to}"))
        }
        Event::Reverted { revision, to } => {
            normal("Reverted", format!("revision {revision} was replaced by {to}"))
        }
        Event::RevertFailed { revision, to } => {
            warning("RevertFailed", format!("revision {to} did not become ready: {revision} keeps serving"))
        }
        Event::ApprovalNeeded { .. } | Event::BakeEnded { .. } | Event::CommandRejected { .. } => None,
    }
}
