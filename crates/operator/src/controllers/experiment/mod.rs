//! Experiments: validated, not run yet.

use super::{
    unsupported::{self, Unsupported},
    validate_only::Snapshot,
};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Experiment, Key},
    controller::Controller,
    plan::Plan,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct ExperimentController;

impl Controller for ExperimentController {
    type Kind = Experiment;
    type Snapshot = Snapshot<Experiment>;
    const NAME: &'static str = "experiment";
    const PATCHES: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        unsupported::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Experiment>(request, caches)
    }
}

impl Unsupported for Experiment {
    const FINALIZER: &'static str = "seldon.experiment.finalizer";
    const CONDITIONS: &'static [&'static str] = &["ExperimentReady", "CandidatesReady", "MirrorReady"];
    const WORKAROUND: &'static str = "this version validates experiments but does not run them: choose between the \
                                      candidates in the client (POST /v2/models/NAME/infer)";
}
