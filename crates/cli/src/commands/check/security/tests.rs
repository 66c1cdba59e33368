use super::super::tests::{FakeApiServer, named};
use serde_json::{Value, json};

const NAMESPACE: &str = "ml";

/// A workload of the operator, from the arguments and variables of its first container.
fn workload(kind: &str, name: &str, args: &[&str], env: &[(&str, &str)]) -> Value {
    let env: Vec<Value> = env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    json!({
        "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "template": {
            "metadata": { "labels": { "app.kubernetes.io/name": name } },
            "spec": {
                "automountServiceAccountToken": false,
                "securityContext": { "runAsNonRoot": true },
                "containers": [{
                    "name": "a", "args": args, "env": env,
                    "securityContext": { "allowPrivilegeEscalation": false },
                }],
            },
        } },
    })
}

const SERVER_TLS: [(&str, &str); 4] = [
    ("GANTRY_TLS_CERT", "/c"),
    ("GANTRY_TLS_KEY", "/k"),
    ("GANTRY_TLS_CLIENT_CA", "/a"),
    ("GANTRY_ROLE_OF_UNMARKED_CERTIFICATES", "none"),
];
const CLIENT_TLS: [(&str, &str); 2] = [("GANTRY_TLS_CA", "/a"), ("GANTRY_TLS_CLIENT_CERT", "/c")];

fn mounting(mut workload: Value, secret: &str) -> Value {
    workload["spec"]["template"]["spec"]["volumes"] =
        json!([{ "name": "v", "secret": { "secretName": secret } }]);
    workload
}

/// A cluster with an operator, and these workloads in a namespace with a runtime.
fn cluster(operator_args: &[&str], sets: &[Value], deployments: &[Value]) -> FakeApiServer {
    let mut operator = workload("Deployment", "gantry-operator", operator_args, &[]);
    operator["spec"]["template"]["spec"]["serviceAccountName"] = json!("gantry-operator");
    let apps = format!("/apis/apps/v1/namespaces/{NAMESPACE}");
    FakeApiServer::new()
        .items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[operator])
        .items(
            "/apis/mlops.seldon.io/v1alpha1/seldonruntimes",
            &[named("SeldonRuntime", "seldon", json!({}))],
        )
        .items(&format!("{apps}/statefulsets"), sets)
        .items(&format!("{apps}/deployments"), deployments)
        .with(&format!("/api/v1/namespaces/{NAMESPACE}"), json!({ "metadata": { "name": NAMESPACE } }))
}

fn secret(name: &str, days: i64) -> Value {
    let now = jiff::Timestamp::now();
    let seconds = |days: i64| u64::try_from(now.as_second() + days * 86_400).unwrap();
    let at = |days: i64| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds(days));
    let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
    params.not_before = at(days - 14);
    params.not_after = at(days);
    let pem = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let data = k8s_openapi::ByteString(pem.into_bytes());
    json!({
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": "gantry" } },
        "data": { "tls.crt": data },
    })
}

fn with_secret(server: FakeApiServer, name: &str, days: i64) -> FakeApiServer {
    server.with(&format!("/api/v1/namespaces/{NAMESPACE}/secrets/{name}"), secret(name, days))
}

fn without_time(word: &str) -> &str {
    if word.parse::<jiff::Timestamp>().is_ok() { "TIME" } else { word }
}

