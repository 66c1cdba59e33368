//! `ServerConfigs`: the pods that Servers deploy. They are validated where they are written.

use super::validate_only::{self, Snapshot};
use crate::{
    admission::{AdmissionRequest, Decision, validate_kind},
    caches::Caches,
    cluster::{Key, ServerConfig},
    controller::Controller,
    plan::Plan,
};
use gantry_api::PlainStatus;
use k8s_openapi::jiff::Timestamp;

#[derive(Clone, Copy, Debug)]
pub struct ServerConfigController;

impl Controller for ServerConfigController {
    type Kind = ServerConfig;
    type Snapshot = Snapshot<ServerConfig>;
    const NAME: &'static str = "serverconfig";
    const OPERATOR_NAMESPACE_ONLY: bool = true;

    fn snapshot(caches: &Caches, key: &Key) -> Self::Snapshot {
        Snapshot::take(caches, key)
    }

    fn plan(snapshot: &Self::Snapshot, now: Timestamp) -> Plan<PlainStatus> {
        validate_only::plan(snapshot, now)
    }

    fn admit(request: &AdmissionRequest, caches: &Caches) -> Decision {
        validate_kind::<ServerConfig>(request, caches)
    }
}
