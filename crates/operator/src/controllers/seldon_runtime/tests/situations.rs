//! Plans of `SeldonRuntimes`.

use super::*;

#[test]
fn plan_for_every_situation() {
    let cases: Vec<(&str, Snapshot, ConditionStatus, &str, &str)> = vec![
        ("new", snapshot(json!({})), ConditionStatus::False, "ComponentsNotReady", "in progress"),
        ("ready", made(snapshot(json!({}))), ConditionStatus::True, "RuntimeReady", "settled"),
        (
            "no configuration",
            Snapshot { config: None, ..snapshot(json!({})) },
            ConditionStatus::False,
            "SeldonConfigMissing",
            "in progress",
        ),
        (
            "invalid configuration",
            Snapshot {
                config: Some(Arc::new(config(json!({"components": [{"name": "a"}, {"name": "a"}]})))),
                ..snapshot(json!({}))
            },
            ConditionStatus::False,
            "SeldonConfigInvalid",
            "in progress",
        ),
        (
            "component without podSpec",
            Snapshot {
                config: Some(Arc::new(config(json!({"components": [{"name": "a"}]})))),
                ..snapshot(json!({}))
            },
            ConditionStatus::False,
            "SeldonConfigInvalid",
            "in progress",
        ),
        (
            "second runtime",
            Snapshot { first: Some("other".into()), ..snapshot(json!({})) },
            ConditionStatus::False,
            "AnotherRuntime",
            "in progress",
        ),
        (
            "duplicate override",
            snapshot(json!({"overrides": [{"name": "a"}, {"name": "a"}]})),
            ConditionStatus::False,
            "InvalidSpec",
            "stalled",
        ),
        (
            "undecodable spec",
            snapshot(json!({"overrides": 7})),
            ConditionStatus::False,
            "InvalidSpec",
            "stalled",
        ),
    ];
    for (name, snapshot, status, reason, progress) in cases {
        let plan = plan(&snapshot, NOW);
        let (t, r, o, message) = ready_condition(&plan);
        assert_eq!((t, r.as_str(), o), (status, reason, progress), "{name}: {message}");
        if !["ComponentsNotReady", "RuntimeReady"].contains(&reason) {
            assert_eq!(plan.actions, [], "{name}");
        }
        assert_eq!(deletes(&plan), [] as [&str; 0], "{name}");
    }
}

#[test]
fn condition_types_of_components() {
    for (component, name) in [
        ("seldon-scheduler", "SchedulerReady"),
        ("seldon-envoy", "EnvoyReady"),
        ("seldon-gateway", "GatewayReady"),
        ("seldon-dataflow-engine", "DataflowEngineReady"),
        ("seldon-modelgateway", "ModelGatewayReady"),
        ("seldon-pipelinegateway", "PipelineGatewayReady"),
        ("hodometer", "HodometerReady"),
        ("my-helper", "MyHelperReady"),
    ] {
        assert_eq!(condition_type(component), name);
    }
}

