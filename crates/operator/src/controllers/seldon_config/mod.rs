//! `SeldonConfigs`: the components that `SeldonRuntimes` deploy. They are validated where they are written.

use super::validate_only::{self, Snapshot};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Key, SeldonConfig},
    controller::Controller,
    plan::Plan,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct SeldonConfigController;

impl Controller for SeldonConfigController {
    type Kind = SeldonConfig;
    type Snapshot = Snapshot<SeldonConfig>;
    const NAME: &'static str = "seldonconfig";
    const OPERATOR_NAMESPACE_ONLY: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        validate_only::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<SeldonConfig>(request, caches)
    }
}
