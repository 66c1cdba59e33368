//! Certificate rotation by two replicas on a simulated API server with simulated time.

use super::*;
use crate::{Operator, cluster::WriteFence, schedulers::ServiceConnector};
use gantry_kube_sim::{Registry, Server as Kube};
use k8s_openapi::{
    api::{admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::Secret},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    time_provider::TimeProvider,
};

const LIFETIME: Duration = Duration::from_hours(1);

/// An API server with `ValidatingWebhookConfigurations`.
pub(super) fn api_server(epoch: Timestamp) -> Kube {
    let mut registry = Registry::with_gantry().unwrap();
    let free = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut entry = free.clone();
    entry["properties"] = json!({ "name": { "type": "string" } });
    entry["required"] = json!(["name"]);
    let mut schema = free;
    schema["properties"] = json!({ "webhooks": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": entry,
    } });
    registry
        .add_crd(&json!({ "spec": {
            "group": "admissionregistration.k8s.io", "scope": "Cluster",
            "names": { "plural": "validatingwebhookconfigurations", "kind": "ValidatingWebhookConfiguration" },
            "versions": [{ "name": "v1", "storage": true, "schema": { "openAPIV3Schema": schema } }],
        } }))
        .unwrap();
    Kube::new(registry, 3, epoch)
}

pub(super) async fn prepare(kube: &Kube, client_config: Value) {
    let client = kube.client("user", OWN);
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OWN } });
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let configuration = configuration(client_config);
    configurations
        .create(&PostParams::default(), &serde_json::from_value(configuration).unwrap())
        .await
        .unwrap();
}

fn configuration(client_config: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "hook" },
        "webhooks": [{
            "name": "objects.gantry.dev", "clientConfig": client_config, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
        }],
    })
}

pub(super) fn webhook(lifetime: Duration) -> Webhook {
    let resources =
        WebhookResources { namespace: OWN.into(), secret: "hook".into(), configuration: "hook".into() };
    Webhook { resources, lifetime }
}

pub(super) fn operator(kube: &Kube, actor: &str, fence: WriteFence) -> Operator {
    let clock = {
        let kube = kube.clone();
        Arc::new(move || kube.now())
    };
    let network = Arc::new(ServiceConnector::new(None, None));
    Operator::new(kube.client(actor, OWN), settings(), network, fence, clock)
}

async fn bundle(kube: &Kube) -> String {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(kube.client("user", OWN));
    let found = api.get("hook").await.unwrap();
    let hooks = found.webhooks.unwrap();
    hooks[0]
        .client_config
        .ca_bundle
        .as_ref()
        .map(|b| String::from_utf8(b.0.clone()).unwrap())
        .unwrap_or_default()
}

#[derive(Debug)]
struct At(Timestamp);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.as_second().try_into().unwrap())))
    }
}

/// Whether an API server accepts the served certificate at this time.
async fn accepted(served: &InMemoryCertificate, bundle: &str, now: Timestamp) -> Result<(), String> {
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(served.clone()));
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let client = ClientConfig::builder_with_details(provider, Arc::new(At(now)))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = tokio::io::duplex(1 << 16);
    let name = ServerName::try_from("hook.ops.svc").unwrap();
    let connecting = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, near);
    let accepting = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(far);
    let (connected, _) = tokio::join!(connecting, accepting);
    connected.map(drop).map_err(|e| e.to_string())
}

