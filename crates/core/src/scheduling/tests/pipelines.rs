//! Pipelines: versions, readiness and routes.

use super::*;

/// A replica with the given models available.
fn served(models: &[&str]) -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 1000);
    for model in models {
        harness.load(definition(model, 1, 1)).unwrap();
    }
    harness.quiesce();
    harness
}

fn executed(harness: &Harness, name: &str) -> Option<u32> {
    harness.state.pipelines()[name].routed().map(|v| v.number)
}

#[test]
fn pipeline_is_ready_when_its_models_are_and_gateways_know_it() {
    let mut harness = served(&["a", "b"]);
    let effects = harness.load_pipeline(pipeline("p", 1, &["a", "b"])).unwrap();
    assert!(effects.store_pipelines.contains("p") && effects.pipeline_routes.contains("p"));
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, status.models_ready), (PipelineState::Creating, false));
    assert_eq!(status.gateway_reason, "a gateway has not acknowledged the route");
    let effects = {
        let sequence = harness.state.sequence();
        let acknowledged =
            Command::RoutesAcknowledged { applied: sequence, drained: 0, undrained: BTreeSet::new() };
        harness.apply(acknowledged).unwrap()
    };
    assert!(effects.pipelines.contains("p"));
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, status.models_ready), (PipelineState::Ready, true));
    assert_eq!(status.reason, "created pipeline");
}

#[test]
fn pipeline_before_its_models_is_created_and_names_the_first_missing_step() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a", "b", "c"])).unwrap();
    harness.acknowledge_routes();
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, status.models_ready), (PipelineState::Ready, false));
    assert_eq!(status.reason, "step b: model b does not exist");
    assert_eq!(executed(&harness, "p"), None, "it was never ready");
    let mut b = definition("b", 1, 1);
    b.needs.requirements = vec!["lightgbm".into()];
    harness.load(b).unwrap();
    let reason = harness.pipeline_status("p").reason;
    assert!(reason.starts_with("step b: model b is not available: no server offers lightgbm"), "{reason}");
    harness.load(definition("b", 1, 1)).unwrap();
    harness.load(definition("c", 1, 1)).unwrap();
    harness.quiesce();
    assert!(harness.pipeline_status("p").models_ready);
    assert_eq!(executed(&harness, "p"), Some(1));
}

#[test]
fn deleted_model_makes_the_pipeline_not_ready_and_keeps_it_executed() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    let effects = harness.apply(unload("a")).unwrap();
    assert!(effects.pipelines.contains("p") && effects.pipeline_routes.contains("p"));
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, status.models_ready), (PipelineState::Ready, false));
    assert_eq!(status.reason, "step a: model a does not exist");
    assert_eq!(executed(&harness, "p"), Some(1));
}

#[test]
fn change_of_a_model_touches_only_its_dependants() {
    let mut harness = served(&["a", "b"]);
    for (name, model) in [("p", "a"), ("q", "b"), ("r", "a")] {
        harness.load_pipeline(pipeline(name, 1, &[model])).unwrap();
    }
    harness.apply(start(experiment("e", Resource::Pipeline, &["q"]))).unwrap();
    harness.apply(start(experiment("f", Resource::Pipeline, &["r"]))).unwrap();
    harness.quiesce();
    let effects = harness.apply(unload("a")).unwrap();
    let names = |names: &[&str]| names.iter().map(|n| Arc::from(*n)).collect::<BTreeSet<Arc<str>>>();
    assert_eq!(effects.pipelines, names(&["p", "r"]));
    assert_eq!(effects.experiments, names(&["f"]));
}

#[test]
fn scaled_to_zero_model_counts_as_ready() {
    let mut harness = served(&[]);
    harness
        .load(Definition { scaling: Scaling { replicas: 1, min: 0, max: 2 }, ..definition("a", 1, 1) })
        .unwrap();
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    harness.wait(2_000_000);
    harness.quiesce();
    assert_eq!(harness.version_status("a").state, ModelState::ScaledDown);
    assert!(harness.pipeline_status("p").models_ready, "a request wakes the model");
}

