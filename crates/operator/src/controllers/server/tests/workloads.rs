//! Changes of workloads.

use super::*;

#[test]
fn scale_down_deletes_replica_services() {
    let three = made(snapshot(Some(server(json!({ "replicas": 3 }))), Known::Absent), 3);
    let one = Snapshot { object: Some(Arc::new(server(json!({ "replicas": 1 })))), ..three };
    let plan = plan(&one, NOW);
    assert_eq!(
        actions(&plan),
        [
            "apply Service a-0",
            "apply StatefulSet a",
            "apply Service a",
            "delete Service a-1",
            "delete Service a-2",
            "delete PodDisruptionBudget a",
            "notify 1",
        ]
    );
    let target = plan
        .actions
        .iter()
        .find_map(|a| if let Action::Cluster(ClusterAction::Delete(d)) = a { Some(d) } else { None })
        .unwrap();
    assert_eq!((target.uid.as_str(), target.resource_version.as_str()), ("Service-a-1", "1"));
}

#[test]
fn workload_kind_switch_deletes_the_old_after_the_new_applies() {
    let sets = made(snapshot(Some(server(json!({}))), Known::Present(view(1, 1))), 1);
    let switched = Snapshot { use_deployments: true, ..sets };
    let done = actions(&plan(&switched, NOW));
    assert_eq!(done, ["apply Deployment a", "apply Service a", "delete Service a-0", "delete StatefulSet a"]);
    let wanted = plan(&switched, NOW);
    let deployment = applied(&wanted).into_iter().find(|d| d.kind == ResourceKind::DEPLOYMENT).unwrap();
    let refused = Snapshot { failures: vec![failure(deployment, "")], ..switched.clone() };
    assert_eq!(actions(&plan(&refused, NOW)), ["apply Service a", "delete Service a-0"]);
}

fn failure(desired: &Desired, live_uid: &str) -> ApplyFailure {
    ApplyFailure {
        kind: desired.kind,
        key: desired.key.clone(),
        digest: desired.digest(),
        live_uid: live_uid.into(),
        cause: FailureCause::Rejected(
            "StatefulSet.apps \"a\" is invalid: spec: Forbidden: updates to statefulset spec for fields other than \
             'replicas' are forbidden"
                .into(),
        ),
        age: Duration::from_secs(1),
    }
}

#[test]
fn rejected_apply_is_reported_and_retried_on_change() {
    let running = made(snapshot(Some(server(json!({}))), Known::Present(view(1, 1))), 1);
    let first = plan(&running, NOW);
    let set = applied(&first).into_iter().find(|d| d.kind == ResourceKind::STATEFUL_SET).unwrap().clone();
    let refused = Snapshot { failures: vec![failure(&set, "StatefulSet-a")], ..running.clone() };
    let plan_of = plan(&refused, NOW);
    assert!(!actions(&plan_of).contains(&"apply StatefulSet a".to_owned()));
    let (status, reason, progress, message) = ready_condition(&plan_of);
    assert_eq!((status, reason.as_str(), progress), (ConditionStatus::False, "ApplyRefused", "stalled"));
    assert!(message.contains("--cascade=orphan") && message.contains("fields other than"), "{message}");
    assert!(plan_of.requeue_after.is_some(), "it is tried again some day");
    // Another live object, another desired state, or enough time: it is retried.
    let tried =
        |snapshot: &Snapshot| actions(&plan(snapshot, NOW)).contains(&"apply StatefulSet a".to_owned());
    assert!(tried(&Snapshot { owned: OwnedObjects::default(), ..refused.clone() }));
    assert!(tried(&Snapshot { image: "gantry:2".into(), ..refused.clone() }));
    let old = ApplyFailure { age: Duration::from_mins(10), ..failure(&set, "StatefulSet-a") };
    assert!(tried(&Snapshot { failures: vec![old], ..running }));
}

