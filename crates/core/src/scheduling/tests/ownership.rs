//! Whose an object is.

use super::*;

fn by(name: &str, spec: u8, manager: Manager) -> Command {
    Command::LoadModel { definition: Box::new(definition(name, spec, 1)), by: manager }
}

#[test]
fn managers_are_words() {
    for (word, manager) in [
        ("file:/p/iris.yaml", Manager::File("/p/iris.yaml".into())),
        ("cli", Manager::Cli),
        ("operator:ml", Manager::Operator { namespace: "ml".into() }),
        ("owner", Manager::Gateway),
        ("terraform", Manager::Other("terraform".into())),
        ("team:a", Manager::Other("team:a".into())),
    ] {
        assert_eq!(word.parse::<Manager>(), Ok(manager.clone()));
        assert_eq!(manager.to_string(), word);
    }
}

#[test]
fn what_belongs_to_somebody_is_refused_to_others() {
    let operator = Manager::Operator { namespace: "ml".into() };
    let mut world = World::new();
    let mut iris = definition("iris", 1, 1);
    iris.generation = Some(7);
    world.apply(Command::LoadModel { definition: Box::new(iris), by: operator.clone() }).unwrap();
    let refused = world.apply(unload("iris")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "iris belongs to the operator (namespace ml, generation 7): delete it there, with kubectl delete model \
         iris -n ml.\nTo take it over on purpose: gantry adopt model/iris"
    );
    assert!(world.apply(by("iris", 2, Manager::Cli)).is_err());
    world.apply(by("iris", 2, operator.clone())).unwrap();
    world.apply(by("iris", 3, Manager::Gateway)).unwrap();
    assert_eq!(world.state.models()["iris"].manager, Some(operator), "a gateway acts for the owner");
    world.apply(Command::AdoptModel { name: "iris".into(), by: Manager::Cli }).unwrap();
    world.apply(unload("iris")).unwrap();
    world.apply(by("iris", 1, Manager::File("/p".into()))).unwrap();
    assert_eq!(
        world.state.models()["iris"].manager,
        Some(Manager::File("/p".into())),
        "what was deleted has no owner"
    );
    let refused = world.apply(by("iris", 2, Manager::Cli)).unwrap_err().to_string();
    assert!(refused.starts_with("iris belongs to the file /p: change it there."), "{refused}");
}

#[test]
fn the_first_to_name_itself_owns_what_gateways_asked_for() {
    let mut world = World::new();
    world.apply(by("m", 1, Manager::Gateway)).unwrap();
    assert_eq!(world.state.models()["m"].manager, None);
    let effects = world.apply(by("m", 1, Manager::Cli)).unwrap();
    assert!(effects.store_models.contains("m"));
    assert!(world.apply(by("m", 1, Manager::Other("x".into()))).is_err());
}

#[test]
fn servers_have_owners_too() {
    let mut world = World::new();
    world.apply(expect("s", 1, 0, 0)).unwrap();
    let theirs = |replicas| Command::ExpectServer {
        name: "s".into(),
        expected: Expectation { replicas, min: 0, max: 0, generation: None },
        shared: true,
        namespace: None,
        by: Manager::Other("x".into()),
    };
    let refused = world.apply(theirs(0)).unwrap_err().to_string();
    assert_eq!(
        refused,
        "s belongs to the command line: delete it with gantry delete server/s.\n\
         To take it over on purpose: gantry adopt server/s"
    );
    world.apply(Command::AdoptServer { name: "s".into(), by: Manager::Other("x".into()) }).unwrap();
    world.apply(theirs(2)).unwrap();
    let unknown = Command::AdoptServer { name: "t".into(), by: Manager::Cli };
    assert_eq!(world.apply(unknown), Err(Refusal::UnknownServer("t".into())));
}