#[test]
fn older_version_is_executed_until_the_newer_is_ready() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    harness.load_pipeline(pipeline("p", 2, &["a", "b"])).unwrap();
    harness.quiesce();
    assert_eq!(executed(&harness, "p"), Some(1));
    let status = harness.pipeline_status("p");
    assert_eq!(status.state, PipelineState::Creating);
    assert_eq!(status.reason, "step b: model b does not exist; version 1 serves");
    let serving = harness.state.pipelines()["p"].clone();
    assert_eq!(serving.version_status(&serving.versions[0]).state, PipelineState::Ready);
    // A third version replaces the one that was never ready.
    harness.load_pipeline(pipeline("p", 3, &["a", "c"])).unwrap();
    let numbers = |harness: &Harness| -> Vec<u32> {
        harness.state.pipelines()["p"].versions.iter().map(|v| v.number).collect()
    };
    assert_eq!(numbers(&harness), [1, 3]);
    harness.load(definition("c", 1, 1)).unwrap();
    let id = id("s", 0);
    harness.work(&id, Outcome::Success);
    assert_eq!(executed(&harness, "p"), Some(3));
    let switching = harness.state.pipelines()["p"].clone();
    assert_eq!(numbers(&harness), [1, 3], "until every gateway executes the new one");
    assert_eq!(switching.version_status(&switching.versions[0]).state, PipelineState::Terminating);
    harness.quiesce();
    assert_eq!(numbers(&harness), [3]);
    assert!(harness.pipeline_status("p").models_ready);
}

#[test]
fn repeated_load_is_a_no_op_and_a_change_is_a_version() {
    let mut harness = served(&["a"]);
    let load = |harness: &mut Harness, spec, generation, replaces| {
        let definition = PipelineDefinition { generation, replaces, ..pipeline("p", spec, &["a"]) };
        harness.load_pipeline(definition).unwrap();
        harness.quiesce();
        let latest = harness.state.pipelines()["p"].latest().cloned().unwrap();
        (latest.number, latest.definition.generation, latest.uid.to_string())
    };
    assert_eq!(load(&mut harness, 1, Some(1), None), (1, Some(1), "uid-1".into()));
    assert_eq!(load(&mut harness, 1, Some(1), None), (1, Some(1), "uid-1".into()), "repeated");
    assert_eq!(load(&mut harness, 1, Some(2), None), (1, Some(2), "uid-1".into()), "equal spec");
    assert_eq!(load(&mut harness, 2, Some(2), None), (1, Some(2), "uid-1".into()), "same generation");
    assert_eq!(load(&mut harness, 2, Some(3), None), (2, Some(3), "uid-5".into()));
    assert_eq!(load(&mut harness, 3, Some(3), Some(3)), (3, Some(3), "uid-6".into()), "a recreated object");
    let late = PipelineDefinition { generation: Some(2), replaces: Some(1), ..pipeline("p", 2, &["a"]) };
    let refused = Rejection::NewerGeneration { kind: Kind::Pipeline, name: "p".into(), known: 3, sent: 2 };
    assert_eq!(harness.load_pipeline(late), Err(refused));
}

#[test]
fn generation_without_a_new_version_is_reported() {
    let mut harness = served(&["a"]);
    let mut load = |generation| {
        let definition = PipelineDefinition { generation: Some(generation), ..pipeline("p", 1, &["a"]) };
        let effects = harness.load_pipeline(definition).unwrap();
        harness.quiesce();
        (effects.pipelines.contains("p"), harness.state.pipelines()["p"].latest().unwrap().number)
    };
    assert_eq!([load(1), load(2), load(2)], [(true, 1), (true, 1), (false, 1)]);
}

