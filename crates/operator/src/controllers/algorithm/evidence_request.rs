//! What has to be measured for an Algorithm, derived from its stored state.

use super::engine::restored;
use crate::{
    cluster::{Algorithm, Custom},
    evidence::{EvidenceRequest, RevisionObjectives},
};
use gantry_api::AnalysisMethod;
use gantry_core::rollout::{Exposure, Phase, Progress, Rollout, Watch};
use std::time::Duration;

const DEFAULT_SUCCESS: f64 = 0.99;
/// Autoscalers ask this often.
const SCALING_INTERVAL: Duration = Duration::from_secs(15);

/// `None` when nothing depends on evidence now, or there is no source of it.
pub fn evidence_request(object: &Custom<Algorithm>) -> Option<EvidenceRequest> {
    let (spec, status) = (object.spec.as_ref().ok()?, object.status.as_ref()?);
    let source = spec.evidence_source()?;
    let state = restored(Some(status))?;
    let (stable, candidate) = subject(&state, status.canary_weight)?;
    let lifecycle = spec.lifecycle.clone().unwrap_or_default();
    let tolerance = lifecycle.latency_tolerance.unwrap_or(1.0).max(1.0);
    // Sequential tests count each request once.
    let (window, counts_once) = match lifecycle.analysis.unwrap_or_default() {
        AnalysisMethod::Thresholds => (spec.window(), false),
        AnalysisMethod::Sequential => (spec.interval(), true),
    };
    let is_drift_watched = candidate.is_none() && spec.drift.is_some();
    let drift = spec.drift.clone().unwrap_or_default();
    Some(EvidenceRequest {
        key: object.key(),
        uid: object.uid().to_owned(),
        source,
        queries: spec.metrics.clone().and_then(|metrics| metrics.queries).unwrap_or_default(),
        stable,
        candidate,
        generation: state.generation,
        interval: spec.interval(),
        window,
        counts_once,
        objectives: RevisionObjectives {
            success: lifecycle.success_threshold.unwrap_or(DEFAULT_SUCCESS),
            latency_limit_ms: spec.target_latency_ms().map(|target| target as f64 * tolerance),
        },
        drift_metric: is_drift_watched.then(|| drift.metric.unwrap_or_default()),
    })
}

/// What is measured for the autoscaler: the stable revision, whatever the phase. `None` without a target, a source or a stable
/// revision.
pub(crate) fn latency_request(object: &Custom<Algorithm>) -> Option<EvidenceRequest> {
    let (spec, status) = (object.spec.as_ref().ok()?, object.status.as_ref()?);
    let source = spec.evidence_source()?;
    let target = spec.target_latency_ms()?;
    Some(EvidenceRequest {
        key: object.key(),
        uid: object.uid().to_owned(),
        source,
        queries: spec.metrics.clone().and_then(|metrics| metrics.queries).unwrap_or_default(),
        stable: status.stable_revision.clone()?,
        candidate: None,
        generation: restored(Some(status))?.generation,
        interval: SCALING_INTERVAL,
        window: spec.window(),
        counts_once: false,
        objectives: RevisionObjectives { success: DEFAULT_SUCCESS, latency_limit_ms: Some(target as f64) },
        drift_metric: None,
    })
}

/// Whether anything depends on evidence now, or will as soon as a weight is in effect.
pub(super) fn needs_evidence(state: &Rollout) -> bool {
    match &state.phase {
        Phase::Progressing { .. } => true,
        Phase::Running { stable } => !matches!(stable.watch, Watch::Off),
        Phase::Deploying { .. } | Phase::RollingBack { .. } | Phase::Reverting { .. } => false,
    }
}

/// The stable revision, and the one under analysis once its weight is in effect.
fn subject(state: &Rollout, weight: i32) -> Option<(String, Option<String>)> {
    match &state.phase {
        Phase::Progressing { stable, candidate } => match candidate.progress {
            Progress::Stage { exposure: Exposure::Weight(percent), .. }
                if state.is_ready(&candidate.revision) && i64::from(percent.get()) == i64::from(weight) =>
            {
                Some((stable.revision.to_string(), Some(candidate.revision.to_string())))
            }
            _ => None,
        },
        Phase::Running { stable } => {
            (!matches!(stable.watch, Watch::Off)).then(|| (stable.revision.to_string(), None))
        }
        Phase::Deploying { .. } | Phase::RollingBack { .. } | Phase::Reverting { .. } => None,
    }
}
