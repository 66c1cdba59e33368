//! Properties of every plan.

use super::*;

fn snapshots() -> impl Strategy<Value = Snapshot> {
    let spec = (0..4i32, prop::option::of(0..4i32), prop::option::of(0..4i32), any::<bool>()).prop_map(
        |(replicas, min, max, keeps)| {
            json!({ "replicas": replicas, "minReplicas": min, "maxReplicas": max, "disableAutoUpdate": keeps })
        },
    );
    let child = (0..6usize, 0..3usize, any::<bool>()).prop_map(|(name, kind, ours)| {
        let name = ["a", "a-0", "a-1", "a-7", "b", "b-0"][name];
        let kind =
            [ResourceKind::SERVICE, ResourceKind::STATEFUL_SET, ResourceKind::POD_DISRUPTION_BUDGET][kind];
        let owner = if ours { "u1" } else { "u2" };
        let reference =
            json!([{ "apiVersion": "v1", "kind": "Server", "name": "x", "uid": owner, "controller": true }]);
        let desired =
            Desired::new(kind, Key::new("ml", name), json!({ "metadata": { "ownerReferences": reference } }));
        (live(&desired, &running(1)), ours)
    });
    let scheduler = (0..4usize, 0..4i32, 0..4i32, prop::option::of(-1..6i32)).prop_map(
        |(known, expected, available, requested_replicas)| match known {
            0 => Known::Unknown("connection refused".into()),
            1 => Known::Absent,
            _ => Known::Present(ServerView { requested_replicas, ..view(expected, available) }),
        },
    );
    (spec, prop::collection::vec(child, 0..6), scheduler, any::<bool>(), any::<bool>(), 0..3usize).prop_map(
        |(spec, owned, scheduler, deployments, autoscaled, object)| {
            let mut server = server(spec);
            if object == 1 {
                server.metadata.deletion_timestamp =
                    serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
            }
            let all = owned.into_iter().map(|(child, _)| child);
            Snapshot {
                owned: OwnedObjects::new(all, "u1"),
                use_deployments: deployments,
                autoscaler: autoscaled.then(|| "hpa".to_owned()),
                ..snapshot((object != 2).then_some(server), scheduler)
            }
        },
    )
}

proptest! {
    #[test]
    fn plan_is_deterministic(snapshot in snapshots()) {
        prop_assert_eq!(plan(&snapshot, NOW), plan(&snapshot, NOW));
    }

    #[test]
    fn only_owned_objects_are_touched(snapshot in snapshots()) {
        for action in plan(&snapshot, NOW).actions {
            if let Action::Cluster(ClusterAction::Delete(target)) = action {
                let there = snapshot.owned.get(target.kind, &target.key.name).unwrap();
                prop_assert_eq!(there.controller().map(|(_, uid)| uid), Some("u1"));
                prop_assert_eq!(there.metadata.uid.as_deref(), Some(target.uid.as_str()));
                prop_assert!(!target.resource_version.is_empty());
            }
        }
    }

    #[test]
    fn unknown_is_not_absent(snapshot in snapshots()) {
        let unknown = Snapshot { scheduler: Known::Unknown("connection refused".into()), ..snapshot.clone() };
        let plan_of = plan(&unknown, NOW);
        for action in &plan_of.actions {
            prop_assert!(!matches!(action, Action::Scheduler(SchedulerAction::NotifyServer(_)) | Action::Cluster(ClusterAction::Scale(_))), "{:?}", action);
        }
        let known = Snapshot { scheduler: Known::Present(view(1, 1)), ..snapshot };
        let deletes = |plan: &Plan<ServerStatus>| {
            plan.actions.iter().filter(|a| matches!(a, Action::Cluster(ClusterAction::Delete(_)))).cloned().collect::<Vec<_>>()
        };
        prop_assert_eq!(deletes(&plan_of), deletes(&plan(&known, NOW)));
    }

    #[test]
    fn ready_is_true_only_when_pods_and_scheduler_are_ready(snapshot in snapshots()) {
        let Some(status) = plan(&snapshot, NOW).status else { return Ok(()) };
        let object = snapshot.object.as_deref().unwrap();
        prop_assert_eq!(status.observed_generation, Some(object.generation()));
        if condition_status(&status.conditions, READY) == Some(ConditionStatus::True) {
            let workload = snapshot.owned.get(snapshot.workload(), "a").unwrap();
            let wanted = object.spec.as_ref().unwrap().scaling().unwrap().replicas;
            let enough = snapshot.autoscaler.is_some() || workload.number("/status/readyReplicas") >= i64::from(wanted);
            prop_assert!(enough);
        }
    }

    #[test]
    fn plan_reaches_fixpoint(snapshot in snapshots()) {
        // After at most two applied plans nothing is left to delete or to hand over.
        let mut snapshot = Snapshot { scheduler: Known::Absent, ..snapshot };
        let mut last = plan(&snapshot, NOW);
        for _ in 0..2 {
            let replicas = snapshot.owned.get(snapshot.workload(), "a").map(|c| c.data["spec"]["replicas"].clone());
            let all = applied(&last).into_iter().map(|desired| {
                let mut desired = desired.clone();
                if let Some(spec) = desired.body.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.entry("replicas").or_insert_with(|| replicas.clone().unwrap_or(json!(1)));
                }
                live(&desired, &running(1))
            });
            snapshot.owned = OwnedObjects::new(all.collect::<Vec<_>>(), "u1");
            last = plan(&snapshot, NOW);
        }
        let is_open = |action: &&Action| {
            matches!(action, Action::Cluster(ClusterAction::Delete(_) | ClusterAction::HandOverReplicas(_)))
        };
        prop_assert_eq!(last.actions.iter().filter(is_open).count(), 0);
    }
}
