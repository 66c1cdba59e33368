//! Which certificates a namespace needs.

use super::policy::{Identity, Wanted};
use std::collections::BTreeMap;

/// With the scheduler's certificate.
pub const SCHEDULER: &str = "gantry-scheduler-tls";
/// With the certificate of all gateways of a namespace.
pub const GATEWAY: &str = "gantry-gateway-tls";
/// With a certificate for the agents of each Server.
pub const AGENT: &str = "gantry-agent-tls";
/// All Secrets that the issuer writes in a namespace with a runtime.
pub const SECRETS: [&str; 3] = [SCHEDULER, GATEWAY, AGENT];
/// The item of a Secret with one certificate.
pub const ITEM: &str = "tls";
/// The file with the trusted authorities.
pub const BUNDLE: &str = "ca.crt";

/// The certificates of a namespace with these Servers.
pub fn wanted<'a>(namespace: &str, servers: impl IntoIterator<Item = &'a str>) -> Wanted {
    let service = "seldon-scheduler";
    let hosts = [
        service.to_owned(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
        // Through kubectl port-forward.
        "localhost".to_owned(),
    ];
    let one = |identity| BTreeMap::from([(ITEM.to_owned(), identity)]);
    let agents = servers.into_iter().map(|server| {
        (agent_item(server), Identity { uri: role(namespace, &format!("agent/{server}")), hosts: Vec::new() })
    });
    Wanted::from([
        // The scheduler needs no rights: its role is that of its host names.
        (SCHEDULER, one(Identity { uri: role(namespace, "scheduler"), hosts: hosts.to_vec() })),
        (GATEWAY, one(Identity { uri: role(namespace, "gateway"), hosts: Vec::new() })),
        (AGENT, agents.collect()),
    ])
}

/// The item of a Server's agents; the prefix keeps it apart from the other files.
pub fn agent_item(server: &str) -> String {
    format!("agent-{server}")
}

/// The operator's identity at the scheduler of a namespace.
pub fn operator(namespace: &str) -> Identity {
    Identity { uri: role(namespace, &format!("operator/{namespace}")), hosts: Vec::new() }
}

/// The namespace is the trust domain: each has its own authority.
fn role(namespace: &str, role: &str) -> String {
    format!("spiffe://{namespace}.gantry/gantry/role/{role}")
}
