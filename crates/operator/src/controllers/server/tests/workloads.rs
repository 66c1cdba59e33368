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
            "apply Service a",
            "apply Service a-0",
            "apply StatefulSet a",
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
    assert_eq!(done, ["apply Service a", "apply Deployment a", "delete Service a-0", "delete StatefulSet a"]);
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
    assert_eq!(actions(&foreign), ["apply Service a", "apply StatefulSet a"]);
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
    let scaling_actions = |spec: Value, requested: i32, autoscaler: Option<&str>| {
        let view = ServerView { requested_replicas: Some(requested), ..view(2, 2) };
        let snapshot = snapshot(Some(server(spec)), Known::Present(view));
        actions(&plan(&Snapshot { autoscaler: autoscaler.map(str::to_owned), ..snapshot }, NOW))
    };
    let bounds = || json!({ "replicas": 2, "minReplicas": 1, "maxReplicas": 4 });
    assert_eq!(scaling_actions(bounds(), 4, None), ["scale 4", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 1, None), ["scale 1", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 2, None), ["acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 5, None), ["emit ScalingRefused", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 0, None), ["emit ScalingRefused", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), -1, None), ["acknowledge"]);
    assert_eq!(scaling_actions(json!({}), 5000, None), ["emit ScalingRefused", "acknowledge"]);
    assert_eq!(scaling_actions(bounds(), 3, Some("hpa")), ["emit ScalingRefused", "acknowledge"]);
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
