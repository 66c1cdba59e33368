use super::*;
use clap::Parser as _;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// An API server with fixed responses; other paths are not found.
#[derive(Clone, Default)]
pub(super) struct FakeApiServer {
    responses: BTreeMap<String, (u16, Value)>,
    denied: Vec<&'static str>,
}

impl FakeApiServer {
    pub(super) fn new() -> Self {
        Self::default().with("/version", json!({ "major": "1", "minor": "36+", "gitVersion": "v1.36.3" }))
    }

    pub(super) fn with(mut self, path: &str, body: Value) -> Self {
        self.responses.insert(path.into(), (200, body));
        self
    }

    pub(super) fn items(self, path: &str, items: &[Value]) -> Self {
        self.with(path, json!({ "metadata": {}, "items": items }))
    }

    pub(super) fn failing(mut self, path: &str, code: u16, message: &str) -> Self {
        let status =
            json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "" });
        self.responses.insert(path.into(), (code, status));
        self
    }

    /// Installs the CRDs of this version, or with a foreign schema.
    fn crds(mut self, current: bool) -> Self {
        for resource in gantry_api::resources() {
            let mut crd = gantry_api::crd(&resource);
            crd["status"] = json!({
                "conditions": [{ "type": "Established", "status": "True" }], "storedVersions": ["v1alpha1"],
            });
            if !current {
                crd["spec"]["versions"][0]["schema"] = json!({ "openAPIV3Schema": { "type": "object" } });
            }
            let name = crd["metadata"]["name"].as_str().unwrap();
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            self.responses.insert(path, (200, crd));
        }
        self
    }

    fn denying(mut self, resource: &'static str) -> Self {
        self.denied.push(resource);
        self
    }

    fn respond(&self, path: &str, body: &[u8]) -> (u16, Value) {
        match path {
            "/apis/authentication.k8s.io/v1/selfsubjectreviews" => {
                (201, json!({ "status": { "userInfo": { "username": "admin" } } }))
            }
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                let review: Value = serde_json::from_slice(body).unwrap();
                let resource = review["spec"]["resourceAttributes"]["resource"].as_str().unwrap();
                (201, json!({ "status": { "allowed": !self.denied.contains(&resource) } }))
            }
            _ => self.responses.get(path).cloned().unwrap_or_else(|| {
                (404, json!({ "kind": "Status", "status": "Failure", "code": 404, "message": "no", "reason": "NotFound" }))
            }),
        }
    }

    fn client(self) -> kube::Client {
        let server = Arc::new(self);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let server = Arc::clone(&server);
            async move {
                let uri = request.uri().clone();
                let body = request.into_body().collect_bytes().await?;
                let (code, mut body) = server.respond(uri.path(), &body);
                select(&mut body, uri.query().unwrap_or_default());
                let response = http::Response::builder().status(code);
                Ok::<_, kube::Error>(
                    response.body(kube::client::Body::from(body.to_string().into_bytes())).unwrap(),
                )
            }
        });
        kube::Client::new(service, "default")
    }

    /// The report and the number of failures of a command line.
    pub(super) fn check(self, args: &[&str]) -> (String, usize) {
        #[derive(Debug, clap::Parser)]
        struct TestCli {
            #[command(flatten)]
            args: Args,
        }
        let cli = TestCli::try_parse_from(["check"].iter().chain(args)).unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let api = Api::new(self.client(), Duration::from_secs(5));
            let mut report = Report::quiet();
            super::check(&api, &cli.args, Duration::from_secs(4), &mut report).await;
            (report.text(), report.failures())
        })
    }
}

/// Removes listed objects whose labels do not match the selector of a query.
fn select(body: &mut Value, query: &str) {
    let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector="));
    let Some(selector) = selector.map(|text| text.replace("%2F", "/").replace("%3D", "=")) else { return };
    let matches = |object: &Value| {
        let Some(labels) = object.pointer("/metadata/labels") else { return true };
        match selector.split_once('=') {
            Some((name, value)) => labels[name] == value,
            None => labels.get(&selector).is_some(),
        }
    };
    if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
        items.retain(matches);
    }
}

