//! The table of rights, complete over every RPC that is served.

use super::{
    role::{Grant, Identity, Role, Trust, UnmarkedCertificates},
    table::{Callers, Decision, Effect, Port, decide, rows},
};
use crate::scheduler::{AGENT_SERVICES, CLIENT_SERVICES, COMMON_SERVICES};
use Role::{Agent, Client, Gateway, Operator, Viewer};
use gantry_core::scheduling::{Owner, ReplicaId};
use gantry_tls::{Peer, PeerCertificate};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::{collections::BTreeSet, sync::Arc};

fn role(role: Role) -> Identity {
    restricted(role, &[])
}

fn restricted(role: Role, restrictions: &[&str]) -> Identity {
    let restrictions = restrictions.iter().map(|r| (*r).to_owned()).collect();
    Identity { name: format!("{role} certificate"), grant: Grant::Role { role, restrictions } }
}

fn without_a_role() -> Identity {
    Identity { name: "CN=x".into(), grant: Grant::Nothing("has a certificate without a role".into()) }
}

fn is_allowed(port: Port, rpc: &str, caller: &Identity) -> bool {
    matches!(decide(port, rpc, caller), Decision::Allowed(_))
}

/// The RPCs of the services that a port serves, from the descriptors that reflection serves.
fn served(port: Port) -> BTreeSet<String> {
    let services = match port {
        Port::Clients => CLIENT_SERVICES,
        Port::Agents => AGENT_SERVICES,
    };
    let reflection = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
    let services: BTreeSet<&str> =
        services.iter().chain(COMMON_SERVICES).chain(&reflection).copied().collect();
    let mut rpcs = BTreeSet::new();
    let mut found = BTreeSet::new();
    for descriptors in [
        gantry_proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ] {
        for file in FileDescriptorSet::decode(descriptors).unwrap().file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                if services.contains(name.as_str()) {
                    rpcs.extend(service.method.iter().map(|method| format!("{name}/{}", method.name())));
                    found.insert(name);
                }
            }
        }
    }
    assert_eq!(found.len(), services.len(), "{found:?}");
    rpcs
}

#[test]
fn every_served_rpc_has_one_row() {
    for port in [Port::Clients, Port::Agents] {
        let names: Vec<&str> = rows(port).iter().map(|rpc| rpc.name).collect();
        let unique: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(names.len(), unique.len(), "{port:?}: an RPC has two rows");
        let served = served(port);
        let missing: Vec<_> = served.difference(&unique).collect();
        assert!(missing.is_empty(), "{port:?}: decide in access/table.rs who may call {missing:?}");
        let stale: Vec<_> = unique.difference(&served).collect();
        assert!(stale.is_empty(), "{port:?}: not served: {stale:?}");
    }
}

/// What each role may do, written down a second time: a change of a right changes two places.
#[test]
fn roles_have_these_rights() {
    let changes = |caller: Role| {
        let rows = rows(Port::Clients).iter().chain(rows(Port::Agents));
        let allowed = rows
            .filter(|rpc| rpc.effect != Effect::Read)
            .filter(|rpc| matches!(rpc.callers, Callers::Roles(roles) if roles.contains(&caller)));
        allowed.map(|rpc| rpc.name.rsplit('/').next().unwrap()).collect::<Vec<_>>()
    };
    let declare = [
        "ServerNotify",
        "LoadModel",
        "UnloadModel",
        "LoadPipeline",
        "UnloadPipeline",
        "StartExperiment",
        "StopExperiment",
    ];
    let steer = ["PutPolicy", "DeletePolicy", "SteerRollout", "Adopt"];
    assert_eq!(changes(Client), [&declare[..], &steer].concat());
    assert_eq!(changes(Operator), [&declare[..], &["PutService", "DeleteService"], &steer].concat());
    assert_eq!(changes(Viewer), Vec::<&str>::new());
    let gateway = ["LoadModel", "UnloadModel", "PipelineStatusEvent", "ModelStatusEvent"];
    let routes = ["WatchRoutes", "AcknowledgeRoutes", "ReportDemand", "ReportTraffic"];
    assert_eq!(changes(Gateway), [gateway, routes].concat());
    assert_eq!(changes(Agent), ["Subscribe", "AgentEvent", "ModelScalingTrigger", "AgentDrain"]);
}

