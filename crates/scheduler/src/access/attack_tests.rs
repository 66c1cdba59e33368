//! Every role calls every RPC of both ports over mutual TLS.

use super::{
    Guard, Role, Trust, UnmarkedCertificates,
    role::{Grant, Identity},
    table::{Decision, Port, decide, rows},
};
use crate::{AuditLog, AuditSettings, Config, Scheduler, build, serve};
use gantry_store::Store;
use gantry_tls::{Client, ClientFiles, Connector, Server, ServerFiles, endpoint, incoming};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, client::Grpc, metadata::MetadataValue, transport::Channel};
use tonic_prost::ProstCodec;

struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(directory: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.join("ca.crt"), issuer.pem()).unwrap();
        Self { directory: directory.to_owned(), issuer }
    }

    fn issue(&self, name: &str, hosts: &[&str], uris: &[&str]) -> (PathBuf, PathBuf) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let (certificate_at, key_at) =
            (self.directory.join(format!("{name}.crt")), self.directory.join(format!("{name}.key")));
        fs::write(&certificate_at, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&key_at, key.serialize_pem()).unwrap();
        (certificate_at, key_at)
    }

    fn server(&self) -> Server {
        let (certificate, key) = self.issue("server", &["127.0.0.1"], &[]);
        Server::open(ServerFiles { certificate, key, client_ca: Some(self.directory.join("ca.crt")) })
            .unwrap()
    }

    /// A client whose certificate has these URIs.
    fn client(&self, name: &str, uris: &[&str]) -> Client {
        let identity = Some(self.issue(name, &[], uris));
        Client::open(ClientFiles { ca: self.directory.join("ca.crt"), identity, server_name: None }).unwrap()
    }
}

struct Listeners {
    scheduler: Scheduler,
    stop: CancellationToken,
    clients: String,
    agents: String,
}

impl Listeners {
    async fn start(directory: &Path, tls: &Server, guard: &Guard) -> Self {
        let (scheduler, engine) = build(Config::new(Store::open(directory).unwrap())).unwrap();
        engine.spawn_thread().unwrap();
        let stop = CancellationToken::new();
        let mut addresses = Vec::new();
        for routes in [scheduler.client_routes_behind(guard), scheduler.agent_routes_behind(guard)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap().to_string());
            let incoming = incoming(listener, Some(tls.clone()));
            tokio::spawn(serve("test", routes.unwrap(), incoming, stop.clone()));
        }
        let [clients, agents] = addresses.try_into().unwrap();
        Self { scheduler, stop, clients, agents }
    }

    async fn connect(&self, port: Port, tls: &Client) -> Channel {
        let address = match port {
            Port::Clients => &self.clients,
            Port::Agents => &self.agents,
        };
        let endpoint = endpoint(address, Some(tls)).unwrap();
        endpoint.connect_with_connector(Connector::new(Some(tls.clone()))).await.unwrap()
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.stop.cancel();
        self.scheduler.stop();
    }
}

/// Calls any RPC with an empty message, on behalf of an owner; streams are closed after their first message.
async fn call(channel: Channel, rpc: &str, owner: &'static str) -> Status {
    let called = async {
        let mut client = Grpc::new(channel);
        client.ready().await.unwrap();
        let codec = ProstCodec::<(), ()>::default();
        let path = format!("/{rpc}").parse().unwrap();
        let mut request = Request::new(());
        request.metadata_mut().insert("gantry-manager", MetadataValue::from_static(owner));
        match client.server_streaming(request, path, codec).await {
            Ok(_) => Status::ok(""),
            Err(status) => status,
        }
    };
    tokio::time::timeout(Duration::from_secs(20), called).await.unwrap_or_else(|_| panic!("{rpc}: no result"))
}

/// The owner as which a role acts.
const fn owner(identity: &Identity) -> &'static str {
    match identity.grant {
        Grant::Role { role: Role::Gateway, .. } => "owner",
        Grant::Role { role: Role::Operator, .. } => "operator:ml",
        _ => "cli",
    }
}