pub(super) fn named(kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({
        "apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind,
        "metadata": { "name": name, "namespace": "ml", "generation": 1 },
    });
    json_patch_merge(&mut object, rest);
    object
}

fn json_patch_merge(at: &mut Value, from: Value) {
    match (at, from) {
        (Value::Object(at), Value::Object(from)) => {
            for (name, value) in from {
                json_patch_merge(at.entry(name).or_insert(Value::Null), value);
            }
        }
        (at, from) => *at = from,
    }
}

fn condition(status: &str, message: &str) -> Value {
    json!({ "status": { "observedGeneration": 1, "conditions": [
        { "type": "Ready", "status": status, "message": message },
    ] } })
}

const BASE: &str = "/apis/mlops.seldon.io/v1alpha1";

#[test]
fn preflight_on_an_empty_cluster() {
    let (text, failures) = FakeApiServer::new().check(&["--pre"]);
    assert_eq!(failures, 0, "{text}");
    insta::assert_snapshot!("pre-empty", text);
}

#[test]
fn preflight_on_an_old_restricted_cluster_with_foreign_crds() {
    let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let class = json!({ "metadata": {
        "name": "fast", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
    } });
    let (text, failures) = FakeApiServer::new()
        .with("/version", json!({ "major": "1", "minor": "27" }))
        .with("/api/v1/namespaces/seldon-mesh", labels)
        .with("/apis/gateway.networking.k8s.io", json!({}))
        .items("/apis/storage.k8s.io/v1/storageclasses", &[class])
        .crds(false)
        .denying("customresourcedefinitions")
        .denying("clusterroles")
        .check(&["--pre"]);
    assert_eq!(failures, 3, "{text}");
    insta::assert_snapshot!("pre-strict", text);
}

#[test]
fn unreachable_api_server_ends_the_check() {
    let (text, failures) = FakeApiServer::new().failing("/version", 503, "etcd is gone").check(&[]);
    assert_eq!((failures, text.lines().count()), (1, 1), "{text}");
    assert!(text.contains("the API server returned 503: etcd is gone"), "{text}");
}

fn installed() -> FakeApiServer {
    let deployment = json!({
        "metadata": { "name": "gantry-operator", "namespace": "seldon-mesh" },
        "spec": { "replicas": 2 }, "status": { "availableReplicas": 2, "updatedReplicas": 2 },
    });
    let lease = json!({ "spec": {
        "holderIdentity": "gantry-operator-0", "renewTime": jiff::Timestamp::now().to_string(),
    } });
    let config = |kind: &str, name: &str| named(kind, name, condition("True", ""));
    let own = format!("{BASE}/namespaces/seldon-mesh");
    FakeApiServer::new()
        .crds(true)
        .items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[deployment])
        .with("/apis/coordination.k8s.io/v1/namespaces/seldon-mesh/leases/e98130ae.seldon.io", lease)
        .items(&format!("{own}/seldonconfigs"), &[config("SeldonConfig", "default")])
        .items(
            &format!("{own}/serverconfigs"),
            &[config("ServerConfig", "gantry"), config("ServerConfig", "triton")],
        )
        .items(&format!("{BASE}/seldonruntimes"), &[named("SeldonRuntime", "seldon", condition("True", ""))])
        .items(&format!("{BASE}/servers"), &[named("Server", "gantry", condition("True", ""))])
        .items(&format!("{BASE}/models"), &[named("Model", "iris", condition("True", "serving version 2"))])
}

#[test]
fn healthy_installation_passes() {
    let (text, failures) = installed().check(&[]);
    assert_eq!(failures, 0, "{text}");
    insta::assert_snapshot!("well", text);
}