#[test]
fn foreign_object_blocks_only_its_own_name() {
    let new = snapshot(Some(server(json!({}))), Known::Present(view(1, 1)));
    let wanted = plan(&new, NOW);
    let service = applied(&wanted).into_iter().find(|d| d.key.name == "a-0").unwrap();
    let failed_with = |cause: FailureCause| Snapshot {
        failures: vec![ApplyFailure { cause, ..failure(service, "") }],
        ..new.clone()
    };
    let foreign =
        plan(&failed_with(FailureCause::Foreign("object exists and is not managed by Gantry".into())), NOW);
    assert_eq!(actions(&foreign), ["apply StatefulSet a", "apply Service a"]);
    let (status, reason, progress, message) = ready_condition(&foreign);
    assert_eq!((status, reason.as_str(), progress), (ConditionStatus::False, "NameTaken", "stalled"));
    assert!(
        message.contains("Service a-0 in namespace ml") && message.contains("not managed by Gantry"),
        "{message}"
    );
    assert!(
        foreign.requeue_after.is_some_and(|delay| delay < Duration::from_mins(1)),
        "its deletion is not watched"
    );
    let before = plan(&failed_with(FailureCause::PreviousOwner("Server a".into())), NOW);
    let (status, reason, progress, _) = ready_condition(&before);
    assert_eq!((status, reason.as_str(), progress), (ConditionStatus::False, "Progressing", "in progress"));
}

#[test]
fn taken_name_of_the_optional_service_does_not_gate_readiness() {
    let up = made(snapshot(Some(server(json!({}))), Known::Present(view(1, 1))), 1);
    let first = plan(&up, NOW);
    let service = applied(&first).into_iter().find(|d| d.key.name == "a" && d.kind == ResourceKind::SERVICE);
    let cause = FailureCause::Foreign("object exists and is not managed by Gantry".into());
    let failures = vec![ApplyFailure { cause, ..failure(service.unwrap(), "Service-a") }];
    let taken = plan(&Snapshot { failures, ..up }, NOW);
    assert_eq!(actions(&taken), ["apply Service a-0", "apply StatefulSet a"]);
    let (status, reason, progress, message) = ready_condition(&taken);
    assert_eq!((status, reason.as_str(), progress), (ConditionStatus::True, "ServerReady", "settled"));
    assert!(message.contains("cannot create Service a in namespace ml"), "{message}");
}

#[test]
fn name_rule_spares_a_server_with_a_workload() {
    let long = "a".repeat(53);
    let mut object = server(json!({}));
    object.metadata.name = Some(long.clone());
    let key = Key::new("ml", long);
    let new = Snapshot { key: key.clone(), ..snapshot(Some(object), Known::Present(view(1, 1))) };
    let (_, reason, _, message) = ready_condition(&plan(&new, NOW));
    assert!(reason == "InvalidSpec" && message.contains("more than 52 characters"), "{reason}: {message}");
    let workload = Desired::new(
        ResourceKind::STATEFUL_SET,
        key,
        json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Server", "name": "x", "uid": "u1", "controller": true }] } }),
    );
    let existing = Snapshot { owned: OwnedObjects::new([live(&workload, &running(1))], "u1"), ..new };
    assert_ne!(ready_condition(&plan(&existing, NOW)).1, "InvalidSpec");
}

#[test]
fn pods_of_seldon_with_inherited_metadata_are_adopted_unchanged() {
    let mut object = server(json!({}));
    let labels = json!({ "team": "blue", "app.kubernetes.io/name": "mine" });
    object.metadata.labels = serde_json::from_value(labels).unwrap();
    let snapshot = snapshot(Some(object), Known::Absent);
    let plan = plan(&snapshot, NOW);
    let desired = applied(&plan).into_iter().find(|d| d.kind == ResourceKind::STATEFUL_SET).unwrap();
    let seldon = |labels: Value| -> OwnedObject {
        let spec = desired.base_pod.as_ref().unwrap()["spec"].clone();
        let template = json!({ "metadata": { "labels": labels }, "spec": spec });
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "template": template } }))
            .unwrap()
    };
    let theirs =
        json!({ "team": "blue", "app.kubernetes.io/name": "seldon-server", "seldon-server-name": "a" });
    assert_eq!(desired.adoption(&seldon(theirs)), Some(Adoption::Unchanged));
    let without = json!({ "app.kubernetes.io/name": "seldon-server", "seldon-server-name": "a" });
    assert_eq!(
        desired.adoption(&seldon(without)),
        Some(Adoption::Changed(vec!["metadata.labels.team".into()]))
    );
}