/// Without times.
fn shown(text: &str) -> String {
    let line = |line: &str| line.split(' ').map(without_time).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn default_installation_has_no_failure() {
    let scheduler =
        workload("StatefulSet", "seldon-scheduler", &["scheduler", "--host=0.0.0.0"], &SERVER_TLS);
    let server = workload("StatefulSet", "gantry", &["agent", "--host=0.0.0.0"], &CLIENT_TLS);
    let gateway = workload("Deployment", "seldon-gateway", &["gateway", "--host=0.0.0.0"], &CLIENT_TLS);
    let cluster = cluster(
        &["operator", "--issue-certificates", "--webhook"],
        &[mounting(scheduler, "gantry-scheduler-tls"), mounting(server, "gantry-agent-tls")],
        &[mounting(gateway, "gantry-gateway-tls")],
    );
    let cluster = with_secret(cluster, "gantry-scheduler-tls", 14);
    let cluster = with_secret(with_secret(cluster, "gantry-agent-tls", 10), "gantry-gateway-tls", 1);
    let (text, failures) = cluster.check(&["--security"]);
    assert_eq!(failures, 0, "{text}");
    insta::assert_snapshot!("security-default", shown(&text));
}

#[test]
fn plaintext_installation_fails_with_remedies() {
    let args = ["scheduler", "--host=0.0.0.0", "--allow-plaintext"];
    let mut scheduler = workload("StatefulSet", "seldon-scheduler", &args, &[]);
    scheduler["spec"]["template"]["spec"]["securityContext"] = json!({});
    let mut server = workload("StatefulSet", "gantry", &["agent"], &[]);
    server["spec"]["template"]["spec"].as_object_mut().unwrap().remove("automountServiceAccountToken");
    let gateway = workload("Deployment", "seldon-gateway", &["gateway", "--allow-repository-changes"], &[]);
    let service = json!({
        "metadata": { "name": "seldon-scheduler" },
        "spec": { "type": "LoadBalancer", "selector": { "app.kubernetes.io/name": "seldon-scheduler" } },
    });
    let binding = json!({
        "roleRef": { "kind": "ClusterRole", "name": "gantry-operator" },
        "subjects": [{ "kind": "ServiceAccount", "name": "gantry-operator", "namespace": "seldon-mesh" }],
    });
    let role = json!({ "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["list"] }] });
    let (text, failures) = cluster(&["operator"], &[scheduler, server], &[gateway])
        .items(&format!("/api/v1/namespaces/{NAMESPACE}/services"), &[service])
        .items("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &[binding])
        .with("/apis/rbac.authorization.k8s.io/v1/clusterroles/gantry-operator", role)
        .check(&["--security"]);
    assert_eq!(failures, 7, "{text}");
    insta::assert_snapshot!("security-plaintext", shown(&text));
}

#[test]
fn policies_and_pod_security_are_seen() {
    let args = ["scheduler", "--host=0.0.0.0", "--allow-plaintext"];
    let scheduler = workload("StatefulSet", "seldon-scheduler", &args, &[]);
    let policy = |name: &str, selector: Value| {
        json!({
            "metadata": { "name": name }, "spec": { "podSelector": selector, "policyTypes": ["Ingress"] },
        })
    };
    let own = json!({ "matchLabels": { "app.kubernetes.io/name": "seldon-scheduler" } });
    let policies = format!("/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies");
    let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let server =
        cluster(&["operator"], &[scheduler], &[]).with(&format!("/api/v1/namespaces/{NAMESPACE}"), labels);
    let egress =
        json!({ "metadata": { "name": "out" }, "spec": { "podSelector": {}, "policyTypes": ["Egress"] } });
    let other = policy("other", json!({ "matchLabels": { "app.kubernetes.io/name": "x" } }));
    let (text, _) = server.clone().items(&policies, &[egress.clone(), other.clone()]).check(&["--security"]);
    assert!(text.contains("open to the cluster: all rights"), "{text}");
    let (text, _) = server.items(&policies, &[egress, other, policy("mine", own)]).check(&["--security"]);
    assert!(text.contains("NetworkPolicy mine decides who reaches them"), "{text}");
    let is_restricted = |line: &str| line.contains("Pod Security") && line.contains("restricted");
    assert!(text.lines().any(is_restricted), "{text}");
}

#[test]
fn expired_and_foreign_certificates_fail() {
    let scheduler = workload("StatefulSet", "seldon-scheduler", &["scheduler"], &SERVER_TLS);
    let cluster = || {
        cluster(
            &["operator", "--issue-certificates"],
            &[mounting(scheduler.clone(), "gantry-scheduler-tls")],
            &[],
        )
    };
    let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/gantry-scheduler-tls");
    let (text, failures) = with_secret(cluster(), "gantry-scheduler-tls", -1).check(&["--security"]);
    assert!(failures == 1 && text.contains("expired 20"), "{text}");
    let (text, failures) = cluster().check(&["--security"]);
    assert!(failures == 1 && text.contains("not found"), "{text}");
    let foreign = json!({ "metadata": { "name": "gantry-scheduler-tls" }, "data": {} });
    let (text, failures) = cluster().with(&path, foreign).check(&["--security"]);
    assert!(failures == 1 && text.contains("not managed by the operator"), "{text}");
    let (text, failures) = cluster().failing(&path, 403, "forbidden").check(&["--security"]);
    assert!(failures == 0 && text.contains("you may not read it"), "{text}");
}
