//! Service accounts and RBAC of the components.
//!
//! Gantry's components need no permissions: agents read storage secrets from mounted files. Where the operator's settings
//! (`--agent-secrets`) or the configuration (`agentConfig.rclone.config_secrets`) list Secrets for agents, the Servers'
//! account may read those.

use super::objects::Build;
use crate::cluster::{Desired, ResourceKind};
use gantry_api::SeldonConfiguration;
use serde_json::{Value, json};

const SERVERS: &str = "seldon-server";
const ROLE: &str = "gantry-agent";
/// Instead of a name: every Secret of the namespace.
const ALL: &str = "*";

/// Accounts of the scheduler, of Servers, and of Seldon's usage collector where it is enabled.
pub(super) fn accounts(build: &Build<'_>) -> Vec<Desired> {
    let mut names = vec!["seldon-scheduler", SERVERS];
    if build.has("hodometer") {
        names.push("hodometer");
    }
    names.into_iter().map(|name| build.object(ResourceKind::SERVICE_ACCOUNT, name, json!({}))).collect()
}

/// The permission to read the listed Secrets.
pub(super) fn roles(build: &Build<'_>, settings: &SeldonConfiguration) -> Vec<Desired> {
    let rclone = settings.agent_config.as_ref().and_then(|agent| agent.rclone.as_ref());
    let mut secrets = rclone.map(|rclone| rclone.config_secrets.clone()).unwrap_or_default();
    for name in build.agent_secrets {
        if !secrets.contains(name) {
            secrets.push(name.clone());
        }
    }
    if secrets.is_empty() {
        return Vec::new();
    }
    let mut read = json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] });
    if let Value::Object(rule) = &mut read
        && !secrets.iter().any(|name| name == ALL)
    {
        rule.insert("resourceNames".into(), json!(secrets));
    }
    let rules = json!({ "rules": [
        read,
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
