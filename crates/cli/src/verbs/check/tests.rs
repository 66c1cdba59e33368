use super::*;
use clap::Parser as _;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// An API server that knows the answers to some questions. Everything else is not there.
#[derive(Clone, Default)]
struct Server {
    answers: BTreeMap<String, (u16, Value)>,
    refused: Vec<&'static str>,
}

impl Server {
    fn new() -> Self {
        Self::default().with("/version", json!({ "major": "1", "minor": "36+", "gitVersion": "v1.36.3" }))
    }

    fn with(mut self, path: &str, answer: Value) -> Self {
        self.answers.insert(path.into(), (200, answer));
        self
    }

    fn items(self, path: &str, items: &[Value]) -> Self {
        self.with(path, json!({ "metadata": {}, "items": items }))
    }

    fn failing(mut self, path: &str, code: u16, message: &str) -> Self {
        let status =
            json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "" });
        self.answers.insert(path.into(), (code, status));
        self
    }

    /// With the kinds as this program has them, or with a schema of somebody else.
    fn kinds(mut self, ours: bool) -> Self {
        for resource in gantry_api::resources() {
            let mut crd = gantry_api::crd(&resource);
            crd["status"] = json!({
                "conditions": [{ "type": "Established", "status": "True" }], "storedVersions": ["v1alpha1"],
            });
            if !ours {
                crd["spec"]["versions"][0]["schema"] = json!({ "openAPIV3Schema": { "type": "object" } });
            }
            let name = crd["metadata"]["name"].as_str().unwrap();
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
            self.answers.insert(path, (200, crd));
        }
        self
    }

    /// Whoever asks may not do this with these resources.
    fn refusing(mut self, resource: &'static str) -> Self {
        self.refused.push(resource);
        self
    }

    fn answer(&self, path: &str, body: &[u8]) -> (u16, Value) {
        match path {
            "/apis/authentication.k8s.io/v1/selfsubjectreviews" => {
                (201, json!({ "status": { "userInfo": { "username": "admin" } } }))
            }
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                let review: Value = serde_json::from_slice(body).unwrap();
                let resource = review["spec"]["resourceAttributes"]["resource"].as_str().unwrap();
                (201, json!({ "status": { "allowed": !self.refused.contains(&resource) } }))
            }
            _ => self.answers.get(path).cloned().unwrap_or_else(|| {
                (404, json!({ "kind": "Status", "status": "Failure", "code": 404, "message": "no", "reason": "NotFound" }))
            }),
        }
    }

    fn client(self) -> kube::Client {
        let server = Arc::new(self);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let server = Arc::clone(&server);
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect_bytes().await?;
                let (code, answer) = server.answer(&path, &body);
                let response = http::Response::builder().status(code);
                Ok::<_, kube::Error>(
                    response.body(kube::client::Body::from(answer.to_string().into_bytes())).unwrap(),
                )
            }
        });
        kube::Client::new(service, "default")
    }

    /// What a command line says about it.
    fn checked(self, words: &[&str]) -> (String, usize) {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = Line::try_parse_from(["check"].iter().chain(words)).unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let api = Api::of(self.client(), Duration::from_secs(5));
            let mut report = Report::quiet();
            look(&api, &line.args, Duration::from_secs(4), &mut report).await;
            (report.text(), report.wrongs())
        })
    }
}

fn named(kind: &str, name: &str, rest: Value) -> Value {
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
fn an_empty_cluster_before_installing() {
    let (text, wrongs) = Server::new().checked(&["--pre"]);
    assert_eq!(wrongs, 0, "{text}");
    insta::assert_snapshot!("pre-empty", text);
}

#[test]
fn a_cluster_that_is_old_strict_and_not_ours() {
    let labels = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let class = json!({ "metadata": {
        "name": "fast", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
    } });
    let (text, wrongs) = Server::new()
        .with("/version", json!({ "major": "1", "minor": "27" }))
        .with("/api/v1/namespaces/seldon-mesh", labels)
        .with("/apis/gateway.networking.k8s.io", json!({}))
        .items("/apis/storage.k8s.io/v1/storageclasses", &[class])
        .kinds(false)
        .refusing("customresourcedefinitions")
        .refusing("clusterroles")
        .checked(&["--pre"]);
    assert_eq!(wrongs, 3, "{text}");
    insta::assert_snapshot!("pre-strict", text);
}

#[test]
fn an_api_server_that_does_not_answer_is_all_there_is_to_say() {
    let (text, wrongs) = Server::new().failing("/version", 503, "etcd is gone").checked(&[]);
    assert_eq!((wrongs, text.lines().count()), (1, 1), "{text}");
    assert!(text.contains("the API server answers 503: etcd is gone"), "{text}");
}

fn installed() -> Server {
    let deployment = json!({
        "metadata": { "name": "gantry-operator", "namespace": "seldon-mesh" },
        "spec": { "replicas": 2 }, "status": { "availableReplicas": 2, "updatedReplicas": 2 },
    });
    let lease = json!({ "spec": {
        "holderIdentity": "gantry-operator-0", "renewTime": jiff::Timestamp::now().to_string(),
    } });
    let config = |kind: &str, name: &str| named(kind, name, condition("True", ""));
    let own = format!("{BASE}/namespaces/seldon-mesh");
    Server::new()
        .kinds(true)
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
fn a_cluster_that_is_well() {
    let (text, wrongs) = installed().checked(&[]);
    assert_eq!(wrongs, 0, "{text}");
    insta::assert_snapshot!("well", text);
}

#[test]
fn a_cluster_with_everything_wrong_with_it() {
    let lease =
        json!({ "spec": { "holderIdentity": "gantry-operator-0", "renewTime": "2020-01-01T00:00:00Z" } });
    let down = json!({
        "metadata": { "name": "gantry-operator" }, "spec": { "replicas": 2 },
        "status": { "conditions": [{ "type": "Available", "status": "False", "message": "ImagePullBackOff" }] },
    });
    let going = json!({ "metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["seldon.model.finalizer"],
    } });
    let mut models: Vec<Value> = (0..6)
        .map(|i| named("Model", &format!("m{i}"), condition("False", "needs 6Gi\nmost free 4Gi")))
        .collect();
    models.push(named("Model", "fine", condition("True", "")));
    models.insert(0, named("Model", "going", going));
    models.insert(1, named("Model", "unseen", json!({})));
    let behind = json!({ "metadata": { "generation": 2 } });
    let mut behind_server = named("Server", "gantry", condition("True", ""));
    json_patch_merge(&mut behind_server, behind);
    let (text, wrongs) = installed()
        .items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[down])
        .with("/apis/coordination.k8s.io/v1/namespaces/seldon-mesh/leases/e98130ae.seldon.io", lease)
        .items(&format!("{BASE}/namespaces/seldon-mesh/serverconfigs"), &[])
        .items(&format!("{BASE}/servers"), &[behind_server])
        .items(&format!("{BASE}/seldonruntimes"), &[])
        .items(&format!("{BASE}/models"), &models)
        .checked(&[]);
    insta::assert_snapshot!("wrong", text);
    assert_eq!(wrongs, 5, "{text}");
}