#[test]
fn only_agents_use_the_agent_port_and_agents_use_no_other() {
    let health = |name: &str| name.contains("ealth");
    for rpc in rows(Port::Agents).iter().filter(|rpc| !health(rpc.name)) {
        for caller in Role::ALL {
            assert_eq!(is_allowed(Port::Agents, rpc.name, &role(caller)), caller == Agent, "{}", rpc.name);
        }
    }
    for rpc in rows(Port::Clients).iter().filter(|rpc| !health(rpc.name)) {
        assert!(!is_allowed(Port::Clients, rpc.name, &role(Agent)), "{}", rpc.name);
    }
}

#[test]
fn caller_without_a_role_reaches_health_only_and_a_trusted_one_everything() {
    let all = Identity { name: String::new(), grant: Grant::All };
    for port in [Port::Clients, Port::Agents] {
        for rpc in rows(port) {
            assert_eq!(
                is_allowed(port, rpc.name, &without_a_role()),
                rpc.name.contains("ealth"),
                "{}",
                rpc.name
            );
            assert!(is_allowed(port, rpc.name, &all), "{}", rpc.name);
        }
        for unknown in ["", "a.B/C", "seldon.mlops.scheduler.Scheduler/loadModel", "/"] {
            assert_eq!(decide(port, unknown, &all), Decision::Unknown);
        }
    }
    assert_eq!(decide(Port::Clients, "seldon.mlops.agent.AgentService/Subscribe", &all), Decision::Unknown);
}

#[test]
fn denial_names_identity_role_rpc_and_remedy() {
    let load = "seldon.mlops.scheduler.Scheduler/LoadModel";
    let Decision::Denied(message) = decide(Port::Clients, load, &role(Agent)) else { panic!("allowed") };
    assert_eq!(
        message,
        "agent certificate (role agent) may not call seldon.mlops.scheduler.Scheduler/LoadModel on the scheduler port, \
         which needs the role client, operator or gateway: use a certificate with the URI \
         spiffe://TRUST-DOMAIN/gantry/role/client (deploy/certs.sh issues them)"
    );
    let Decision::Denied(message) = decide(Port::Clients, load, &without_a_role()) else { panic!("allowed") };
    assert!(message.starts_with("CN=x, which has a certificate without a role, may not call"), "{message}");
    assert!(message.ends_with("--role-of-unmarked-certificates on the scheduler"), "{message}");
}

fn identify(uris: &[&str], unmarked: UnmarkedCertificates) -> Identity {
    let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
    let certificate = PeerCertificate { subject: "CN=x".into(), uris, ..PeerCertificate::default() };
    Identity::of(&Peer::Verified(Arc::new(certificate)), Trust::Certificates(unmarked))
}

#[test]
fn role_is_the_one_uri_of_the_certificate() {
    let grant = |uris: &[&str]| identify(uris, UnmarkedCertificates::Any).grant;
    let granted = |r: Role, restrictions: &[&str]| restricted(r, restrictions).grant;
    for (uri, expected) in [
        ("spiffe://example.org/gantry/role/client", granted(Client, &[])),
        ("spiffe://example.org/gantry/role/viewer", granted(Viewer, &[])),
        ("spiffe://a/gantry/role/agent", granted(Agent, &[])),
        ("spiffe://a/gantry/role/agent/mlserver", granted(Agent, &["mlserver"])),
        ("spiffe://a/gantry/role/agent/mlserver/3", granted(Agent, &["mlserver", "3"])),
        ("spiffe://a/gantry/role/gateway/one", granted(Gateway, &["one"])),
        ("spiffe://a/gantry/role/operator/ml", granted(Operator, &["ml"])),
        // Of other systems: unmarked.
        ("spiffe://a/ns/ml/sa/default", Grant::All),
        ("https://a/gantry/roles/client", Grant::All),
    ] {
        assert_eq!(grant(&["https://example", uri]), expected, "{uri}");
    }
    for uri in [
        "spiffe://a/gantry/role/",
        "spiffe://a/gantry/role/root",
        "spiffe://a/gantry/role/client/x",
        "spiffe://a/gantry/role/agent/",
        "spiffe://a/gantry/role/agent/s/x",
        "spiffe://a/gantry/role/agent/s/-1",
        "spiffe://a/gantry/role/agent/s/1/2",
        "spiffe://a/gantry/role/gateway/a/b",
        "spiffe:///gantry/role/client",
        "spiffe://A/gantry/role/client",
        "spiffe://a/x/gantry/role/client",
        "SPIFFE://a/gantry/role/client",
        "spiffe://a/Gantry/Role/client",
        "https://a/gantry/role/client",
        "spiffe://a/gantry/role/Client",
    ] {
        let identity = identify(&[uri], UnmarkedCertificates::Any);
        assert!(matches!(identity.grant, Grant::Nothing(_)), "{uri}: {identity:?}");
        assert_eq!(identity.role(), "none");
    }
    let two = ["spiffe://a/gantry/role/client", "spiffe://a/gantry/role/agent"];
    assert!(matches!(grant(&two), Grant::Nothing(reason) if reason.contains("more than one")));
}

