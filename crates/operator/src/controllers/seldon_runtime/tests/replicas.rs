//! Limits of replicas.

use super::*;

fn components(names: &[&str]) -> Arc<Custom<SeldonConfig>> {
    let component = |name: &&str| json!({ "name": name, "podSpec": { "containers": [{ "name": "c" }] } });
    Arc::new(config(json!({ "components": names.iter().map(component).collect::<Vec<_>>() })))
}

fn events(plan: &Plan<PlainStatus>) -> Vec<&'static str> {
    let reason = |action: &Action| match action {
        Action::Cluster(ClusterAction::Emit(event)) => Some(event.reason),
        _ => None,
    };
    plan.actions.iter().filter_map(reason).collect()
}

const ALL: [&str; 4] =
    ["seldon-dataflow-engine", "seldon-pipelinegateway", "seldon-modelgateway", "seldon-gateway"];

/// The runtime with so many replicas of every component.
fn asked(replicas: u32, counts: Counts, shards: Option<i32>) -> Snapshot {
    let overrides: Vec<Value> =
        ALL.iter().map(|name| json!({ "name": name, "replicas": replicas })).collect();
    let scaling = json!({ "scalingConfig": { "pipelines": { "maxShardCountMultiplier": shards } } });
    let spec = json!({ "overrides": overrides, "config": scaling });
    Snapshot { config: Some(components(&ALL)), counts, ..snapshot(spec) }
}

fn replicas(plan: &Plan<PlainStatus>) -> Vec<i64> {
    let of = |name: &&str| {
        let deployment = find(plan, ResourceKind::DEPLOYMENT, name).unwrap();
        deployment.body.pointer("/spec/replicas").and_then(Value::as_i64).unwrap()
    };
    ALL.iter().map(of).collect()
}

#[test]
fn replicas_of_seldons_gateways_are_limited_by_their_shards() {
    let counts = |models, pipelines| Counts { models, pipelines };
    for (requested, counts, shards, expected) in [
        (3, counts(0, 0), None, [1, 1, 1, 3]),
        (3, counts(5, 2), None, [2, 2, 3, 3]),
        (9, counts(5, 2), Some(3), [6, 6, 9, 9]),
        (500, counts(1000, 300), Some(2), [200, 200, 200, 500]),
        (2, counts(5, 2), Some(0), [1, 1, 1, 2]),
        (2, counts(5, 2), Some(-1), [2, 2, 2, 2]),
    ] {
        let plan = plan(&asked(requested, counts, shards), NOW);
        assert_eq!(replicas(&plan), expected, "{requested} {counts:?} {shards:?}");
    }
}

#[test]
fn limited_replicas_are_an_event_once() {
    let counts = Counts { models: 5, pipelines: 2 };
    let new = asked(3, counts, None);
    let adjusted = ["DataflowEngineReplicasAdjusted", "PipelineGatewayReplicasAdjusted"];
    assert_eq!(events(&plan(&new, NOW)), adjusted);
    let applied = made(new);
    assert_eq!(events(&plan(&applied, NOW)), [] as [&str; 0]);
    // Again when the limit changes.
    let fewer = Snapshot { counts: Counts { models: 1, pipelines: 2 }, ..applied };
    assert_eq!(events(&plan(&fewer, NOW)), ["ModelGatewayReplicasAdjusted"]);
    assert_eq!(events(&plan(&asked(2, counts, None), NOW)), [] as [&str; 0]);
}

#[test]
fn number_of_consumers_limits_a_gateway() {
    for (value, expected) in [("2", 2), ("0", 5), ("many", 5)] {
        let mut config = Arc::unwrap_or_clone(components(&["seldon-modelgateway"]));
        let env = json!([{ "name": "MODELGATEWAY_MAX_NUM_CONSUMERS", "value": value }]);
        let pod = json!({ "containers": [{ "name": "c", "env": env }] });
        config.spec.as_mut().unwrap().components[0].pod_spec = Some(pod);
        let spec = json!({ "overrides": [{ "name": "seldon-modelgateway", "replicas": 5 }] });
        let counts = Counts { models: 9, pipelines: 0 };
        let plan = plan(&Snapshot { config: Some(Arc::new(config)), counts, ..snapshot(spec) }, NOW);
        let deployment = find(&plan, ResourceKind::DEPLOYMENT, "seldon-modelgateway").unwrap();
        assert_eq!(deployment.body.pointer("/spec/replicas"), Some(&json!(expected)), "{value}");
    }
}

#[test]
fn autoscaled_gateway_is_not_limited() {
    let mut scaled = made(asked(3, Counts::default(), None));
    scaled.autoscalers =
        BTreeMap::from([(("Deployment".into(), "seldon-modelgateway".into()), "hpa".into())]);
    let mut owned: Vec<(ResourceKind, Arc<OwnedObject>)> =
        applied(&plan(&scaled, NOW)).into_iter().map(live).collect();
    for (_, object) in
        owned.iter_mut().filter(|(_, object)| object.metadata.name.as_deref() == Some("seldon-modelgateway"))
    {
        Arc::make_mut(object).data["spec"]["replicas"] = json!(3);
    }
    scaled.owned = OwnedObjects::new(owned, "u1");
    let plan_of = plan(&scaled, NOW);
    assert!(!events(&plan_of).contains(&"ModelGatewayReplicasAdjusted"), "{:?}", events(&plan_of));
    let gateway = find(&plan_of, ResourceKind::DEPLOYMENT, "seldon-modelgateway").unwrap();
    assert_eq!(gateway.body.pointer("/spec/replicas"), None);
}