#[test]
fn inherited_metadata_is_below_own_labels() {
    let mut object = server(json!({}));
    object.metadata.labels = serde_json::from_value(json!({
        "team": "blue", "app.kubernetes.io/name": "mine", "seldon-server-name": "mine", "app.kubernetes.io/managed-by": "Helm",
    }))
    .unwrap();
    object.metadata.annotations =
        serde_json::from_value(json!({ "sidecar.istio.io/inject": "true" })).unwrap();
    let mut below = small();
    below.metadata.labels = serde_json::from_value(json!({ "team": "red", "cost": "7" })).unwrap();
    for use_deployments in [false, true] {
        let mut snapshot = snapshot(Some(object.clone()), Known::Absent);
        snapshot.config = Some(Arc::new(below.clone()));
        snapshot.use_deployments = use_deployments;
        let plan = plan(&snapshot, NOW);
        let workload = applied(&plan).into_iter().find(|d| d.kind == snapshot.workload()).unwrap().manifest();
        let labels = |at: &str| workload.pointer(&format!("{at}/labels")).cloned().unwrap();
        let pods = json!({
            "team": "blue", "cost": "7", "app.kubernetes.io/name": "seldon-server", "seldon-server-name": "a",
            "app.kubernetes.io/managed-by": "Helm",
        });
        assert_eq!(labels("/spec/template/metadata"), pods);
        assert_eq!(labels("/metadata")["app.kubernetes.io/managed-by"], "gantry");
        assert_eq!(labels("/metadata")["team"], "blue");
        assert_eq!(
            workload.pointer("/spec/selector"),
            Some(&json!({ "matchLabels": { "seldon-server-name": "a" } }))
        );
        for at in ["/metadata", "/spec/template/metadata"] {
            let inject = workload.pointer(&format!("{at}/annotations/sidecar.istio.io~1inject"));
            assert_eq!(inject, Some(&json!("true")), "{at}");
        }
    }
}

#[test]
fn deployment_has_a_volume_for_every_claim_of_an_installed_configuration() {
    for name in ["gantry", "mlserver", "triton"] {
        let config = Some(Arc::new(installed(name)));
        let snapshot =
            Snapshot { config, use_deployments: true, ..snapshot(Some(server(json!({}))), Known::Absent) };
        let plan = plan(&snapshot, NOW);
        let workload = applied(&plan).into_iter().find(|d| d.kind == ResourceKind::DEPLOYMENT).unwrap();
        let pod = workload.body.pointer("/spec/template/spec").unwrap();
        let names = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
        };
        let volumes = names(&pod["volumes"]);
        for container in pod["containers"].as_array().unwrap() {
            for mount in names(&container["volumeMounts"]) {
                assert!(volumes.contains(&mount), "{name}: {mount} is not in {volumes:?}");
            }
        }
    }
}

#[test]
fn volume_of_the_pod_replaces_that_of_a_claim() {
    let mut config = installed("mlserver");
    let spec = config.spec.as_mut().unwrap();
    spec.pod_spec["volumes"] = json!([{ "name": "mlserver-models", "hostPath": { "path": "/models" } }]);
    let snapshot = Snapshot {
        config: Some(Arc::new(config)),
        use_deployments: true,
        ..snapshot(Some(server(json!({}))), Known::Absent)
    };
    let plan = plan(&snapshot, NOW);
    let workload = applied(&plan).into_iter().find(|d| d.kind == ResourceKind::DEPLOYMENT).unwrap();
    let volumes = workload.body.pointer("/spec/template/spec/volumes").unwrap();
    assert_eq!(volumes, &json!([{ "name": "mlserver-models", "hostPath": { "path": "/models" } }]));
}

#[test]
fn autoscaled_replicas_are_not_applied() {
    let mut scaled = made(snapshot(Some(server(json!({ "replicas": 2 }))), Known::Present(view(2, 2))), 2);
    scaled.autoscaler = Some("hpa".into());
    let handed = plan(&scaled, NOW);
    assert_eq!(changes(&handed), ["hand over 2"], "they are given away as they are before they are left out");
    let set = applied(&handed).into_iter().find(|d| d.kind == ResourceKind::STATEFUL_SET).unwrap();
    assert_eq!(set.body.pointer("/spec/replicas"), None);
    // Services and the scheduler follow the HPA's replicas.
    let mut five = scaled.clone();
    let mut bigger = set.clone();
    bigger.body["spec"]["replicas"] = json!(5);
    five.owned = OwnedObjects::new(vec![live(&bigger, &running(5))], "u1");
    let plan_of = plan(&five, NOW);
    assert_eq!(changes(&plan_of), ["notify 5"]);
    assert!(actions(&plan_of).contains(&"apply Service a-4".to_owned()));
}

