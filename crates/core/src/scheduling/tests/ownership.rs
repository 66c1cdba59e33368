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
        ("owner", Owner::Gateway),
        ("terraform", Owner::Other("terraform".into())),
        ("team:a", Owner::Other("team:a".into())),
    ] {
        assert_eq!(word.parse::<Owner>(), Ok(owner.clone()));
        assert_eq!(owner.to_string(), word);
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
fn first_named_owner_takes_model_created_by_gateway() {
    let mut harness = Harness::new();
    harness.apply(by("m", 1, Owner::Gateway)).unwrap();
    assert_eq!(harness.state.models()["m"].owner, None);
    let effects = harness.apply(by("m", 1, Owner::Cli)).unwrap();
    assert!(effects.store_models.contains("m"));
    assert!(harness.apply(by("m", 1, Owner::Other("x".into()))).is_err());
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