fn trust(unmarked: UnmarkedCertificates) -> Guard {
    Guard::default().with_trust(Trust::Certificates(unmarked))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_reaches_its_rpcs_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path());
    let guard = trust(UnmarkedCertificates::None);
    let state = directory.path().join("state");
    let listeners = Listeners::start(&state, &authority.server(), &guard).await;
    let mut attackers: Vec<_> = Role::ALL
        .into_iter()
        .map(|role| {
            let uri = format!("spiffe://test/gantry/role/{role}");
            let grant = Grant::Role { role, restrictions: Vec::new() };
            (authority.client(role.name(), &[&uri]), Identity { name: uri, grant })
        })
        .collect();
    let nothing = Identity { name: String::new(), grant: Grant::Nothing(String::new()) };
    attackers.push((authority.client("unmarked", &[]), nothing.clone()));
    let two = ["spiffe://test/gantry/role/agent", "spiffe://test/gantry/role/client"];
    attackers.push((authority.client("two-roles", &two), nothing));
    for port in [Port::Clients, Port::Agents] {
        for (tls, identity) in &attackers {
            let channel = listeners.connect(port, tls).await;
            for rpc in rows(port) {
                let status = call(channel.clone(), rpc.name, owner(identity)).await;
                let expected = matches!(decide(port, rpc.name, identity), Decision::Allowed(_));
                let is_allowed = status.code() != Code::PermissionDenied;
                assert_eq!(is_allowed, expected, "{port:?} {} {}: {status:?}", identity.name, rpc.name);
            }
            // RPCs of the other port, and unknown ones.
            let other = if port == Port::Clients { Port::Agents } else { Port::Clients };
            for name in rows(other).iter().map(|rpc| rpc.name).chain(["a.B/C", "x"]) {
                if rows(port).iter().all(|rpc| rpc.name != name) {
                    let status = call(channel.clone(), name, "cli").await;
                    assert_eq!(status.code(), Code::Unimplemented, "{port:?} {name}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_and_allowed_calls_are_audited_with_the_caller() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path());
    let file = directory.path().join("audit.jsonl");
    let settings = AuditSettings { file: file.clone(), max_size: 1 << 20, max_files: 2 };
    let (log, writer) = AuditLog::open(settings).unwrap();
    let guard = Guard::new(Some(log)).with_trust(Trust::Certificates(UnmarkedCertificates::Client));
    let listeners = Listeners::start(&directory.path().join("state"), &authority.server(), &guard).await;
    let viewer = authority.client("viewer", &["spiffe://test/gantry/role/viewer"]);
    let channel = listeners.connect(Port::Clients, &viewer).await;
    let adopt = "gantry.v1.Control/Adopt";
    assert_eq!(call(channel.clone(), adopt, "cli").await.code(), Code::PermissionDenied);
    assert_eq!(
        call(channel, "seldon.mlops.scheduler.Scheduler/SchedulerStatus", "cli").await.code(),
        Code::Ok
    );
    let unmarked = listeners.connect(Port::Clients, &authority.client("unmarked", &[])).await;
    assert_eq!(call(unmarked, adopt, "cli").await.code(), Code::FailedPrecondition);
    drop(listeners);
    writer.finish(Duration::from_secs(20)).await;
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [denied, rejected] = lines.as_slice() else { panic!("reads are not audited: {text}") };
    assert_eq!((&denied["code"], &denied["role"]), (&"PERMISSION_DENIED".into(), &"viewer".into()));
    assert_eq!(denied["identity"], "spiffe://test/gantry/role/viewer");
    assert!(denied["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!((&rejected["code"], &rejected["role"]), (&"FAILED_PRECONDITION".into(), &"client".into()));
    assert_eq!((&rejected["rpc"], &rejected["owner"]), (&adopt.into(), &"cli".into()));
}
