//! The issuer on a simulated API server, and a scheduler whose clients never notice a rotation.

use super::super::{
    clients::{IssuedClients, SchedulerTls},
    issuer::{CertificateSettings, Issuer, Need, Own},
    wanted::{AGENT, GATEWAY, SCHEDULER, SECRETS, wanted},
};
use crate::{Operator, Settings, cluster::WriteFence, schedulers::ServiceConnector};
use gantry_kube_sim::{Registry, Server as Kube};
use gantry_proto::scheduler::{ServerStatusRequest, scheduler_client::SchedulerClient};
use gantry_scheduler::{Config, Guard, Trust, UnmarkedCertificates, build, serve};
use gantry_store::faulty_disk::Disk;
use gantry_tls::{Client as TlsClient, ClientFiles, Connector, ServerFiles, endpoint};
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const OWN: &str = "ops";
const STORE: &str = "gantry-certificates";
/// Ten rotations fit into the clock skew that peers accept, so real handshakes need no simulated time.
const LIFETIME: Duration = Duration::from_mins(10);

struct Fixture {
    kube: Kube,
    issuer: Issuer,
    clock: Arc<Mutex<Timestamp>>,
    own: BTreeMap<String, Own>,
}

impl Fixture {
    async fn new() -> Self {
        Self::with_fence(WriteFence::always_open()).await
    }

    async fn with_fence(fence: WriteFence) -> Self {
        // Behind, because the rotations advance it.
        let start = Timestamp::now() - SignedDuration::from_mins(8);
        let kube = Kube::new(Registry::with_gantry().unwrap(), 3, start);
        let namespaces: Api<Namespace> = Api::all(kube.client("user", OWN));
        for name in [OWN, "ml"] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            let namespace = serde_json::from_value(namespace).unwrap();
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
        let clock = Arc::new(Mutex::new(start));
        let time = {
            let clock = Arc::clone(&clock);
            Arc::new(move || *clock.lock().unwrap())
        };
        let settings = Settings { namespace: OWN.into(), issues_certificates: true, ..Settings::default() };
        let client = kube.client("operator", OWN);
        let connector = Arc::new(ServiceConnector::new(None, None));
        let operator = Operator::new(client.clone(), settings, connector, fence, time);
        let settings = CertificateSettings {
            secret: STORE.into(),
            lifetime: LIFETIME,
            clients: IssuedClients::default(),
        };
        let issuer = Issuer { context: operator.context(), client, settings };
        Self { kube, issuer, clock, own: BTreeMap::new() }
    }

    async fn review(&mut self, servers: &[&str]) -> Result<(), String> {
        let need =
            Need { wanted: wanted("ml", servers.iter().copied()), owner: ("seldon".into(), "u1".into()) };
        self.issuer.review("ml", &need, &mut self.own).await
    }

    fn pass(&self, time: Duration) {
        let mut clock = self.clock.lock().unwrap();
        *clock += time;
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.kube.client("user", OWN), namespace)
    }

    async fn secret(&self, name: &str) -> Secret {
        self.secrets("ml").get(name).await.unwrap()
    }

    /// As the kubelet does.
    async fn mount(&self, name: &str, item: &str, directory: &Path) {
        let files = self.secret(name).await.data.unwrap();
        for (key, path) in [
            ("ca.crt".to_owned(), "ca.crt"),
            (format!("{item}.crt"), "tls.crt"),
            (format!("{item}.key"), "tls.key"),
        ] {
            std::fs::write(directory.join(path), &files[&key].0).unwrap();
        }
    }
}

/// Files of a Secret, to compare.
async fn all_files(fixture: &Fixture) -> BTreeMap<&'static str, BTreeMap<String, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for name in SECRETS {
        let data = fixture.secret(name).await.data.unwrap();
        all.insert(name, data.into_iter().map(|(file, text)| (file, text.0)).collect());
    }
    all
}

#[tokio::test]
async fn second_review_writes_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let before = all_files(&fixture).await;
    let writes = fixture.kube.trace().entries.len();
    fixture.review(&["shop"]).await.unwrap();
    assert_eq!(all_files(&fixture).await, before);
    // The authorities and three Secrets are read.
    assert_eq!(fixture.kube.trace().entries.len() - writes, 3 + 4);
}

