//! What holds in every situation.

use super::*;

fn worlds() -> impl Strategy<Value = Snapshot> {
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
            let names = ["seldon-scheduler", "seldon-gateway", "my-helper", "nobody"];
            let overrides: Vec<Value> = overrides
                .into_iter()
                .map(|(name, disable, replicas)| json!({ "name": names[name], "disable": disable, "replicas": replicas }))
                .collect();
            let mut caches = snapshot(json!({ "overrides": overrides, "disableAutoUpdate": keeps }));
            caches.family = Family::new(owned, "u1");
            if !config {
                caches.config = None;
            }
            match object {
                0 => Snapshot { object: None, ..caches },
                1 => with_object(&caches, |o| {
                    o.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
                }),
                _ => caches,
            }
        },
    )
}

proptest! {
    #[test]
    fn plan_is_deterministic(snapshot in worlds()) {
        prop_assert_eq!(plan(&snapshot, NOW), plan(&snapshot, NOW));
    }

    #[test]
    fn only_owned_objects_are_touched(snapshot in worlds()) {
        for action in plan(&snapshot, NOW).actions {
            if let Action::Delete(target) = action {
                let there = snapshot.family.get(target.kind, &target.key.name).unwrap();
                prop_assert_eq!(there.controller().map(|(_, uid)| uid), Some("u1"));
                prop_assert_eq!(there.metadata.uid.as_deref(), Some(target.uid.as_str()));
            }
        }
    }

    #[test]
    fn without_a_configuration_nothing_is_destroyed(snapshot in worlds()) {
        let unknown = Snapshot { config: None, ..snapshot };
        prop_assert_eq!(deletes(&plan(&unknown, NOW)), Vec::<String>::new());
    }

    #[test]
    fn what_is_made_is_not_deleted_again(snapshot in worlds()) {
        let second = plan(&made_any(snapshot), NOW);
        prop_assert_eq!(deletes(&second), Vec::<String>::new());
    }
}

/// As [`made`], also where there is no object.
fn made_any(snapshot: Snapshot) -> Snapshot {
    if snapshot.object.is_some() { made(snapshot) } else { snapshot }
}