#[test]
fn disabled_component_is_deleted_with_its_objects() {
    let all = made(snapshot(json!({ "overrides": [{ "name": "seldon-gateway", "replicas": 2 }] })));
    let disabled = with_object(&all, |object| {
        object.spec = runtime(json!({ "overrides": [{ "name": "seldon-gateway", "disable": true }] })).spec;
    });
    let plan_of = plan(&disabled, NOW);
    let gone = ["Service seldon-mesh", "Deployment seldon-gateway", "PodDisruptionBudget seldon-gateway"];
    assert_eq!(deletes(&plan_of), gone);
    let names: Vec<String> = plan_of.status.unwrap().conditions.into_iter().map(|c| c.r#type).collect();
    assert_eq!(names, ["SchedulerReady", "MyHelperReady", "Ready"]);
    // Also when the configuration no longer has it.
    let mut smaller = small();
    smaller["components"].as_array_mut().unwrap().remove(1);
    let without = Snapshot { config: Some(Arc::new(config(smaller))), ..all };
    assert_eq!(deletes(&plan(&without, NOW)), gone);
}

#[test]
fn changed_setting_restarts_only_pods_that_read_it() {
    let endpoint =
        |address: &str| json!({ "config": { "tracingConfig": { "otelExporterEndpoint": address } } });
    let template = |address: &str, component: &str| {
        let plan = plan(&snapshot(endpoint(address)), NOW);
        let kind = if component == "seldon-scheduler" {
            ResourceKind::STATEFUL_SET
        } else {
            ResourceKind::DEPLOYMENT
        };
        find(&plan, kind, component).unwrap().body.pointer("/spec/template").cloned().unwrap()
    };
    assert_ne!(template("a:1", "seldon-gateway"), template("b:1", "seldon-gateway"));
    assert_eq!(template("a:1", "seldon-scheduler"), template("b:1", "seldon-scheduler"));
    assert_eq!(template("a:1", "my-helper"), template("b:1", "my-helper"));
}

#[test]
fn scheduler_has_one_replica() {
    let plan = plan(&snapshot(json!({ "overrides": [{ "name": "seldon-scheduler", "replicas": 5 }] })), NOW);
    let set = find(&plan, ResourceKind::STATEFUL_SET, "seldon-scheduler").unwrap();
    assert_eq!(set.body["spec"]["replicas"], json!(1));
}

#[test]
fn role_allows_only_configured_secrets() {
    let of = |spec: Value| {
        let plan = plan(&snapshot(spec), NOW);
        find(&plan, ResourceKind::ROLE, "gantry-agent")
            .map(|role| role.body["rules"][0]["resourceNames"].clone())
    };
    assert_eq!(of(json!({})), None);
    let named = json!({ "config": { "agentConfig": { "rclone": { "config_secrets": ["minio"] } } } });
    assert_eq!(of(named), Some(json!(["minio"])));
}

#[test]
fn deleted_runtime_waits_for_servers() {
    let deleted = with_object(&made(snapshot(json!({}))), |object| {
        object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    });
    let release = [Action::Cluster(ClusterAction::RemoveFinalizer(FINALIZER))];
    assert_eq!(plan(&deleted, NOW).actions, release);
    let waiting = Snapshot { servers: vec!["mlserver".into()], ..deleted.clone() };
    let waits = plan(&waiting, NOW);
    assert_eq!(waits.actions, [], "components stay");
    let (_, reason, progress, message) = ready_condition(&waits);
    assert_eq!((reason.as_str(), progress), ("ServersLeft", "in progress"));
    assert!(message.contains("mlserver") && message.contains("kubectl delete servers"), "{message}");
    let replaced = Snapshot { first: Some("other".into()), ..waiting.clone() };
    assert_eq!(plan(&replaced, NOW).actions, release);
    let unreadable = with_object(&deleted, |object| object.spec = Err("undecodable spec".into()));
    assert_eq!(plan(&unreadable, NOW).actions, release, "an invalid runtime can be deleted");
    let unfinalized = with_object(&waiting, |object| object.metadata.finalizers = None);
    assert_eq!(plan(&unfinalized, NOW), Plan::default());
}

#[test]
fn finalizer_is_added_before_any_object() {
    let new = with_object(&snapshot(json!({})), |object| object.metadata.finalizers = None);
    assert_eq!(
        plan(&new, NOW).actions.first(),
        Some(&Action::Cluster(ClusterAction::AddFinalizer(FINALIZER)))
    );
}

#[test]
fn rejected_component_does_not_block_the_others() {
    let new = snapshot(json!({}));
    let gateway = find(&plan(&new, NOW), ResourceKind::DEPLOYMENT, "seldon-gateway").unwrap();
    let refused = ApplyFailure {
        kind: gateway.kind,
        key: gateway.key.clone(),
        digest: gateway.digest(),
        live_uid: String::new(),
        cause: FailureCause::Rejected(
            "Deployment.apps \"seldon-gateway\" is invalid: spec.template.spec.containers[0].image: Required"
                .into(),
        ),
        age: Duration::from_secs(1),
    };
    let plan_of = plan(&Snapshot { failures: vec![refused], ..new }, NOW);
    assert_eq!(find(&plan_of, ResourceKind::DEPLOYMENT, "seldon-gateway"), None);
    assert!(find(&plan_of, ResourceKind::STATEFUL_SET, "seldon-scheduler").is_some());
    let (_, reason, progress, message) = ready_condition(&plan_of);
    assert_eq!((reason.as_str(), progress), ("ApplyRefused", "stalled"));
    assert!(message.contains("containers[0].image"), "{message}");
    let conditions = plan_of.status.unwrap().conditions;
    let gateway = conditions.iter().find(|c| c.r#type == "GatewayReady").unwrap();
    assert_eq!(gateway.reason.as_deref(), Some("ApplyRefused"));
}

#[test]
fn autoscaled_replicas_are_not_applied() {
    let mut scaled = made(snapshot(json!({})));
    scaled.autoscalers = BTreeMap::from([(("Deployment".into(), "seldon-gateway".into()), "hpa".into())]);
    let plan_of = plan(&scaled, NOW);
    let gateway = find(&plan_of, ResourceKind::DEPLOYMENT, "seldon-gateway").unwrap();
    assert_eq!(gateway.body.pointer("/spec/replicas"), None);
    assert!(
        plan_of
            .actions
            .iter()
            .any(|a| matches!(a, Action::Cluster(ClusterAction::HandOverReplicas(d)) if d.body["spec"]["replicas"] == json!(1)))
    );
    let helper = find(&plan_of, ResourceKind::DEPLOYMENT, "my-helper").unwrap();
    assert_eq!(helper.body.pointer("/spec/replicas"), Some(&json!(1)));
}

#[test]
fn agents_may_read_the_listed_secrets_only() {
    let rule_of = |listed: &[&str], config_secrets: Value| {
        let config =
            json!({ "config": { "agentConfig": { "rclone": { "config_secrets": config_secrets } } } });
        let agent_secrets = listed.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(&Snapshot { agent_secrets, ..snapshot(config) }, NOW);
        let role = find(&plan, ResourceKind::ROLE, "gantry-agent");
        let binding = find(&plan, ResourceKind::ROLE_BINDING, "gantry-agent");
        assert_eq!(role.is_some(), binding.is_some());
        role.map(|role| role.body.pointer("/rules/0").cloned().unwrap())
    };
    let rule = |mut rule: Value, names: Value| {
        rule["resourceNames"] = names;
        Some(rule)
    };
    let all = json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] });
    assert_eq!(rule_of(&[], json!([])), None);
    assert_eq!(rule_of(&["minio", "gs"], json!([])), rule(all.clone(), json!(["minio", "gs"])));
    assert_eq!(rule_of(&["minio"], json!(["gs", "minio"])), rule(all.clone(), json!(["gs", "minio"])));
    assert_eq!(rule_of(&["*"], json!(["gs"])), Some(all));
}

