//! Properties of every plan.

use super::*;

fn snapshots() -> impl Strategy<Value = Snapshot> {
    let over = (0..4usize, any::<bool>(), prop::option::of(0..3i32));
    let child = (0..5usize, 0..4usize, any::<bool>()).prop_map(|(name, kind, ours)| {
        let name = ["seldon-scheduler", "seldon-gateway", "seldon-mesh", "old", "seldon-tracing"][name];
        let kind = [ResourceKind::SERVICE, ResourceKind::STATEFUL_SET, ResourceKind::DEPLOYMENT, ResourceKind::CONFIG_MAP][kind];
        let owner = if ours { "u1" } else { "u2" };
        let reference = json!([{ "apiVersion": "v1", "kind": "SeldonRuntime", "name": "x", "uid": owner, "controller": true }]);
        live(&Desired::new(kind, Key::new("ml", name), json!({ "metadata": { "ownerReferences": reference } })))
    });
    (prop::collection::vec(over, 0..3), prop::collection::vec(child, 0..8), any::<bool>(), 0..3usize, any::<bool>()).prop_map(
        |(overrides, owned, keeps, object, config)| {
            let names = ["seldon-scheduler", "seldon-gateway", "my-helper", "unknown"];
            let overrides: Vec<Value> = overrides
                .into_iter()
                .map(|(name, disable, replicas)| json!({ "name": names[name], "disable": disable, "replicas": replicas }))
                .collect();
            let mut snapshot = snapshot(json!({ "overrides": overrides, "disableAutoUpdate": keeps }));
            snapshot.owned = OwnedObjects::new(owned, "u1");
            if !config {
                snapshot.config = None;
            }
            match object {
                0 => Snapshot { object: None, ..snapshot },
                1 => with_object(&snapshot, |o| {
                    o.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
                }),
                _ => snapshot,
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
            }
        }
    }

    #[test]
    fn missing_config_deletes_nothing(snapshot in snapshots()) {
        let unknown = Snapshot { config: None, ..snapshot };
        prop_assert_eq!(deletes(&plan(&unknown, NOW)), Vec::<String>::new());
    }

    #[test]
    fn applied_objects_are_not_deleted(snapshot in snapshots()) {
        let second = plan(&applied_any(snapshot), NOW);
        prop_assert_eq!(deletes(&second), Vec::<String>::new());
    }
}

fn applied_any(snapshot: Snapshot) -> Snapshot {
    if snapshot.object.is_some() { made(snapshot) } else { snapshot }
}
