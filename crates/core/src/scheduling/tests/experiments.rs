//! Experiments: validation, activity and ownership.

use super::*;

fn served(models: &[&str]) -> Harness {
    let mut harness = Harness::new();
    harness.join(&id("s", 0), 1000);
    for model in models {
        harness.load(definition(model, 1, 1)).unwrap();
    }
    harness.quiesce();
    harness
}

type Change = fn(&mut ExperimentDefinition);

fn status(harness: &Harness, name: &str) -> ExperimentStatus {
    harness.state.experiments()[name].status()
}

#[test]
fn experiment_is_active_when_candidates_serve_and_gateways_know_it() {
    let mut harness = served(&["a"]);
    let mut e = experiment("e", Resource::Model, &["a", "b"]);
    e.mirror = Some(("c".into(), 10));
    harness.apply(start(e)).unwrap();
    harness.acknowledge_routes();
    let shown = status(&harness, "e");
    assert_eq!((shown.active, shown.candidates_ready, shown.mirror_ready), (false, false, false));
    assert_eq!(shown.description, "candidate b: model b does not exist");
    harness.load(definition("b", 1, 1)).unwrap();
    harness.quiesce();
    let shown = status(&harness, "e");
    assert_eq!((shown.active, shown.candidates_ready, shown.mirror_ready), (false, true, false));
    assert_eq!(shown.description, "mirror c: model c does not exist");
    harness.load(definition("c", 1, 1)).unwrap();
    harness.work(&id("s", 0), Outcome::Success);
    let shown = status(&harness, "e");
    assert_eq!((shown.active, &*shown.description), (false, "a gateway has not acknowledged the route"));
    harness.quiesce();
    let shown = status(&harness, "e");
    assert_eq!((shown.active, &*shown.description), (true, "experiment active"));
    harness.apply(unload("b")).unwrap();
    assert!(!status(&harness, "e").active);
    assert_eq!(status(&harness, "e").description, "candidate b: model b does not exist");
}

#[test]
fn model_with_fewer_replicas_than_desired_keeps_the_experiment_active() {
    let mut harness = served(&["a", "b"]);
    harness.apply(start(experiment("e", Resource::Model, &["a", "b"]))).unwrap();
    harness.quiesce();
    harness.load(definition("a", 1, 3)).unwrap();
    harness.load(definition("b", 2, 1)).unwrap();
    assert!(status(&harness, "e").active, "a rolling update and a scale-up keep a replica");
}

#[test]
fn experiment_leaves_a_deleted_candidate_before_its_route_ends() {
    let mut harness = served(&["a", "b"]);
    harness.apply(start(experiment("e", Resource::Model, &["a", "b"]))).unwrap();
    harness.quiesce();
    harness.apply(unload("b")).unwrap();
    let (experiment, model) = (&harness.state.experiments()["e"], &harness.state.models()["b"]);
    assert!(experiment.route_sequence < model.route_sequence, "gateways apply routes in this order");
    assert!(harness.apply(unload("x")).is_err());
}

#[test]
fn pipeline_experiment_follows_its_pipelines() {
    let mut harness = served(&["a"]);
    harness.load_pipeline(pipeline("p", 1, &["a"])).unwrap();
    harness.apply(start(experiment("e", Resource::Pipeline, &["p", "q"]))).unwrap();
    harness.quiesce();
    assert_eq!(status(&harness, "e").description, "candidate q: pipeline q does not exist");
    harness.load_pipeline(pipeline("q", 1, &["a", "b"])).unwrap();
    harness.quiesce();
    assert_eq!(
        status(&harness, "e").description,
        "candidate q: pipeline q is not ready: step b: model b does not exist"
    );
    harness.load(definition("b", 1, 1)).unwrap();
    harness.quiesce();
    assert!(status(&harness, "e").active);
    // A version that is not ready leaves the older one in place.
    harness.load_pipeline(pipeline("q", 2, &["a", "x"])).unwrap();
    harness.quiesce();
    assert!(status(&harness, "e").active);
    harness.apply(unload_pipeline("q")).unwrap();
    assert!(!status(&harness, "e").active);
}

