use super::*;
use crate::scheduling::dry_run;

fn ask(definition: Definition) -> Command {
    Command::LoadModel { definition: Box::new(definition), by: Owner::Cli }
}

fn one(harness: &Harness, command: Command) -> PlannedChange {
    let mut changes = dry_run::dry_run(harness.state.clone(), vec![command], harness.now);
    assert_eq!(changes.len(), 1);
    changes.remove(0)
}

fn served() -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("builtin", 0), 100);
    harness.load(definition("fraud", 1, 1)).unwrap();
    harness.quiesce();
    harness
}

#[test]
fn dry_run_predicts_model_changes() {
    let harness = served();
    let with = |name: &str, spec, change: fn(&mut Definition)| {
        let mut d = definition(name, spec, 1);
        change(&mut d);
        ask(d)
    };
    for (command, action, versions, messages, placed) in [
        (
            with("fraud", 2, |_| ()),
            Action::Update,
            (Some(1), Some(2)),
            vec!["would load on builtin beside version 1, then take its traffic"],
            true,
        ),
        (with("new", 1, |_| ()), Action::Create, (None, Some(1)), vec!["would load on builtin"], true),
        (with("fraud", 1, |_| ()), Action::Unchanged, (Some(1), Some(1)), vec!["unchanged"], true),
        (
            with("fraud", 1, |d| d.scaling.replicas = 0),
            Action::Adjust,
            (Some(1), Some(1)),
            vec!["would not be served: no replica is desired", "would scale from 1 to 0 replicas"],
            true,
        ),
        (
            with("new", 1, |d| d.needs.requirements = vec!["lightgbm".into()]),
            Action::Create,
            (None, Some(1)),
            vec!["no server offers lightgbm; builtin offers onnx, xgboost"],
            false,
        ),
        (
            with("fraud", 2, |d| d.needs.memory = 6_000_000_000),
            Action::Update,
            (Some(1), Some(2)),
            vec!["needs 6.0 GB, most free is 90 B on builtin-0", "version 1 would continue to serve"],
            false,
        ),
        (
            unload("fraud"),
            Action::Delete,
            (Some(1), None),
            vec!["would be unloaded from builtin-0 after its last request"],
            false,
        ),
    ] {
        let change = one(&harness, command);
        assert_eq!(change.effects, messages);
        assert_eq!((change.action, change.placed), (action, placed), "{messages:?}");
        assert_eq!((change.from_version, change.to_version), versions, "{messages:?}");
    }
}

#[test]
fn dry_run_applies_commands_in_order_to_a_copy() {
    let harness = served();
    let before = harness.state.clone();
    let commands = vec![ask(definition("a", 1, 1)), ask(definition("a", 2, 1)), unload("a"), Command::Tick];
    let changes = dry_run::dry_run(harness.state.clone(), commands, harness.now);
    let actions: Vec<Action> = changes.iter().map(|c| c.action).collect();
    assert_eq!(actions, [Action::Create, Action::Update, Action::Delete]);
    assert_eq!(before.models(), harness.state.models());
    assert_eq!(before.sequence(), harness.state.sequence());
}

#[test]
fn dry_run_reports_rejection_and_over_commit() {
    let mut harness = served();
    harness
        .apply(Command::AdoptModel { name: "fraud".into(), by: Owner::File("/m/fraud.yaml".into()) })
        .unwrap();
    let change = one(&harness, unload("fraud"));
    assert_eq!(change.action, Action::Reject);
    assert_eq!(change.effects[0], "fraud belongs to the file /m/fraud.yaml: remove it there.");
    let over = Replica { over_commit: 100, memory_total: 200, memory_free: 200, ..replica(200) };
    harness.agents.insert(id("big", 0), Agent { memory: 200, connected: true, ..Agent::default() });
    harness
        .apply(Command::ReplicaJoined { id: id("big", 0), replica: over, shared: true, loaded: vec![] })
        .unwrap();
    let mut d = definition("huge", 1, 1);
    d.needs.memory = 150;
    let change = one(&harness, ask(d));
    assert_eq!(
        change.effects,
        [
            "would load on big",
            "big-0 would be over-committed by 50 B: least recently used models are evicted"
        ]
    );
}

#[test]
fn dry_run_predicts_server_changes() {
    let mut harness = served();
    let change = one(&harness, expect("builtin", 0, 0, 0));
    assert_eq!(change.action, Action::Delete);
    assert_eq!(change.effects, ["1 model could not be placed: fraud"]);
    harness.join(&id("other", 0), 100);
    let change = one(&harness, expect("builtin", 0, 0, 0));
    assert_eq!(change.effects, ["1 model would move to another server first"]);
    let change = one(&harness, expect("new", 2, 0, 0));
    assert_eq!((change.action, change.placed), (Action::Create, false));
    assert_eq!(change.effects, ["would wait for 2 of 2 replicas"]);
}

#[test]
fn dry_run_predicts_changes_of_pipelines_and_experiments() {
    let mut harness = served();
    harness.load_pipeline(pipeline("p", 1, &["fraud"])).unwrap();
    harness.apply(start(experiment("e", Resource::Model, &["fraud"]))).unwrap();
    harness.quiesce();
    let load = |definition: PipelineDefinition| Command::LoadPipeline {
        definition: Box::new(definition),
        uid: "x".into(),
        by: Owner::Cli,
    };
    for (command, action, effects, placed) in [
        (load(pipeline("q", 1, &["fraud"])), Action::Create, vec!["would serve at once"], true),
        (
            load(pipeline("p", 2, &["fraud", "x"])),
            Action::Update,
            vec!["would wait: step x: model x does not exist", "version 1 would continue to serve"],
            false,
        ),
        (
            load(pipeline("p", 2, &["fraud"])),
            Action::Update,
            vec!["would take the traffic of version 1"],
            true,
        ),
        (load(pipeline("p", 1, &["fraud"])), Action::Unchanged, vec!["unchanged"], true),
        (unload_pipeline("p"), Action::Delete, vec!["would be removed after its last request"], false),
        (
            unload_pipeline("x"),
            Action::Reject,
            vec!["pipeline x not found: `gantry get pipelines` lists all"],
            false,
        ),
        (
            start(experiment("f", Resource::Pipeline, &["p"])),
            Action::Create,
            vec!["would split traffic at once"],
            true,
        ),
        (
            start(experiment("e", Resource::Model, &["fraud", "x"])),
            Action::Update,
            vec!["would not be active: candidate x: model x does not exist"],
            false,
        ),
        (start(experiment("e", Resource::Model, &["fraud"])), Action::Unchanged, vec!["unchanged"], true),
        (stop("e"), Action::Delete, vec!["would stop; its candidates stay"], false),
    ] {
        let change = one(&harness, command);
        assert_eq!(change.effects, effects);
        assert_eq!((change.action, change.placed), (action, placed), "{effects:?}");
    }
}