#[test]
fn broken_installation_reports_every_failure() {
    let lease =
        json!({ "spec": { "holderIdentity": "gantry-operator-0", "renewTime": "2020-01-01T00:00:00Z" } });
    let down = json!({
        "metadata": { "name": "gantry-operator" }, "spec": { "replicas": 2 },
        "status": { "conditions": [{ "type": "Available", "status": "False", "message": "ImagePullBackOff" }] },
    });
    let deleting = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["seldon.model.finalizer"],
    } });
    let mut models: Vec<Value> = (0..6)
        .map(|i| named("Model", &format!("m{i}"), condition("False", "needs 6Gi\nmost free 4Gi")))
        .collect();
    models.push(named("Model", "fine", condition("True", "")));
    models.insert(0, named("Model", "deleting", deleting));
    models.insert(1, named("Model", "unseen", json!({})));
    let behind = json!({ "metadata": { "generation": 2 } });
    let mut behind_server = named("Server", "gantry", condition("True", ""));
    json_patch_merge(&mut behind_server, behind);
    let (text, failures) = installed()
        .items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[down])
        .with("/apis/coordination.k8s.io/v1/namespaces/seldon-mesh/leases/e98130ae.seldon.io", lease)
        .items(&format!("{BASE}/namespaces/seldon-mesh/serverconfigs"), &[])
        .items(&format!("{BASE}/servers"), &[behind_server])
        .items(&format!("{BASE}/seldonruntimes"), &[])
        .items(&format!("{BASE}/models"), &models)
        .check(&[]);
    insta::assert_snapshot!("wrong", text);
    assert_eq!(failures, 5, "{text}");
}

#[test]
fn invalid_settings_of_inference_services_fail() {
    let path = "/api/v1/namespaces/seldon-mesh/configmaps/inferenceservice-config";
    for (ingress, expected, wrong) in [("{}", "ok   valid", 0), ("{", "key ingress is not valid", 1)] {
        let map =
            json!({ "metadata": { "name": "inferenceservice-config" }, "data": { "ingress": ingress } });
        let (text, failures) = installed().with(path, map).check(&[]);
        assert!(text.contains("inferenceservice-config") && text.contains(expected), "{text}");
        assert_eq!(failures, wrong, "{text}");
    }
}

#[test]
fn webhook_is_reported_when_installed() {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    for (config, expected) in [
        (json!({}), "not serving: no caBundle"),
        (json!({ "caBundle": "LS0t" }), "ok   serving with a self-signed certificate"),
    ] {
        let hook =
            json!({ "metadata": { "name": "gantry-webhook" }, "webhooks": [{ "clientConfig": config }] });
        let (text, failures) = installed().items(path, &[hook]).check(&[]);
        assert!(text.contains("webhook gantry-webhook") && text.contains(expected), "{text}");
        assert_eq!(failures, 0, "the webhook is optional: {text}");
    }
}

#[test]
fn missing_lease_fails_only_with_leader_election() {
    let lease = "/apis/coordination.k8s.io/v1/namespaces/seldon-mesh/leases/e98130ae.seldon.io";
    for (args, wrong) in [(json!(["operator", "--leader-elect"]), 1), (json!(["operator"]), 0)] {
        let deployment = json!({
            "metadata": { "name": "gantry-operator" },
            "spec": { "replicas": 1, "template": { "spec": { "containers": [{ "args": args }] } } },
            "status": { "availableReplicas": 1, "updatedReplicas": 1 },
        });
        let mut server = installed().items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[deployment]);
        server.responses.remove(lease);
        let (text, failures) = server.check(&[]);
        assert_eq!(failures, wrong, "{text}");
    }
}

