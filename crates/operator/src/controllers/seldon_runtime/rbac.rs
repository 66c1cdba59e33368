//! Service accounts and RBAC of the components.
//!
//! Gantry's components need no permissions: agents read storage secrets from mounted files. Where the configuration lists
//! Secrets for Seldon's agent (`agentConfig.rclone.config_secrets`), the Servers' account may read those, by name.

use super::objects::Build;
use crate::cluster::{Desired, ResourceKind};
use gantry_api::SeldonConfiguration;
use serde_json::json;

const SERVERS: &str = "seldon-server";
const ROLE: &str = "gantry-agent";

/// Accounts of the scheduler, of Servers, and of Seldon's usage collector where it is enabled.
pub(super) fn accounts(build: &Build<'_>) -> Vec<Desired> {
    let mut names = vec!["seldon-scheduler", SERVERS];
    if build.has("hodometer") {
        names.push("hodometer");
    }
    names.into_iter().map(|name| build.object(ResourceKind::SERVICE_ACCOUNT, name, json!({}))).collect()
}

/// The permission to read the configured Secrets.
pub(super) fn roles(build: &Build<'_>, settings: &SeldonConfiguration) -> Vec<Desired> {
    let rclone = settings.agent_config.as_ref().and_then(|agent| agent.rclone.as_ref());
    let secrets = rclone.map(|rclone| rclone.config_secrets.clone()).unwrap_or_default();
    if secrets.is_empty() {
        return Vec::new();
    }
    let rules = json!({ "rules": [
        { "apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"] },
        { "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["seldon-agent"], "verbs": ["get"] },
    ]});
    let binding = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE },
        "subjects": [{ "kind": "ServiceAccount", "name": SERVERS, "namespace": build.key.namespace }],
    });
    vec![
        build.object(ResourceKind::ROLE, ROLE, rules),
        build.object(ResourceKind::ROLE_BINDING, ROLE, binding),
    ]
}
