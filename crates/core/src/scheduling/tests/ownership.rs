//! Ownership of models and servers.

use super::*;

fn by(name: &str, spec: u8, owner: Owner) -> Command {
    Command::LoadModel { definition: Box::new(definition(name, spec, 1)), by: owner }
}

#[test]
fn owner_round_trips_as_text() {
    for (word, owner) in [
        ("file:/p/iris.yaml", Owner::File("/p/iris.yaml".into())),
        ("cli", Owner::Cli),
        ("operator:ml", Owner::Operator { namespace: "ml".into() }),
        ("seldon-operator:ml", Owner::SeldonOperator { namespace: "ml".into() }),
        ("owner", Owner::Gateway),
        ("terraform", Owner::Other("terraform".into())),
        ("team:a", Owner::Other("team:a".into())),
    ] {
        assert_eq!(word.parse::<Owner>(), Ok(owner.clone()));
        assert_eq!(owner.record(), word);
    }
}

#[test]
fn change_by_another_owner_is_rejected() {
    let operator = Owner::Operator { namespace: "ml".into() };
    let mut harness = Harness::new();
    let mut iris = definition("iris", 1, 1);
    iris.generation = Some(7);
    harness.apply(Command::LoadModel { definition: Box::new(iris), by: operator.clone() }).unwrap();
    let refused = harness.apply(unload("iris")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "iris belongs to the operator (namespace ml, generation 7): delete it there, with kubectl delete model \
         iris -n ml.\nTo take it over on purpose: gantry adopt model/iris"
    );
    assert!(harness.apply(by("iris", 2, Owner::Cli)).is_err());
    harness.apply(by("iris", 2, operator.clone())).unwrap();
    harness.apply(by("iris", 3, Owner::Gateway)).unwrap();
    assert_eq!(harness.state.models()["iris"].owner, Some(operator), "a gateway acts for the owner");
    harness.apply(Command::AdoptModel { name: "iris".into(), by: Owner::Cli }).unwrap();
    harness.apply(unload("iris")).unwrap();
    harness.apply(by("iris", 1, Owner::File("/p".into()))).unwrap();
    assert_eq!(
        harness.state.models()["iris"].owner,
        Some(Owner::File("/p".into())),
        "a deleted model has no owner"
    );
    let refused = harness.apply(by("iris", 2, Owner::Cli)).unwrap_err().to_string();
    assert!(refused.starts_with("iris belongs to the file /p: change it there."), "{refused}");
}

#[test]
fn unnamed_client_deletes_only_objects_of_seldon() {
    let ours = Owner::Operator { namespace: "ml".into() };
    let seldon = Owner::SeldonOperator { namespace: "ml".into() };
    let elsewhere = Owner::SeldonOperator { namespace: "other".into() };
    let load = |by: &Owner| Command::LoadPipeline {
        definition: Box::new(pipeline("p", 1, &["a"])),
        uid: "u".into(),
        by: by.clone(),
    };
    let start = |by: &Owner| Command::StartExperiment {
        definition: Box::new(experiment("e", Resource::Model, &["a", "b"])),
        by: by.clone(),
    };
    for (owner, allowed) in
        [(&ours, false), (&Owner::File("/p".into()), false), (&seldon, true), (&Owner::Cli, true)]
    {
        let mut harness = Harness::new();
        harness.apply(load(owner)).unwrap();
        harness.apply(start(owner)).unwrap();
        let unload = Command::UnloadPipeline { name: "p".into(), by: Owner::Unnamed };
        assert_eq!(harness.apply(unload).is_ok(), allowed, "{owner}");
        let stop = Command::StopExperiment { name: "e".into(), by: Owner::Unnamed };
        assert_eq!(harness.apply(stop).is_ok(), allowed, "{owner}");
    }
    // Either operator takes over from the other one in its namespace.
    let mut harness = Harness::new();
    for by in [&seldon, &ours, &seldon, &ours] {
        harness.apply(load(by)).unwrap();
        harness.apply(start(by)).unwrap();
        assert_eq!(harness.state.pipelines()["p"].owner.as_ref(), Some(by));
        assert_eq!(harness.state.experiments()["e"].owner.as_ref(), Some(by));
    }
    for other in [&elsewhere, &Owner::Cli] {
        let refused = harness.apply(load(other)).unwrap_err().to_string();
        assert!(
            refused.starts_with("p belongs to the operator (namespace ml): change it there"),
            "{refused}"
        );
    }
}