#[test]
fn kept_payloads_are_published_without_a_version() {
    let mut harness = served(&["a"]);
    let mut load = |keep_payloads, content| {
        let definition = PipelineDefinition {
            keep_payloads,
            content: Digest(content),
            generation: Some(1),
            ..pipeline("p", 1, &["a"])
        };
        let effects = harness.load_pipeline(definition).unwrap();
        harness.quiesce();
        let latest = harness.state.pipelines()["p"].latest().cloned().unwrap();
        assert_eq!((latest.number, latest.definition.keep_payloads), (1, keep_payloads));
        assert!(harness.pipeline_status("p").models_ready);
        effects.pipeline_routes.contains("p")
    };
    assert!(load(false, 1));
    assert!(load(true, 2), "gateways receive the setting");
    assert!(!load(true, 2));
    assert!(load(false, 1));
}

#[test]
fn deleted_pipeline_terminates_when_gateways_know_and_is_forgotten_later() {
    let mut harness = served(&["a"]);
    assert_eq!(
        harness.apply(unload_pipeline("p")).unwrap_err().to_string(),
        "pipeline p not found: `gantry get pipelines` lists all"
    );
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    harness.apply(unload_pipeline("p")).unwrap();
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Terminating);
    let refused = harness.load_pipeline(pipeline("p", 2, &["a"])).unwrap_err();
    assert_eq!(refused, Rejection::PipelineTerminating("p".into()));
    harness.quiesce();
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Terminated);
    harness.apply(unload_pipeline("p")).unwrap();
    harness.load_pipeline(pipeline("p", 2, &["a"])).unwrap();
    harness.quiesce();
    assert!(harness.pipeline_status("p").models_ready);
    harness.apply(unload_pipeline("p")).unwrap();
    harness.quiesce();
    harness.wait(90_000_000);
    assert!(harness.state.pipelines().is_empty(), "the tombstone expires");
}

#[test]
fn change_by_another_owner_is_rejected_until_adopted() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    let theirs = || Owner::File("/p.yaml".into());
    let unload = || Command::UnloadPipeline { name: "p".into(), by: theirs() };
    assert_eq!(
        harness.apply(unload()).unwrap_err().to_string(),
        "p belongs to the command line: delete it with gantry delete pipeline/p.\nTo take it over on purpose: gantry \
         adopt pipeline/p"
    );
    harness.apply(Command::AdoptPipeline { name: "p".into(), by: theirs() }).unwrap();
    let refused = harness.load_pipeline(pipeline("p", 2, &["a"])).unwrap_err().to_string();
    assert!(refused.starts_with("p belongs to the file /p.yaml: change it there."), "{refused}");
    harness.apply(unload()).unwrap();
}

#[test]
fn failure_of_a_gateway_is_the_status_of_its_version_only() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.quiesce();
    let report = |uid: &str, failure: Option<&str>| Command::PipelineReported {
        name: "p".into(),
        uid: uid.into(),
        failure: failure.map(str::to_owned),
    };
    harness.apply(report("another", Some("late"))).unwrap();
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Ready);
    harness.apply(report("uid-1", Some("unknown join"))).unwrap();
    let status = harness.pipeline_status("p");
    assert_eq!((status.state, &*status.reason), (PipelineState::Failed, "unknown join"));
    harness.apply(report("uid-1", None)).unwrap();
    assert_eq!(harness.pipeline_status("p").state, PipelineState::Ready);
}

#[test]
fn restart_keeps_the_executed_version_and_changes_no_status() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.load_pipeline(pipeline("unready", 1, &["x"])).unwrap();
    harness.apply(start(experiment("e", Resource::Pipeline, &["p"]))).unwrap();
    harness.quiesce();
    harness.load_pipeline(pipeline("p", 2, &["a", "b"])).unwrap();
    let shown = |harness: &Harness| {
        let of = |name| (harness.pipeline_status(name), executed(harness, name));
        (of("p"), of("unready"), harness.state.experiments()["e"].status())
    };
    let before = shown(&harness);
    assert!(before.2.active);
    harness.restart();
    assert_eq!(shown(&harness), before);
    assert_eq!(executed(&harness, "p"), Some(1));
}