#[test]
fn certificate_without_a_role_has_the_configured_rights() {
    use UnmarkedCertificates as Unmarked;
    assert_eq!(identify(&[], Unmarked::default()).grant, role(Client).grant);
    assert_eq!(identify(&[], Unmarked::Any).grant, Grant::All);
    assert!(matches!(identify(&[], Unmarked::None).grant, Grant::Nothing(_)));
    for value in [Unmarked::None, Unmarked::Client, Unmarked::Any] {
        assert_eq!(value.name().parse(), Ok(value));
    }
    assert!("agent".parse::<Unmarked>().unwrap_err().contains("use none, client or any"));
    for peer in [Peer::Anonymous, Peer::Unreadable("x".into())] {
        let grant = Identity::of(&peer, Trust::Certificates(Unmarked::Any)).grant;
        assert!(matches!(grant, Grant::Nothing(_)), "{peer:?}");
        assert_eq!(Identity::of(&peer, Trust::Everyone).grant, Grant::All);
    }
}

#[test]
fn role_decides_about_the_owner() {
    let operator = |namespace: &str| Owner::Operator { namespace: namespace.into() };
    let seldon = |namespace: &str| Owner::SeldonOperator { namespace: namespace.into() };
    let file = || Owner::File("/srv/iris.yaml".into());
    let other = || Owner::Other("ci".into());
    let owners = || {
        [
            Owner::Cli,
            file(),
            other(),
            Owner::Unnamed,
            Owner::Gateway,
            operator("ml"),
            seldon("ml"),
            operator("b"),
        ]
    };
    let allowed = |caller: Identity| {
        owners().into_iter().map(|owner| caller.grant.owner(owner).ok()).collect::<Vec<_>>()
    };
    let some = |owners: [Option<Owner>; 8]| owners.to_vec();
    let no = || None;
    assert_eq!(
        allowed(role(Client)),
        some([Some(Owner::Cli), Some(file()), Some(other()), Some(Owner::Cli), no(), no(), no(), no()])
    );
    assert_eq!(
        allowed(role(Gateway)),
        some([no(), no(), no(), no(), Some(Owner::Gateway), no(), no(), no()])
    );
    let own = [Some(operator("ml")), Some(seldon("ml")), Some(operator("b"))];
    let [ml, seldon_ml, b] = own;
    assert_eq!(
        allowed(role(Operator)),
        some([no(), no(), no(), Some(Owner::Unnamed), no(), ml.clone(), seldon_ml.clone(), b])
    );
    assert_eq!(
        allowed(restricted(Operator, &["ml"])),
        some([no(), no(), no(), no(), no(), ml, seldon_ml, no()])
    );
    for nothing in [role(Viewer), role(Agent), without_a_role()] {
        assert_eq!(allowed(nothing), vec![None; 8]);
    }
    let all = Identity { name: String::new(), grant: Grant::All };
    assert_eq!(allowed(all), owners().map(Some));
}

#[test]
fn certificate_that_names_a_replica_gateway_or_namespace_is_restricted_to_it() {
    let id = |server: &str, index| ReplicaId { server: server.into(), index };
    for (caller, expected) in [
        (role(Agent), [true, true, true]),
        (restricted(Agent, &["s"]), [true, true, false]),
        (restricted(Agent, &["s", "0"]), [true, false, false]),
        (role(Gateway), [false; 3]),
        (role(Client), [false; 3]),
        (without_a_role(), [false; 3]),
    ] {
        let replicas = [id("s", 0), id("s", 1), id("t", 0)];
        assert_eq!(replicas.map(|id| caller.grant.is_replica(&id)), expected, "{caller:?}");
    }
    for (caller, expected) in [
        (role(Gateway), [true, true]),
        (restricted(Gateway, &["a"]), [true, false]),
        (role(Agent), [false; 2]),
        (role(Client), [false; 2]),
    ] {
        assert_eq!(["a", "b"].map(|name| caller.grant.is_gateway(name)), expected, "{caller:?}");
    }
    for (caller, expected) in [
        (role(Operator), [true, true]),
        (restricted(Operator, &["a"]), [true, false]),
        (role(Client), [false; 2]),
    ] {
        assert_eq!(["a", "b"].map(|name| caller.grant.is_in_namespace(name)), expected, "{caller:?}");
    }
}