#[tokio::test(start_paused = true)]
async fn rotation_never_breaks_trust() {
    let kube = api_server("2026-01-01T00:00:00Z".parse().unwrap());
    prepare(&kube, json!({ "service": { "name": "hook", "namespace": OWN, "path": "/validate" } })).await;
    let mut served = Vec::new();
    let (first_leads, second_leads) = (WriteFence::always_open(), WriteFence::closed());
    let mut rotators = tokio::task::JoinSet::new();
    for (actor, fence) in [("first", first_leads.clone()), ("second", second_leads.clone())] {
        let operator = operator(&kube, actor, fence);
        let one = InMemoryCertificate::default();
        served.push(one.clone());
        rotators.spawn(operator.webhook_rotator(webhook(LIFETIME), one).run());
    }
    while !served.iter().all(InMemoryCertificate::is_set) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut seen = std::collections::BTreeSet::new();
    let secrets: Api<Secret> = Api::namespaced(kube.client("user", OWN), OWN);
    for minute in 0..5 * 60 {
        if minute == 150 {
            // The standby becomes leader.
            first_leads.close();
            second_leads.extend(tokio::time::Instant::now() + Duration::from_hours(24));
        }
        for (replica, served) in served.iter().enumerate() {
            let bundle = bundle(&kube).await;
            let outcome = accepted(served, &bundle, kube.now()).await;
            assert_eq!(outcome, Ok(()), "replica {replica} in minute {minute}");
            assert!(bundle.matches("BEGIN").count() <= 3, "{minute}: {bundle}");
        }
        let secret = secrets.get("hook").await.unwrap();
        let stored: StoredCertificates =
            serde_json::from_slice(&secret.data.unwrap()["certificates.json"].0).unwrap();
        seen.insert(stored.serving.from);
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    // The first one, and one every forty minutes.
    assert_eq!(seen.len(), 8, "{seen:?}");
    let writes = |actor: &str| kube.trace().writes(Some(actor)).count();
    assert!(writes("first") > 0 && writes("second") > 0);
}

#[tokio::test(start_paused = true)]
async fn removed_certificate_and_bundle_are_restored() {
    let kube = api_server("2026-01-01T00:00:00Z".parse().unwrap());
    prepare(&kube, json!({ "service": { "name": "hook", "namespace": OWN } })).await;
    let operator = operator(&kube, "operator", WriteFence::always_open());
    let served = InMemoryCertificate::default();
    let rotator = tokio::spawn(operator.webhook_rotator(webhook(LIFETIME), served.clone()).run());
    let user = kube.client("user", OWN);
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(user.clone());
    let rest = async || tokio::time::sleep(Duration::from_mins(1)).await;
    rest().await;
    let announced = bundle(&kube).await;
    assert!(announced.contains("BEGIN CERTIFICATE"));

    // Another field manager applies a change without caBundle: both are kept.
    let mut again = configuration(json!({ "service": { "name": "hook", "namespace": OWN } }));
    again["webhooks"][0]["timeoutSeconds"] = json!(7);
    let params = PatchParams::apply("helm").force();
    configurations.patch("hook", &params, &Patch::Apply(&again)).await.unwrap();
    assert_eq!(bundle(&kube).await, announced);
    let writes = kube.trace().writes(Some("operator")).count();
    rest().await;
    assert_eq!(kube.trace().writes(Some("operator")).count(), writes, "{:?}", kube.trace().lines());

    // After recreation the caBundle is published again.
    configurations.delete("hook", &DeleteParams::default()).await.unwrap();
    rest().await;
    configurations.create(&PostParams::default(), &serde_json::from_value(again).unwrap()).await.unwrap();
    rest().await;
    assert_eq!(bundle(&kube).await, announced);
    let found = configurations.get("hook").await.unwrap();
    assert_eq!(found.webhooks.unwrap()[0].timeout_seconds, Some(7));

    // A corrupt and a deleted Secret are recreated.
    let secrets: Api<Secret> = Api::namespaced(user, OWN);
    let damage = json!({ "stringData": null, "data": { "certificates.json": "bm8=" } });
    secrets.patch("hook", &PatchParams::default(), &Patch::Merge(&damage)).await.unwrap();
    rest().await;
    let second = bundle(&kube).await;
    assert_ne!(second, announced);
    assert_eq!(accepted(&served, &second, kube.now()).await, Ok(()));
    secrets.delete("hook", &DeleteParams::default()).await.unwrap();
    rest().await;
    let third = bundle(&kube).await;
    assert_ne!(third, second);
    assert_eq!(accepted(&served, &third, kube.now()).await, Ok(()));
    rotator.abort();
}

#[tokio::test(start_paused = true)]
async fn certificate_is_valid_for_its_names_and_lifetime() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let names = ["hook.ops.svc".to_owned(), "127.0.0.1".to_owned()];
    let pair = issue(&names, now, LIFETIME).unwrap();
    let served = InMemoryCertificate::default();
    assert!(accepted(&served, &pair.authority, now).await.is_err(), "no certificate yet");
    served.set("here", &pair.certificate, &pair.key).unwrap();
    assert_eq!(accepted(&served, &pair.authority, now).await, Ok(()));
    let late = now - k8s_openapi::jiff::SignedDuration::from_mins(50);
    assert_eq!(accepted(&served, &pair.authority, late).await, Ok(()), "clock skew");
    let ended =
        accepted(&served, &pair.authority, pair.until + k8s_openapi::jiff::SignedDuration::from_secs(1))
            .await;
    assert!(ended.unwrap_err().contains("xpired"));
    let other = issue(&names, now, LIFETIME).unwrap();
    assert!(accepted(&served, &other.authority, now).await.is_err(), "another CA");
    assert!(served.set("here", &pair.certificate, &other.key).is_err(), "wrong key");
    assert_eq!(accepted(&served, &pair.authority, now).await, Ok(()), "the certificate is unchanged");
    assert!(!format!("{pair:?}").contains("PRIVATE"), "{pair:?}");
}