#[test]
fn scaling_request_is_granted_within_bounds() {
    let requested = |spec: Value, replicas: i32| {
        let view = ServerView { requested_replicas: Some(replicas), ..view(2, 2) };
        snapshot(Some(server(spec)), Known::Present(view))
    };
    let scaling_actions = |spec: Value, replicas: i32| actions(&plan(&requested(spec, replicas), NOW));
    let bounds = || json!({ "replicas": 2, "minReplicas": 1, "maxReplicas": 4 });
    assert_eq!(scaling_actions(bounds(), 4), ["scale 4", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 1), ["scale 1", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 2), ["acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 5), ["emit ScalingRefused", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 0), ["emit ScalingRefused", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), -1), ["acknowledge"]);
    assert_eq!(scaling_actions(json!({}), 5000), ["emit ScalingRefused", "acknowledge"]);
    // The scheduler repeats its request with each model: no event where an autoscaler sets the replicas.
    let autoscaler = || Some("hpa".to_owned());
    let workload = Snapshot { autoscaler: autoscaler(), ..requested(bounds(), 3) };
    assert_eq!(actions(&plan(&workload, NOW)), ["acknowledge"]);
    let server = Snapshot { server_autoscaler: autoscaler(), ..requested(bounds(), 3) };
    assert_eq!(actions(&plan(&server, NOW)), ["acknowledge"]);
}

#[test]
fn deleted_server_is_deregistered() {
    let gone = |object, scheduler| actions(&plan(&snapshot(object, scheduler), NOW));
    assert_eq!(gone(None, Known::Present(view(3, 3))), ["notify 0"]);
    assert_eq!(gone(None, Known::Present(view(0, 3))), [] as [&str; 0]);
    assert_eq!(gone(None, Known::Absent), [] as [&str; 0]);
    assert_eq!(gone(None, Known::Unknown("connection refused".into())), [] as [&str; 0]);
    let elsewhere =
        ServerView { namespace: Some("other".into()), manager: "operator:other".into(), ..view(3, 3) };
    assert_eq!(gone(None, Known::Present(elsewhere)), [] as [&str; 0], "it is another namespace's");
    let by_hand = ServerView { namespace: None, manager: "cli".into(), ..view(3, 3) };
    assert_eq!(gone(None, Known::Present(by_hand)), [] as [&str; 0]);
    let mut deleted = server(json!({}));
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
    assert_eq!(
        gone(Some(deleted), Known::Present(view(1, 1))),
        ["notify 0"],
        "what belongs to it is not made again"
    );
}

#[test]
fn disable_auto_update_keeps_pods_on_config_change() {
    let spec_with = |replicas: i32, image: &str| {
        let over = json!({ "containers": [{ "name": "more", "image": image }] });
        server(json!({ "replicas": replicas, "disableAutoUpdate": true, "podSpec": over }))
    };
    let first = made(snapshot(Some(spec_with(1, "more:1")), Known::Present(view(1, 1))), 1);
    let mut newer =
        config(json!({ "containers": [{ "name": "agent" }, { "name": "server", "image": "server:2" }] }));
    newer.metadata.generation = Some(2);
    let set = |snapshot: &Snapshot| {
        let plan = plan(snapshot, NOW);
        applied(&plan).into_iter().find(|d| d.kind == ResourceKind::STATEFUL_SET).cloned()
    };
    let image = |desired: &Desired| desired.body.pointer("/spec/template/spec/containers/1/image").cloned();
    let changed = Snapshot { config: Some(Arc::new(newer)), ..first.clone() };
    assert_eq!(set(&changed), None, "the configuration's change alone does nothing");
    assert_eq!(changes(&plan(&changed, NOW)), [] as [&str; 0], "and it is not deleted");
    let bigger = Snapshot { object: Some(Arc::new(spec_with(3, "more:1"))), ..changed.clone() };
    let resized = set(&bigger).unwrap();
    assert_eq!(image(&resized), Some(json!("server:1")));
    assert_eq!(resized.body["spec"]["replicas"], json!(3));
    let other = Snapshot { object: Some(Arc::new(spec_with(1, "more:2"))), ..changed };
    assert_eq!(image(&set(&other).unwrap()), Some(json!("server:2")), "a new question has a new answer");
}

#[test]
fn loaded_models_alone_are_written_once_a_second() {
    let up = made(snapshot(Some(server(json!({}))), Known::Present(view(1, 1))), 1);
    let mut object = Arc::unwrap_or_clone(up.object.clone().unwrap());
    object.status = plan(&up, NOW).status;
    let more = ServerView { loaded_models: 9, ..view(1, 1) };
    let at = |status_age: Option<Duration>, view: &ServerView| {
        let snapshot = Snapshot {
            object: Some(Arc::new(object.clone())),
            scheduler: Known::Present(view.clone()),
            status_age,
            ..up.clone()
        };
        let plan = plan(&snapshot, NOW);
        (plan.status.map(|s| s.loaded_models), plan.requeue_after)
    };
    let left = Some(Duration::from_millis(600));
    assert_eq!(at(Some(Duration::from_millis(400)), &more), (None, left));
    assert_eq!(at(Some(Duration::from_secs(2)), &more), (Some(9), None));
    assert_eq!(at(None, &more), (Some(9), None));
    let less = ServerView { available: 0, ..more };
    assert_eq!(
        at(Some(Duration::from_millis(400)), &less),
        (Some(9), None),
        "what changes the truth is written at once"
    );
}

#[test]
fn an_operator_that_starts_has_nothing_to_write() {
    let up = made(snapshot(Some(server(json!({}))), Known::Present(view(1, 1))), 1);
    let mut object = Arc::unwrap_or_clone(up.object.clone().unwrap());
    object.status = plan(&up, NOW).status;
    let silent = |seconds| Snapshot {
        object: Some(Arc::new(object.clone())),
        scheduler: Known::Unknown("the scheduler is not connected yet".into()),
        unreachable_for: Some(Duration::from_secs(seconds)),
        ..up.clone()
    };
    let starting = plan(&silent(1), NOW + Duration::from_mins(1));
    assert_eq!(starting.status, object.status);
    assert_eq!(starting.requeue_after, Some(Duration::from_secs(29)));
    let lasting = plan(&silent(31), NOW);
    assert_eq!(ready_condition(&lasting).1, "SchedulerUnreachable");
    assert_eq!(lasting.status.unwrap().loaded_models, 2, "what is not known is left as it was");
}

#[test]
fn a_changed_config_map_replaces_the_pods_that_read_it() {
    let reads = json!({ "containers": [{ "name": "agent", "envFrom": [{ "configMapRef": { "name": "seldon-tracing" } }] }] });
    let of = |digest: &str, other: &str| {
        let maps = BTreeMap::from([
            ("seldon-tracing".into(), digest.to_owned()),
            ("seldon-kafka".into(), other.to_owned()),
        ]);
        let snapshot = Snapshot {
            config: Some(Arc::new(config(reads.clone()))),
            config_maps: maps,
            ..snapshot(Some(server(json!({}))), Known::Absent)
        };
        let plan = plan(&snapshot, NOW);
        let set = applied(&plan).into_iter().find(|d| d.kind == ResourceKind::STATEFUL_SET).unwrap();
        set.body.pointer("/spec/template/metadata/annotations").cloned()
    };
    assert_ne!(of("1", "1"), of("2", "1"));
    assert_eq!(of("1", "1"), of("1", "2"));
}

/// `toServices` in Seldon's `operator/controllers/reconcilers/server/service_reconciler.go`; the keys are in
/// `operator/pkg/constants/constants.go`.
#[test]
fn services_of_replicas_have_the_labels_selector_and_ports_of_seldon() {
    let plan = plan(&snapshot(Some(server(json!({ "replicas": 2 }))), Known::Absent), NOW);
    for name in ["a-0", "a-1"] {
        let service = applied(&plan)
            .into_iter()
            .find(|d| d.kind == ResourceKind::SERVICE && d.key.name == name)
            .unwrap();
        let label = |key: &str| service.body["metadata"]["labels"][key].clone();
        assert_eq!(label("seldon-server-replica"), "a", "ServerReplicaLabelKey: shared by all replicas");
        assert_eq!(label("seldon-server-replica-name"), name, "ServerReplicaNameLabelKey: of one replica");
        let spec = &service.body["spec"];
        assert_eq!(
            spec["selector"],
            json!({ "statefulset.kubernetes.io/pod-name": name }),
            "StatefulSetPodLabel"
        );
        assert_eq!(spec["clusterIP"], "None");
        let ports: Vec<String> = spec["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| format!("{}={}", port["name"].as_str().unwrap(), port["port"]))
            .collect();
        assert_eq!(ports, ["http=9000", "grpc=9500", "agent=9005"], "Default…PortName and Default…Port");
    }
}