#[test]
fn mesh_service_has_the_ports_and_label_of_seldon() {
    let mesh = |components: Value| {
        let settings = json!({ "config": { "serviceConfig": { "grpcServicePrefix": "http2-" } } });
        let config = Some(Arc::new(config(json!({ "components": components }))));
        let plan = plan(&Snapshot { config, ..snapshot(settings) }, NOW);
        let service = find(&plan, ResourceKind::SERVICE, "seldon-mesh").unwrap();
        assert_eq!(
            service.body.pointer("/metadata/labels"),
            Some(&json!({ "app.kubernetes.io/name": "seldon-envoy" }))
        );
        let ports = service.body.pointer("/spec/ports").unwrap().as_array().unwrap().clone();
        ports
            .iter()
            .map(|port| format!("{}={}", port["name"].as_str().unwrap(), port["port"]))
            .collect::<Vec<_>>()
    };
    let component = |name: &str| json!({ "name": name, "podSpec": { "containers": [{ "name": "a" }] } });
    assert_eq!(mesh(json!([component("seldon-envoy")])), ["http2-data=80", "stats=9003"]);
    assert_eq!(
        mesh(json!([component("seldon-gateway")])),
        ["http2-data=80"],
        "the admin port is not published"
    );
}

#[test]
fn disable_auto_update_keeps_components_on_config_change() {
    let spec_with = |replicas: i32, extra: Value| {
        let over = json!([{ "name": "seldon-gateway", "replicas": replicas }, extra]);
        runtime(json!({ "disableAutoUpdate": true, "overrides": over })).spec
    };
    let none = || json!({ "name": "unknown" });
    let first = made(with_object(&snapshot(json!({})), |o| o.spec = spec_with(1, none())));
    let mut newer = small();
    newer["components"][1]["podSpec"]["containers"][0]["image"] = json!("gateway:2");
    newer["components"].as_array_mut().unwrap().remove(2);
    newer["config"] = json!({ "tracingConfig": { "otelExporterEndpoint": "new:1" } });
    let mut newer = config(newer);
    newer.metadata.generation = Some(2);
    let changed = Snapshot { config: Some(Arc::new(newer)), ..first };
    let image = |snapshot: &Snapshot| {
        let gateway = find(&plan(snapshot, NOW), ResourceKind::DEPLOYMENT, "seldon-gateway");
        gateway.and_then(|d| d.body.pointer("/spec/template/spec/containers/0/image").cloned())
    };
    let plan_of = plan(&changed, NOW);
    assert_eq!((image(&changed), deletes(&plan_of)), (None, vec![]));
    assert_eq!(find(&plan_of, ResourceKind::CONFIG_MAP, "seldon-tracing"), None);
    let bigger = with_object(&changed, |o| o.spec = spec_with(3, none()));
    assert_eq!(image(&bigger), Some(json!("gateway:1")));
    let other =
        with_object(&changed, |o| o.spec = spec_with(1, json!({ "name": "my-helper", "disable": true })));
    assert_eq!(image(&other), Some(json!("gateway:2")), "a changed spec follows the new configuration");
    assert_eq!(deletes(&plan(&other, NOW)), ["Deployment my-helper"]);
}

/// `getSchedulerService` in Seldon's `operator/controllers/reconcilers/seldon/service_reconciler.go`.
#[test]
fn scheduler_service_has_the_ports_and_label_of_seldon() {
    let settings = json!({ "config": { "serviceConfig": { "grpcServicePrefix": "http2-" } } });
    let service = find(&plan(&snapshot(settings), NOW), ResourceKind::SERVICE, "seldon-scheduler").unwrap();
    let name = json!({ "app.kubernetes.io/name": "seldon-scheduler" });
    assert_eq!(service.body["metadata"]["labels"], name, "KubernetesNameLabelKey: SchedulerName");
    assert_eq!(service.body["spec"]["selector"], name);
    let ports: Vec<String> = service.body["spec"]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| format!("{}={}", port["name"].as_str().unwrap(), port["port"]))
        .collect();
    let expected = [
        "xds=9002",
        "scheduler=9004",
        "scheduler-mtls=9044",
        "agent=9005",
        "agent-mtls=9055",
        "dataflow=9008",
    ];
    assert_eq!(ports, expected.map(|port| format!("http2-{port}")), "GrpcServicePrefix and Default…PortName");
}