#[tokio::test]
async fn secrets_are_owned_by_the_runtime_and_follow_its_servers() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let files = |secret: &Secret| secret.data.as_ref().unwrap().keys().cloned().collect::<Vec<_>>();
    let before = fixture.secret(AGENT).await;
    assert_eq!(files(&before), ["agent-shop.crt", "agent-shop.key", "ca.crt"]);
    let owners = before.metadata.owner_references.clone().unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].name.as_str()), ("SeldonRuntime", "seldon"));
    fixture.review(&["iris", "shop"]).await.unwrap();
    let both = fixture.secret(AGENT).await;
    assert_eq!(both.data.as_ref().unwrap()["agent-shop.key"], before.data.unwrap()["agent-shop.key"]);
    assert_eq!(files(&both).len(), 5);
    fixture.review(&["iris"]).await.unwrap();
    assert_eq!(files(&fixture.secret(AGENT).await), ["agent-iris.crt", "agent-iris.key", "ca.crt"]);
}

#[tokio::test]
async fn deleted_and_damaged_secrets_are_repaired() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let good = all_files(&fixture).await;
    fixture.secrets("ml").delete(GATEWAY, &DeleteParams::default()).await.unwrap();
    let damage = json!({ "stringData": {}, "data": { "tls.key": "bm90aGluZw==", "more": "bm90aGluZw==" } });
    let params = PatchParams::default();
    fixture.secrets("ml").patch(SCHEDULER, &params, &Patch::Merge(&damage)).await.unwrap();
    fixture.review(&["shop"]).await.unwrap();
    let repaired = all_files(&fixture).await;
    assert_eq!(repaired[AGENT], good[AGENT], "the others stay");
    for name in [GATEWAY, SCHEDULER] {
        assert_eq!(repaired[name].keys().collect::<Vec<_>>(), good[name].keys().collect::<Vec<_>>());
        assert_eq!(repaired[name]["ca.crt"], good[name]["ca.crt"]);
        assert!(gantry_tls::is_key_of(&repaired[name]["tls.crt"], &repaired[name]["tls.key"]), "{name}");
    }
}

#[tokio::test]
async fn foreign_secret_is_left_alone_and_named() {
    let mut fixture = Fixture::new().await;
    let foreign = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": GATEWAY }, "data": { "a": "bm90aGluZw==" },
    });
    let foreign: Secret = serde_json::from_value(foreign).unwrap();
    let foreign = fixture.secrets("ml").create(&PostParams::default(), &foreign).await.unwrap();
    let error = fixture.review(&[]).await.unwrap_err();
    assert!(error.contains(GATEWAY) && error.contains("not managed by the operator"), "{error}");
    assert_eq!(fixture.secret(GATEWAY).await, foreign);
    // The others are issued.
    assert!(fixture.secret(SCHEDULER).await.data.unwrap().contains_key("tls.crt"));
}

#[tokio::test]
async fn operator_that_does_not_lead_writes_nothing() {
    let mut fixture = Fixture::with_fence(WriteFence::closed()).await;
    assert!(fixture.review(&["shop"]).await.unwrap_err().contains("not the leader"));
    assert_eq!(fixture.secrets("ml").get_opt(SCHEDULER).await.unwrap(), None);
    assert_eq!(fixture.secrets(OWN).get_opt(STORE).await.unwrap(), None);
}

#[tokio::test]
async fn lost_authorities_are_replaced_in_steps() {
    let mut fixture = Fixture::new().await;
    fixture.review(&[]).await.unwrap();
    let before = fixture.secret(GATEWAY).await.data.unwrap();
    fixture.secrets(OWN).delete(STORE, &DeleteParams::default()).await.unwrap();
    fixture.review(&[]).await.unwrap();
    let during = fixture.secret(GATEWAY).await.data.unwrap();
    assert_eq!(during["tls.crt"], before["tls.crt"], "parts present what all of them trust");
    let bundle = |files: &BTreeMap<String, k8s_openapi::ByteString>| {
        String::from_utf8(files["ca.crt"].0.clone()).unwrap()
    };
    assert!(bundle(&during).contains(bundle(&before).trim()), "and learn of the next authority");
    assert_eq!(bundle(&during).matches("BEGIN").count(), 2);
    fixture.pass(LIFETIME / 8);
    fixture.review(&[]).await.unwrap();
    let after = fixture.secret(GATEWAY).await.data.unwrap();
    assert_ne!(after["tls.crt"], before["tls.crt"]);
}

