use super::*;
use proptest::prelude::*;

fn pod(args: &Value) -> Value {
    json!({ "containers": [{ "name": "other", "image": "x" }, { "name": "main", "args": args }] })
}

fn live(pod: &Value, is_done: bool) -> OwnedObject {
    let done = i64::from(is_done);
    serde_json::from_value(json!({
        "metadata": {
            "name": "a", "generation": 2,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Server", "name": "a", "uid": "1", "controller": true }],
        },
        "spec": { "replicas": 1, "template": { "spec": pod } },
        "status": { "observedGeneration": 2, "replicas": 1, "readyReplicas": done, "updatedReplicas": done },
    }))
    .unwrap()
}

#[test]
fn scheduler_gets_a_server_certificate_and_closes_plaintext_ports() {
    let args = json!(["scheduler", "--host=0.0.0.0", "--allow-plaintext"]);
    let with = |ports| mount(pod(&args), Part::Scheduler(ports));
    let strict = with(Ports::Tls);
    assert_eq!(strict.pointer("/containers/1/args"), Some(&json!(["scheduler", "--host=0.0.0.0"])));
    assert_eq!(strict.pointer("/containers/1/env/0/name"), Some(&json!("GANTRY_TLS_CERT")));
    assert_eq!(strict.pointer("/containers/1/env/3/value"), Some(&json!("none")));
    assert_eq!(strict.pointer("/volumes/0/secret/secretName"), Some(&json!(SCHEDULER)));
    assert_eq!(strict.pointer("/containers/0"), Some(&json!({ "name": "other", "image": "x" })));
    assert_eq!(with(Ports::TlsAndPlaintext).pointer("/containers/1/args"), Some(&args));
}

#[test]
fn gateway_and_agent_connect_with_their_own_certificates() {
    let gateway = mount(pod(&json!(["gateway", "--scheduler=seldon-scheduler:9004"])), Part::Gateway);
    assert_eq!(
        gateway.pointer("/containers/1/args"),
        Some(&json!(["gateway", "--scheduler=seldon-scheduler:9044"]))
    );
    let agent = mount(pod(&json!(["agent"])), Part::Agent("shop"));
    assert_eq!(
        agent.pointer("/volumes/0/secret/items"),
        Some(&json!([
            { "key": "ca.crt", "path": "ca.crt" },
            { "key": "agent-shop.crt", "path": "tls.crt" },
            { "key": "agent-shop.key", "path": "tls.key" },
        ]))
    );
    // A Server called `ca` does not take the file of the authorities.
    let agent = mount(pod(&json!(["agent"])), Part::Agent("ca"));
    assert_eq!(agent.pointer("/volumes/0/secret/items/1/key"), Some(&json!("agent-ca.crt")));
}

#[test]
fn other_software_and_own_certificates_stay() {
    for pod in [
        pod(&json!(["--pod-namespace=ml"])),
        json!({ "containers": [{ "name": "a", "command": ["/bin/agent"], "args": ["agent"] }] }),
        json!({ "containers": [{ "name": "a", "args": ["agent"], "env": [{ "name": "GANTRY_TLS_CA", "value": "x" }] }] }),
    ] {
        assert_eq!(mount(pod.clone(), Part::Agent("a")), pod);
    }
}

/// The pods of a namespace during an upgrade: which template they have, and whether they are rolled out.
#[derive(Clone, Debug)]
struct Namespace {
    scheduler: OwnedObject,
    gateway: OwnedObject,
}

fn scheduler_pod(ports: Option<Ports>) -> Value {
    let plain = pod(&json!(["scheduler", "--allow-plaintext"]));
    ports.map_or(plain.clone(), |ports| mount(plain, Part::Scheduler(ports)))
}

fn gateway_pod(has_certificates: bool) -> Value {
    let plain = pod(&json!(["gateway", "--scheduler=seldon-scheduler:9004"]));
    if has_certificates { mount(plain, Part::Gateway) } else { plain }
}

fn with_template(before: &OwnedObject, pod: &Value) -> OwnedObject {
    let is_same = before.data.pointer("/spec/template/spec") == Some(pod);
    if is_same { before.clone() } else { live(pod, false) }
}

proptest! {
    /// In every order of reconciliations and rollouts, the gateway's running pod and its next one reach the scheduler.
    #[test]
    fn upgrade_from_plaintext_never_cuts_off_a_pod(order in prop::collection::vec(0_u8..4, 1..40)) {
        let mut now = Namespace { scheduler: live(&scheduler_pod(None), true), gateway: live(&gateway_pod(false), true) };
        // What runs: TLS and plaintext ports of the scheduler, and whether the gateway uses TLS.
        let (mut tls, mut plaintext, mut gateway_tls) = (false, true, false);
        for event in order.into_iter().chain([0, 2, 1, 3, 0, 2]) {
            match event {
                0 => {
                    let ports = scheduler_ports(Some(&now.scheduler), &[Arc::new(now.gateway.clone())]);
                    now.scheduler = with_template(&now.scheduler, &scheduler_pod(Some(ports)));
                }
                1 => {
                    let has = has_certificates(Some(&now.gateway), Some(&now.scheduler));
                    now.gateway = with_template(&now.gateway, &gateway_pod(has));
                }
                2 => {
                    tls = are_mounted(&now.scheduler);
                    plaintext = allows_plaintext(&now.scheduler);
                    now.scheduler = live(&now.scheduler.data["spec"]["template"]["spec"].clone(), true);
                }
                _ => {
                    gateway_tls = are_mounted(&now.gateway);
                    now.gateway = live(&now.gateway.data["spec"]["template"]["spec"].clone(), true);
                }
            }
            prop_assert!(if gateway_tls { tls } else { plaintext }, "the running gateway is cut off");
            prop_assert!(tls || !are_mounted(&now.gateway), "the next gateway is cut off");
        }
        prop_assert!(tls && !plaintext && gateway_tls, "the upgrade ends: {tls} {plaintext} {gateway_tls}");
    }
}

#[test]
fn new_installation_starts_with_tls_only() {
    assert_eq!(scheduler_ports(None, &[]), Ports::Tls);
    assert!(has_certificates(None, None));
    let scheduler = live(&scheduler_pod(Some(Ports::Tls)), false);
    assert!(has_certificates(None, Some(&scheduler)), "also while the scheduler starts");
    assert_eq!(scheduler_ports(Some(&scheduler), &[]), Ports::Tls);
}

#[test]
fn server_added_later_does_not_open_plaintext_ports_again() {
    let scheduler = live(&scheduler_pod(Some(Ports::Tls)), true);
    let plain = Arc::new(live(&pod(&json!(["agent"])), true));
    assert_eq!(scheduler_ports(Some(&scheduler), &[plain]), Ports::Tls);
}

#[test]
fn pods_of_a_scheduler_without_certificates_stay_plaintext() {
    let scheduler = live(&pod(&json!(["--pod-namespace=ml"])), true);
    let own = live(&pod(&json!(["agent"])), true);
    assert!(!has_certificates(Some(&own), Some(&scheduler)));
    assert!(!has_certificates(None, Some(&scheduler)));
}