#[test]
fn a_webhook_is_told_of_where_there_is_one() {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    for (config, words) in [
        (json!({}), "has no caBundle: nobody answers"),
        (json!({ "caBundle": "LS0t" }), "ok   answers with a certificate"),
    ] {
        let hook =
            json!({ "metadata": { "name": "gantry-webhook" }, "webhooks": [{ "clientConfig": config }] });
        let (text, wrongs) = installed().items(path, &[hook]).checked(&[]);
        assert!(text.contains("webhook gantry-webhook") && text.contains(words), "{text}");
        assert_eq!(wrongs, 0, "nothing depends on it: {text}");
    }
}

#[test]
fn a_lease_is_missed_where_a_leader_is_elected() {
    let lease = "/apis/coordination.k8s.io/v1/namespaces/seldon-mesh/leases/e98130ae.seldon.io";
    for (args, wrong) in [(json!(["operator", "--leader-elect"]), 1), (json!(["operator"]), 0)] {
        let deployment = json!({
            "metadata": { "name": "gantry-operator" },
            "spec": { "replicas": 1, "template": { "spec": { "containers": [{ "args": args }] } } },
            "status": { "availableReplicas": 1, "updatedReplicas": 1 },
        });
        let mut server = installed().items("/apis/apps/v1/namespaces/seldon-mesh/deployments", &[deployment]);
        server.answers.remove(lease);
        let (text, wrongs) = server.checked(&[]);
        assert_eq!(wrongs, wrong, "{text}");
    }
}

#[test]
fn kinds_that_are_missing_or_of_another_version() {
    let (text, wrongs) = Server::new().checked(&[]);
    assert_eq!((wrongs, text.lines().count()), (1, 2), "{text}");
    assert!(text.contains("models") && text.contains("gantry install --crds"), "{text}");
    let (text, wrongs) = installed().kinds(false).checked(&[]);
    assert_eq!(wrongs, 1, "{text}");
    assert!(text.contains("not of this version"), "{text}");
}

#[test]
fn whoever_may_see_one_namespace_is_told_about_that() {
    let (text, _) = installed()
        .failing(&format!("{BASE}/models"), 403, "models is forbidden")
        .items(
            &format!("{BASE}/namespaces/seldon-mesh/models"),
            &[named("Model", "iris", condition("True", ""))],
        )
        .checked(&[]);
    assert!(text.contains("Models in seldon-mesh"), "{text}");
}

#[test]
fn what_seldon_left() {
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
    let spec = json!({ "spec": { "storageUri": "gs://bucket/iris", "requirements": ["sklearn"] } });
    let mut held = named("Model", "iris", spec.clone());
    held["metadata"]["finalizers"] = json!(["seldon.model.finalizer", "example.com/audit"]);
    let wrong = named("Model", "bad", json!({ "spec": { "storageUri": "" } }));
    let mut going = named("Model", "going", json!({ "spec": { "storageUri": "" } }));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["metadata"]["deletionGracePeriodSeconds"] = json!(0);
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
    let (text, wrongs) = Server::new()
        .kinds(false)
        .items("/apis/apps/v1/deployments", &[manager])
        .items(&format!("{BASE}/models"), &[held, wrong, going])
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
                set("foreign", "agent:1", "u-somebody"),
            ],
        )
        .checked(&["--migrate"]);
    // How long our definitions are changes with every field.
    let sizes = |line: &str| match line.split_once(" KiB become ") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before} KiB become N{rest}\n")
        }
        None => format!("{line}\n"),
    };
    insta::assert_snapshot!("migrate", text.lines().map(sizes).collect::<String>());
    assert_eq!(wrongs, 3, "{text}");
}
