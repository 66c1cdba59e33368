//! The operator and a scheduler over mutual TLS.

use gantry_kube_sim::{Registry, Server};
use gantry_operator::{
    Operator, Settings,
    cluster::WriteFence,
    schedulers::{SchedulerConnector as _, ServiceConnector},
};
use gantry_scheduler::{Config, build, serve};
use gantry_store::faulty_disk::Disk;
use gantry_tls::{Client, ClientFiles, ServerFiles};
use kube::{
    Api,
    api::PostParams,
    core::{ApiResource, DynamicObject},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "ml";

/// One certificate for server and client, as the chart's `tls.secretName` has it.
fn certificate(directory: &Path, name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, &authority).unwrap();
    let write = |file: &str, text: String| {
        let path = directory.join(format!("{name}-{file}"));
        std::fs::write(&path, text).unwrap();
        path
    };
    (write("ca.crt", authority.pem()), write("tls.crt", leaf.pem()), write("tls.key", key.serialize_pem()))
}

fn client((ca, certificate, key): &(PathBuf, PathBuf, PathBuf)) -> Client {
    let identity = Some((certificate.clone(), key.clone()));
    Client::read(ClientFiles { ca: ca.clone(), identity, server_name: None }).unwrap()
}

/// The address of a scheduler without servers.
async fn scheduler((ca, certificate, key): &(PathBuf, PathBuf, PathBuf)) -> String {
    let files =
        ServerFiles { certificate: certificate.clone(), key: key.clone(), client_ca: Some(ca.clone()) };
    let tls = gantry_tls::Server::read(files).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (scheduler, engine) = build(Config::new(Disk::new().open().unwrap())).unwrap();
    let routes = scheduler.client_routes().unwrap();
    let incoming = gantry_tls::incoming(listener, Some(tls));
    tokio::spawn(serve("clients", routes, incoming, CancellationToken::new()));
    tokio::spawn(engine.run());
    address
}

#[tokio::test]
async fn operator_reaches_a_scheduler_over_mutual_tls() {
    let directory = tempfile::tempdir().unwrap();
    let own = certificate(directory.path(), "own");
    let address = scheduler(&own).await;
    let connector = ServiceConnector::new(Some(address.clone()), Some(client(&own)));

    let mut registry = Registry::built_in();
    for resource in gantry_api::resources() {
        registry.add_crd(&gantry_api::crd(&resource)).unwrap();
    }
    let kube = Server::new(registry, 7, "2026-01-01T00:00:00Z".parse().unwrap());
    let of = |group: &str, kind: &str, plural: &str| ApiResource {
        group: group.into(),
        version: if group.is_empty() { "v1".into() } else { "v1alpha1".into() },
        api_version: if group.is_empty() { "v1".into() } else { format!("{group}/v1alpha1") },
        kind: kind.into(),
        plural: plural.into(),
    };
    let user = kube.client("user", NAMESPACE);
    let namespaces: Api<DynamicObject> = Api::all_with(user.clone(), &of("", "Namespace", "namespaces"));
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let models: Api<DynamicObject> =
        Api::namespaced_with(user, NAMESPACE, &of("mlops.seldon.io", "Model", "models"));
    let model = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": { "name": "iris" },
        "spec": { "storageUri": "gs://models/iris", "requirements": ["onnx"] },
    });
    models.create(&PostParams::default(), &serde_json::from_value(model).unwrap()).await.unwrap();

    let clock = {
        let kube = kube.clone();
        Arc::new(move || kube.now())
    };
    let client_of_kube = kube.client("operator", "seldon-mesh");
    let operator = Operator::new(
        client_of_kube,
        Settings::default(),
        Arc::new(connector),
        WriteFence::always_open(),
        clock,
    );
    let stop = CancellationToken::new();
    let running = tokio::spawn(operator.run(None, stop.clone()));
    // The scheduler has no server for it, which only the scheduler knows.
    let reported = async {
        loop {
            let model = models.get("iris").await.unwrap();
            let conditions = model.data.pointer("/status/conditions").and_then(|c| c.as_array().cloned());
            let ready = conditions.unwrap_or_default().into_iter().find(|c| c["type"] == "Ready");
            if ready.is_some_and(|ready| ready["reason"] == "NoServer") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reported).await.expect("the scheduler is reachable");
    stop.cancel();
    running.await.unwrap().unwrap();

    // Another authority.
    let other = certificate(directory.path(), "other");
    let error =
        ServiceConnector::new(Some(address), Some(client(&other))).connect(NAMESPACE).await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}