#[test]
fn missing_or_outdated_crds_fail() {
    let (text, failures) = FakeApiServer::new().check(&[]);
    assert_eq!((failures, text.lines().count()), (2, 4), "{text}");
    assert!(text.contains("rolloutpolicies not installed"), "{text}");
    assert!(text.contains("models") && text.contains("gantry install --crds"), "{text}");
    let (text, failures) = installed().crds(false).check(&[]);
    assert_eq!(failures, 2, "{text}");
    assert!(text.contains("not of the current version"), "{text}");
}

#[test]
fn forbidden_cluster_list_falls_back_to_the_namespace() {
    let (text, _) = installed()
        .failing(&format!("{BASE}/models"), 403, "models is forbidden")
        .items(
            &format!("{BASE}/namespaces/seldon-mesh/models"),
            &[named("Model", "iris", condition("True", ""))],
        )
        .check(&[]);
    assert!(text.contains("Models in seldon-mesh"), "{text}");
}

#[test]
fn migrate_reports_objects_and_workloads() {
    let manager = json!({
        "metadata": { "name": "seldon-v2-controller-manager", "namespace": "seldon-mesh" }, "spec": { "replicas": 1 },
    });
    let config = named(
        "SeldonConfig",
        "default",
        json!({ "spec": { "components": [
        { "name": "seldon-scheduler" }, { "name": "seldon-envoy" }, { "name": "seldon-dataflow-engine" },
    ], "config": { "agentConfig": { "rclone": { "config_secrets": ["seldon-rclone-gs-public"] } } } } }),
    );
    let spec = json!({ "spec": { "storageUri": "gs://bucket/iris", "requirements": ["sklearn"], "secretName": "minio" } });
    let mut held = named("Model", "iris", spec.clone());
    held["metadata"]["finalizers"] = json!(["seldon.model.finalizer", "example.com/audit"]);
    let wrong = named("Model", "bad", json!({ "spec": { "storageUri": "" } }));
    let mut deleting = named("Model", "deleting", json!({ "spec": { "storageUri": "" } }));
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleting["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    let containers = |image: &str| json!([{ "name": "agent", "image": image }, { "name": "mlserver", "image": "seldonio/mlserver:1.7.1" }]);
    let set = |name: &str, image: &str, owner: &str| {
        json!({
            "metadata": { "name": name, "namespace": "ml", "ownerReferences": [
                { "apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Server", "name": name, "uid": owner, "controller": true },
            ] },
            "spec": { "template": {
                "metadata": { "labels": { "seldon-server-name": name } }, "spec": { "containers": containers(image) },
            } },
        })
    };
    let server = |name: &str, config: &str| {
        let uid = json!({ "metadata": { "uid": format!("u-{name}") }, "spec": { "serverConfig": config } });
        named("Server", name, uid)
    };
    let kind = named(
        "ServerConfig",
        "mlserver",
        json!({ "spec": { "podSpec": { "containers": containers("agent:1") } } }),
    );
    let mut moved = set("moved", "agent:1", "u-moved");
    moved["metadata"]["annotations"] = json!({ "gantry.dev/applied": "1" });
    let (text, failures) = FakeApiServer::new()
        .crds(false)
        .items("/apis/apps/v1/deployments", &[manager])
        .items(&format!("{BASE}/models"), &[held, wrong, deleting])
        .items(
            &format!("{BASE}/pipelines"),
            &[named("Pipeline", "p", json!({ "spec": { "steps": [{ "name": "iris" }] } }))],
        )
        .items(&format!("{BASE}/namespaces/seldon-mesh/seldonconfigs"), &[config])
        .items(&format!("{BASE}/namespaces/seldon-mesh/serverconfigs"), &[kind])
        .items(
            &format!("{BASE}/servers"),
            &["same", "other", "moved", "fresh", "foreign"].map(|name| server(name, "mlserver")),
        )
        .items(
            "/apis/apps/v1/statefulsets",
            &[
                set("same", "agent:1", "u-same"),
                set("other", "agent:0", "u-other"),
                moved,
                set("foreign", "agent:1", "u-unrelated"),
            ],
        )
        .check(&["--migrate"]);
    // The size of the CRDs changes with every field.
    let sizes = |line: &str| match line.split_once(" KiB → ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before} KiB → N{rest}\n")
        }
        None => format!("{line}\n"),
    };
    insta::assert_snapshot!("migrate", text.lines().map(sizes).collect::<String>());
    assert_eq!(failures, 3, "{text}");
}

