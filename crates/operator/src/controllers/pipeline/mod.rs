//! Pipelines: validated, not run yet.

use super::{
    unsupported::{self, Unsupported},
    validate_only::Snapshot,
};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Key, Pipeline},
    controller::Controller,
    plan::Plan,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct PipelineController;

impl Controller for PipelineController {
    type Kind = Pipeline;
    type Snapshot = Snapshot<Pipeline>;
    const NAME: &'static str = "pipeline";
    const PATCHES: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        unsupported::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<Pipeline>(request, caches)
    }
}

impl Unsupported for Pipeline {
    const FINALIZER: &'static str = "seldon.pipeline.finalizer";
    const CONDITIONS: &'static [&'static str] = &["PipelineReady", "PipelineGwReady", "ModelsReady"];
    const WORKAROUND: &'static str = "this version validates pipelines but does not run them: call the models of its \
                                      steps one after the other (POST /v2/models/NAME/infer)";
}