#[tokio::test]
async fn crash_after_every_write_leaves_a_state_to_continue_from() {
    // The writes of the first issue: authorities, three Secrets.
    for crash_after in 1..=4 {
        let mut fixture = Fixture::new().await;
        let stopped = fixture.issuer.context.fence.clone();
        fixture.kube.after_write(crash_after, Some("operator"), move || stopped.close());
        // An always open fence closes for good.
        let _ = fixture.review(&["shop"]).await;
        let kube = fixture.kube.clone();
        let mut next = Fixture { kube, ..Fixture::new().await };
        next.issuer.client = next.kube.client("operator", OWN);
        next.review(&["shop"]).await.unwrap();
        let files = all_files(&next).await;
        let authorities: BTreeSet<&Vec<u8>> = files.values().map(|files| &files["ca.crt"]).collect();
        assert_eq!(authorities.len(), 1, "after write {crash_after}");
        for (name, item) in [(SCHEDULER, "tls"), (GATEWAY, "tls"), (AGENT, "agent-shop")] {
            let text = |end: &str| files[name][&format!("{item}.{end}")].clone();
            assert!(gantry_tls::is_key_of(&text("crt"), &text("key")), "{name} after write {crash_after}");
        }
    }
}

async fn connect(address: &str, tls: &TlsClient) -> Result<Channel, String> {
    let endpoint = endpoint(address, Some(tls)).map_err(|e| e.to_string())?;
    let connector = Connector::new(Some(tls.clone()));
    endpoint.connect_with_connector(connector).await.map_err(|e| gantry_tls::diagnose(&e))
}

async fn request(channel: Channel) -> Result<(), String> {
    let mut client = SchedulerClient::new(channel);
    let name = "test".to_owned();
    let request = ServerStatusRequest { subscriber_name: name, ..ServerStatusRequest::default() };
    client.server_status(request).await.map(|_| ()).map_err(|status| status.to_string())
}

/// The address of a scheduler with the certificates of a directory.
async fn scheduler(directory: &Path) -> (String, gantry_tls::Server) {
    let at = |file: &str| directory.join(file);
    let files = ServerFiles { certificate: at("tls.crt"), key: at("tls.key"), client_ca: Some(at("ca.crt")) };
    let tls = gantry_tls::Server::read(files).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (scheduler, engine) = build(Config::new(Disk::new().open().unwrap())).unwrap();
    let guard = Guard::default().with_trust(Trust::Certificates(UnmarkedCertificates::None));
    let routes = scheduler.client_routes_behind(&guard).unwrap();
    let incoming = gantry_tls::incoming(listener, Some(tls.clone()));
    tokio::spawn(serve("clients", routes, incoming, CancellationToken::new()));
    tokio::spawn(engine.run());
    (format!("localhost:{port}"), tls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_rotations_under_load_fail_no_request() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let (of_scheduler, of_client) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fixture.mount(SCHEDULER, "tls", of_scheduler.path()).await;
    fixture.mount(GATEWAY, "tls", of_client.path()).await;
    let (address, server) = scheduler(of_scheduler.path()).await;
    let at = |file: &str| of_client.path().join(file);
    let files =
        ClientFiles { ca: at("ca.crt"), identity: Some((at("tls.crt"), at("tls.key"))), server_name: None };
    let gateway = TlsClient::read(files).unwrap();

    // The operator opens a connection for each request; the gateway's stays, and it is refused what its role may not.
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let operator = Arc::new(Mutex::new(fixture.own["ml"].client.clone()));
    let load = {
        let (stop, done, address) = (Arc::clone(&stop), Arc::clone(&done), address.clone());
        let (operator, gateway) = (Arc::clone(&operator), gateway.clone());
        tokio::spawn(async move {
            let mut failures = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let tls = operator.lock().unwrap().clone();
                let outcome = match connect(&address, &tls).await {
                    Ok(channel) => request(channel).await,
                    Err(error) => Err(error),
                };
                failures.extend(outcome.err());
                failures.extend(connect(&address, &gateway).await.err());
                done.fetch_add(1, Ordering::Relaxed);
            }
            failures
        })
    };
    let mut certificates = BTreeSet::new();
    let mut authorities = BTreeSet::new();
    for round in 0..30 {
        fixture.pass(LIFETIME * 2 / 9);
        fixture.review(&["shop"]).await.unwrap();
        *operator.lock().unwrap() = fixture.own["ml"].client.clone();
        // Nodes update one after the other.
        let mounts = [(SCHEDULER, of_scheduler.path()), (GATEWAY, of_client.path())];
        for index in [round % 2, (round + 1) % 2] {
            let (name, directory) = mounts[index];
            fixture.mount(name, "tls", directory).await;
            server.reload().unwrap();
            gateway.reload().unwrap();
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < before + 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let files = fixture.secret(SCHEDULER).await.data.unwrap();
        certificates.insert(files["tls.crt"].0.clone());
        authorities.insert(files["ca.crt"].0.clone());
    }
    stop.store(true, Ordering::Relaxed);
    let failures = load.await.unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} failed: {}",
        failures.len(),
        done.load(Ordering::Relaxed),
        failures[0]
    );
    assert!(certificates.len() > 10, "{} certificates", certificates.len());
    assert!(authorities.len() > 1, "the authority was replaced, too");
}