#[test]
fn migrate_reports_services_of_kserve() {
    let service = |name: &str, finalizer: &str, more: Value| {
        let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": "s3://models/iris" });
        let mut predictor = json!({ "model": model });
        predictor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
            "metadata": { "name": name, "namespace": "ml", "finalizers": [finalizer] },
            "spec": { "predictor": predictor },
        })
    };
    let theirs = "inferenceservice.finalizers";
    let mut taken = service("taken", theirs, json!({}));
    taken["metadata"]["annotations"] = json!({ "gantry.dev/adopt": "true" });
    let manager = json!({
        "metadata": { "name": "kserve-controller-manager", "namespace": "kserve" }, "status": { "replicas": 1 },
    });
    let with_predictor = |name: &str, predictor: Value| {
        let mut service = service(name, theirs, json!({}));
        service["spec"]["predictor"] = predictor;
        service
    };
    let services = [
        service("iris", theirs, json!({})),
        taken,
        service("logged", theirs, json!({ "logger": { "storage": { "path": "/logs" } } })),
        service("wrong", theirs, json!({ "minReplicas": 3, "maxReplicas": 1 })),
        with_predictor(
            "custom",
            json!({ "containers": [{ "name": "kserve-container", "image": "mine:1" }] }),
        ),
        with_predictor("pmml", json!({ "model": { "modelFormat": { "name": "pmml" } } })),
    ];
    let labels = |name: &str| {
        json!({
            "serving.kserve.io/inferenceservice": name, "component": "predictor",
            "app": format!("isvc.{name}-predictor"),
        })
    };
    // As KServe writes it: its webhook adds downloads to pods.
    let deployment = |name: &str, container: Value| {
        let template = json!({
            "metadata": { "labels": labels(name) }, "spec": { "containers": [container] },
        });
        json!({
            "metadata": { "name": format!("{name}-predictor"), "namespace": "ml", "labels": labels(name) },
            "spec": { "replicas": 2, "template": template },
        })
    };
    let name = |value: &str| json!([{ "name": "INFERENCE_SERVICE_NAME", "value": value }]);
    let probe = json!({
        "tcpSocket": { "port": 8080 }, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
        "failureThreshold": 3,
    });
    let iris =
        json!({ "name": "kserve-container", "image": "sk:1", "env": name("iris"), "readinessProbe": probe });
    let amounts = json!({ "cpu": "1", "memory": "2Gi" });
    let custom = json!({
        "name": "kserve-container", "image": "mine:1", "env": name("custom"), "readinessProbe": probe,
        "resources": { "limits": amounts, "requests": amounts },
    });
    let runtime = json!({
        "metadata": { "name": "sk" },
        "spec": {
            "supportedModelFormats": [{ "name": "onnx", "autoSelect": true }],
            "containers": [{ "name": "kserve-container", "image": "sk:1" }],
        },
    });
    let deployments = [manager, deployment("iris", iris), deployment("custom", custom)];
    let (text, failures) = FakeApiServer::new()
        .items("/apis/apps/v1/deployments", &deployments)
        .items("/apis/serving.kserve.io/v1alpha1/clusterservingruntimes", &[runtime])
        .items("/apis/serving.kserve.io/v1beta1/inferenceservices", &services)
        .items("/apis/serving.kserve.io/v1alpha1/trainedmodels", &[named("TrainedModel", "t", json!({}))])
        .check(&["--migrate"]);
    insta::assert_snapshot!("migrate-kserve", text);
    assert!(failures >= 2, "{text}");
}