#[test]
fn invalid_experiments_are_rejected() {
    let mut harness = served(&["a"]);
    let mut valid = experiment("e", Resource::Model, &["a", "b"]);
    valid.mirror = Some(("c".into(), 5));
    let cases: [(Change, &str); 5] = [
        (
            |e| {
                e.candidates.clear();
                (e.mirror, e.default) = (None, None);
            },
            "experiment e has no candidates or mirror",
        ),
        (|e| e.default = Some("x".into()), "default model/pipeline x not found in experiment e candidates"),
        (|e| e.mirror = Some(("a".into(), 5)), "found resource a duplicated in experiment e"),
        (|e| e.candidates.push(("b".into(), 1)), "found resource b duplicated in experiment e"),
        (|e| e.candidates.iter_mut().for_each(|c| c.1 = 0), "all weights of experiment e are 0"),
    ];
    for (change, expected) in cases {
        let mut invalid = valid.clone();
        change(&mut invalid);
        let refused = harness.apply(start(invalid)).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    harness.apply(start(valid)).unwrap();
    let refused = harness.apply(start(experiment("f", Resource::Model, &["a"]))).unwrap_err().to_string();
    assert!(refused.starts_with("a is already the default of experiment e"), "{refused}");
    harness.apply(start(experiment("f", Resource::Pipeline, &["a"]))).unwrap();
    harness.apply(stop("e")).unwrap();
    harness.apply(start(experiment("g", Resource::Model, &["a"]))).unwrap();
    assert_eq!(harness.apply(stop("x")), Err(Rejection::UnknownExperiment("x".into())));
}

#[test]
fn default_of_a_stopped_experiment_stays_with_its_successor() {
    let mut harness = served(&["a"]);
    harness.apply(start(experiment("e", Resource::Model, &["a"]))).unwrap();
    harness.apply(stop("e")).unwrap();
    harness.apply(start(experiment("f", Resource::Model, &["a"]))).unwrap();
    // Restarted with another default.
    harness.apply(start(experiment("e", Resource::Model, &["b", "a"]))).unwrap();
    let refused = harness.apply(start(experiment("g", Resource::Model, &["a"]))).unwrap_err();
    assert_eq!(refused, Rejection::BaselineTaken { resource: "a".into(), experiment: "f".into() });
}

#[test]
fn changed_split_is_active_again_when_gateways_know_it() {
    let mut harness = served(&["a", "b"]);
    harness.apply(start(experiment("e", Resource::Model, &["a"]))).unwrap();
    harness.quiesce();
    let effects = harness.apply(start(experiment("e", Resource::Model, &["a"]))).unwrap();
    assert!(effects.experiment_routes.is_empty() && effects.store_experiments.is_empty(), "repeated");
    let effects = harness.apply(start(experiment("e", Resource::Model, &["a", "b"]))).unwrap();
    assert!(effects.experiment_routes.contains("e"));
    assert!(!status(&harness, "e").active);
    assert_eq!(harness.state.experiments()["e"].obstacle(), None, "gateways split at once");
    harness.quiesce();
    assert!(status(&harness, "e").active);
}

#[test]
fn stopped_experiment_belongs_to_nothing_and_is_forgotten_later() {
    let mut harness = served(&["a"]);
    harness.apply(start(experiment("e", Resource::Model, &["a"]))).unwrap();
    harness.quiesce();
    let theirs = || Owner::Operator { namespace: "ml".into() };
    let refused = harness.apply(Command::StopExperiment { name: "e".into(), by: theirs() }).unwrap_err();
    assert!(refused.to_string().starts_with("e belongs to the command line"), "{refused}");
    harness.apply(Command::AdoptExperiment { name: "e".into(), by: theirs() }).unwrap();
    assert!(harness.apply(stop("e")).is_err());
    harness.apply(Command::StopExperiment { name: "e".into(), by: theirs() }).unwrap();
    assert_eq!(status(&harness, "e").description, "experiment stopped");
    let effects = harness.apply(unload("a")).unwrap();
    assert!(effects.experiments.is_empty(), "it depends on nothing");
    harness.wait(90_000_000);
    assert!(harness.state.experiments().is_empty(), "the tombstone expires");
}