#[tokio::test]
async fn certificate_of_another_namespace_is_refused() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let other = Need { wanted: wanted("other", []), owner: ("seldon".into(), "u2".into()) };
    let namespaces: Api<Namespace> = Api::all(fixture.kube.client("user", OWN));
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "other" } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    fixture.issuer.review("other", &other, &mut fixture.own).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    fixture.mount(SCHEDULER, "tls", directory.path()).await;
    let (address, _server) = scheduler(directory.path()).await;
    request(connect(&address, &fixture.own["ml"].client).await.unwrap()).await.unwrap();
    let error = connect(&address, &fixture.own["other"].client).await.unwrap_err();
    assert!(error.contains("CA"), "{error}");
}

#[tokio::test]
async fn agent_and_gateway_certificates_have_no_other_rights() {
    let mut fixture = Fixture::new().await;
    fixture.review(&["shop"]).await.unwrap();
    let of_scheduler = tempfile::tempdir().unwrap();
    fixture.mount(SCHEDULER, "tls", of_scheduler.path()).await;
    let (address, _server) = scheduler(of_scheduler.path()).await;
    let client = |directory: &Path| {
        let at = |file: &str| directory.join(file);
        let files = ClientFiles {
            ca: at("ca.crt"),
            identity: Some((at("tls.crt"), at("tls.key"))),
            server_name: None,
        };
        TlsClient::read(files).unwrap()
    };
    for (secret, item) in [(AGENT, "agent-shop"), (GATEWAY, "tls")] {
        let directory = tempfile::tempdir().unwrap();
        fixture.mount(secret, item, directory.path()).await;
        let channel = connect(&address, &client(directory.path())).await.unwrap();
        let mut scheduler = SchedulerClient::new(channel);
        let denied = scheduler.server_notify(gantry_proto::scheduler::ServerNotifyRequest::default()).await;
        assert_eq!(denied.unwrap_err().code(), tonic::Code::PermissionDenied, "{secret}");
    }
    // The scheduler's own certificate is not one of a client.
    let channel = connect(&address, &client(of_scheduler.path())).await;
    let refused = match channel {
        Err(error) => error,
        Ok(channel) => request(channel).await.unwrap_err(),
    };
    assert!(!refused.is_empty());
}

#[tokio::test]
async fn connection_waits_until_certificates_are_issued() {
    use crate::schedulers::SchedulerConnector as _;
    let mut fixture = Fixture::new().await;
    let clients = fixture.issuer.settings.clients.clone();
    let connector = ServiceConnector::new(None, None).with_issued(clients.clone());
    let error = connector.connect("ml").await.unwrap_err();
    assert_eq!(error, "the certificates of namespace ml are not issued yet");
    fixture.review(&[]).await.unwrap();
    fixture.issuer.publish("ml", fixture.own.get("ml"));
    assert!(matches!(clients.get("ml"), Some(SchedulerTls::Mutual(_))));
}