#[test]
fn late_load_of_an_older_generation_is_rejected() {
    let operator = Owner::Operator { namespace: "ml".into() };
    let mut harness = Harness::new();
    let mut load = |generation: i64, replaces: Option<i64>, spec: u8| {
        let generation = Some(generation);
        let definition = Box::new(Definition { generation, replaces, ..definition("iris", spec, 1) });
        let outcome = harness.apply(Command::LoadModel { definition, by: operator.clone() });
        let latest = harness.state.models()["iris"].latest().unwrap().definition.clone();
        (outcome.map(drop), latest.generation, latest.replaces)
    };
    assert_eq!(load(1, Some(0), 1), (Ok(()), Some(1), None));
    assert_eq!(load(2, Some(1), 2), (Ok(()), Some(2), None));
    let refused = Rejection::NewerGeneration { kind: Kind::Model, name: "iris".into(), known: 2, sent: 1 };
    assert_eq!(load(1, Some(0), 1), (Err(refused), Some(2), None), "sent before generation 2");
    assert_eq!(load(2, Some(1), 2).1, Some(2), "repeated");
    assert_eq!(load(3, Some(1), 3).1, Some(3), "a newer generation needs no precondition");
    assert_eq!(load(1, Some(3), 4).1, Some(1), "a recreated object");
    assert_eq!(load(9, None, 5).1, Some(9));
    assert_eq!(load(1, None, 6).1, Some(1), "another client knows no precondition");
}

#[test]
fn first_named_owner_takes_model_created_by_gateway() {
    let mut harness = Harness::new();
    harness.apply(by("m", 1, Owner::Gateway)).unwrap();
    assert_eq!(harness.state.models()["m"].owner, None);
    let effects = harness.apply(by("m", 1, Owner::Cli)).unwrap();
    assert!(effects.store_models.contains("m"));
    assert!(harness.apply(by("m", 1, Owner::Other("x".into()))).is_err());
}

#[test]
fn reload_reverts_only_the_unload_of_a_gateway() {
    let reload = || Command::ReloadModel { name: "iris".into() };
    let unload_by = |owner| Command::UnloadModel { name: "iris".into(), by: owner };
    let mut harness = Harness::new();
    assert_eq!(harness.apply(reload()), Err(Rejection::UnknownModel("iris".into())));
    harness.apply(by("iris", 1, Owner::Cli)).unwrap();

    harness.apply(unload_by(Owner::Gateway)).unwrap();
    assert!(harness.state.models()["iris"].deleted);
    harness.apply(reload()).unwrap();
    let model = &harness.state.models()["iris"];
    assert!(!model.deleted);
    assert_eq!(model.owner, Some(Owner::Cli), "the owner stays");

    // A reload between an update and its effect keeps the update.
    harness.apply(by("iris", 2, Owner::Cli)).unwrap();
    let latest = harness.state.models()["iris"].latest().cloned().unwrap();
    harness.apply(reload()).unwrap();
    let after = harness.state.models()["iris"].latest().unwrap();
    assert_eq!((after.number, &after.definition), (latest.number, &latest.definition));

    for unloads in [vec![Owner::Cli], vec![Owner::Gateway, Owner::Cli]] {
        for owner in unloads {
            harness.apply(unload_by(owner)).unwrap();
        }
        assert_eq!(harness.apply(reload()), Err(Rejection::Deleted("iris".into())), "its owner deleted it");
        harness.apply(by("iris", 2, Owner::Cli)).unwrap();
    }
}

#[test]
fn server_change_by_another_owner_is_rejected() {
    let mut harness = Harness::new();
    harness.apply(expect("s", 1, 0, 0)).unwrap();
    let theirs = |replicas| Command::UpsertServer {
        name: "s".into(),
        expected: ExpectedReplicas { replicas, min: 0, max: 0, generation: None },
        shared: true,
        namespace: None,
        by: Owner::Other("x".into()),
    };
    let refused = harness.apply(theirs(0)).unwrap_err().to_string();
    assert_eq!(
        refused,
        "s belongs to the command line: delete it with gantry delete server/s.\n\
         To take it over on purpose: gantry adopt server/s"
    );
    harness.apply(Command::AdoptServer { name: "s".into(), by: Owner::Other("x".into()) }).unwrap();
    harness.apply(theirs(2)).unwrap();
    let unknown = Command::AdoptServer { name: "t".into(), by: Owner::Cli };
    assert_eq!(harness.apply(unknown), Err(Rejection::UnknownServer("t".into())));
}
