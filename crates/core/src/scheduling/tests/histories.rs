//! Properties over whole histories of commands.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Load { model: u8, spec: u8, replicas: u32, min: u32, max: u32 },
    Unload { model: u8 },
    Refused { model: u8, spec: u8 },
    Join { id: ReplicaId },
    Announce { id: ReplicaId },
    Silence { id: ReplicaId },
    Lose { id: ReplicaId },
    Drain { id: ReplicaId },
    Expect { server: u8, replicas: u32, max: u32 },
    Work { id: ReplicaId, luck: Luck },
    Demand { model: u8, in_flight: u64, waiting: bool },
    Scale { model: u8, version: u32, change: i32 },
    FollowRoutes,
    Wait { time: Millis },
    Restart,
}

fn some_id() -> impl Strategy<Value = ReplicaId> {
    (0u8..2, 0u32..3).prop_map(|(server, index)| id(&format!("s{server}"), index))
}

fn step() -> impl Strategy<Value = Step> {
    let luck = prop_oneof![8 => Just(Luck::Good), 2 => Just(Luck::Bad), 1 => Just(Luck::NoMemory)];
    let bounds = prop_oneof![3 => Just((0, 0)), 1 => Just((1, 0)), 1 => Just((0, 3)), 1 => Just((1, 2))];
    prop_oneof![
        5 => (0u8..4, 0u8..3, 0u32..4, bounds).prop_map(|(model, spec, replicas, (min, max))| Step::Load {
            model, spec, replicas, min, max
        }),
        2 => (0u8..4).prop_map(|model| Step::Unload { model }),
        1 => (0u8..4, 0u8..3).prop_map(|(model, spec)| Step::Refused { model, spec }),
        3 => some_id().prop_map(|id| Step::Join { id }),
        2 => some_id().prop_map(|id| Step::Announce { id }),
        2 => some_id().prop_map(|id| Step::Silence { id }),
        1 => some_id().prop_map(|id| Step::Lose { id }),
        1 => some_id().prop_map(|id| Step::Drain { id }),
        1 => (0u8..2, 0u32..3, 0u32..4).prop_map(|(server, replicas, max)| Step::Expect { server, replicas, max }),
        10 => (some_id(), luck).prop_map(|(id, luck)| Step::Work { id, luck }),
        1 => (0u8..4, 0u64..100, any::<bool>())
            .prop_map(|(model, in_flight, waiting)| Step::Demand { model, in_flight, waiting }),
        1 => (0u8..4, 1u32..4, -2i32..3).prop_map(|(model, version, change)| Step::Scale { model, version, change }),
        4 => Just(Step::FollowRoutes),
        2 => prop_oneof![Just(2_000u64), Just(12_000), Just(700_000)].prop_map(|time| Step::Wait { time }),
        1 => Just(Step::Restart),
    ]
}

impl Step {
    /// Whether a model that is served may stop being served by it.
    const fn may_interrupt(&self) -> bool {
        matches!(self, Self::Unload { .. } | Self::Join { .. } | Self::Lose { .. } | Self::Wait { .. })
    }
}

/// Replicas of each server in the end.
const SEATS: u32 = 4;

type Asked = BTreeMap<String, (u8, Scaling)>;

fn asked(model: u8, spec: u8, scaling: Scaling) -> Definition {
    Definition { scaling, ..definition(&format!("m{model}"), spec, scaling.replicas) }
}

fn take(world: &mut World, step: Step, book: &mut Asked) {
    match step {
        Step::Load { model, spec, replicas, min, max } => {
            let max = if max == 0 { 0 } else { max.max(replicas) };
            let scaling = Scaling { replicas: replicas.max(min), min, max };
            let name = format!("m{model}");
            if let Ok(effects) = world.load(asked(model, spec, scaling)) {
                assert!(effects.models.iter().all(|n| **n == *name), "only the changed model is touched");
                assert!(
                    effects.orders.iter().all(|o| *o.model == *name),
                    "only the changed model is touched"
                );
                book.insert(name, (spec, scaling));
            }
        }
        Step::Unload { model } => {
            let name = format!("m{model}");
            let known = world.state.models().contains_key(name.as_str());
            assert_eq!(world.apply(unload(&name)).is_ok(), known);
            book.remove(&name);
        }
        Step::Refused { model, spec } => {
            let before = world.state.clone();
            world.state.begin();
            let scaling = Scaling { replicas: 2, min: 0, max: 0 };
            let definition = Box::new(asked(model, spec, scaling));
            let asks = [
                Command::LoadModel { definition, by: Manager::Cli },
                unload(&format!("m{}", (model + 1) % 4)),
                expect("s0", 0, 0, 0),
                Command::AdoptModel { name: format!("m{model}").into(), by: Manager::Other("me".into()) },
                // Facts that were told in between are taken back too, and told again.
                demand(&format!("m{model}"), 99, true),
                Command::ReplicaSilent { id: id("s0", 1) },
                Command::ReplicaLost { id: id("s1", 1) },
                Command::DrainReplica { id: id("s1", 0) },
                Command::RoutesSettled { applied: u64::MAX - 1, drained: u64::MAX - 1 },
                Command::Tick,
            ];
            for (ask, time) in asks.into_iter().zip(1..) {
                let _ = world.state.apply(ask, world.now + time * 4_000);
            }
            world.state.undo();
            assert_eq!(before.models(), world.state.models());
            assert_eq!(before.servers(), world.state.servers());
            assert_eq!(before.sequence(), world.state.sequence());
            world.check();
        }
        Step::Join { id } => {
            if !world.agents.get(&id).is_some_and(|a| a.connected) {
                world.join(&id, 35);
            }
        }
        Step::Announce { id } => {
            if world.agents.contains_key(&id) {
                world.announce(&id);
            }
        }
        Step::Silence { id } => world.silence(&id),
        Step::Lose { id } => world.lose(&id),
        Step::Drain { id } => {
            world.apply(Command::DrainReplica { id }).unwrap();
        }
        Step::Expect { server, replicas, max } => {
            world.apply(expect(&format!("s{server}"), replicas, 0, max)).unwrap();
        }
        Step::Work { id, luck } => world.work(&id, luck),
        Step::Demand { model, in_flight, waiting } => {
            let name = format!("m{model}");
            let effects = world.apply(demand(&name, in_flight, waiting)).unwrap();
            assert!(effects.models.iter().all(|n| **n == *name), "only the model in demand is touched");
        }
        Step::Scale { model, version, change } => {
            world.apply(Command::ScaleModel { name: format!("m{model}").into(), version, change }).unwrap();
        }
        Step::FollowRoutes => world.follow_routes(),
        Step::Wait { time } => {
            world.wait(time);
        }
        Step::Restart => world.restart(),
    }
}

/// Every server whole again and every agent connected, with room for everybody; then time for every retry.
fn recover(world: &mut World) {
    for server in ["s0", "s1"] {
        if world.state.servers().contains_key(server) {
            world.apply(expect(server, SEATS, 0, 0)).unwrap();
        }
        for index in 0..SEATS {
            let id = id(server, index);
            world.agents.entry(id.clone()).or_default().memory = 1000;
            world.announce(&id);
        }
    }
    world.quiesce();
    world.wait(20_000);
    world.quiesce();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, the invariants hold at each step; and when the world comes to rest with
    /// room for everybody, every model is what was asked for last.
    #[test]
    fn every_history_converges(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        let mut book = Asked::new();
        for step in steps {
            let served: Vec<Arc<str>> =
                world.state.models().keys().filter(|n| !world.routed(n).is_empty()).cloned().collect();
            let (shown, interrupts) = (format!("{step:?}"), step.may_interrupt());
            take(&mut world, step, &mut book);
            for name in served.iter().filter(|_| !interrupts) {
                let model = &world.state.models()[name];
                let wanted = model.latest().is_some_and(|v| v.wanted() > 0);
                prop_assert!(
                    model.deleted || !wanted || !world.routed(name).is_empty(),
                    "{name} was served until {shown}"
                );
            }
        }
        recover(&mut world);
        for (name, (spec, scaling)) in &book {
            let model: u8 = name[1..].parse().unwrap();
            world.load(asked(model, *spec, *scaling)).unwrap();
        }
        world.quiesce();
        for (name, (spec, scaling)) in &book {
            let model = &world.state.models()[name.as_str()];
            let latest = model.latest().unwrap();
            prop_assert_eq!(latest.definition.spec.first(), Some(spec));
            prop_assert_eq!(model.versions.len(), 1, "{}: older versions linger", name);
            prop_assert_eq!(&latest.definition.scaling, scaling);
            let wanted = latest.wanted();
            let expected = if wanted == 0 { ModelState::ScaledDown } else { ModelState::Available };
            prop_assert_eq!(world.summary(name).state, expected, "{}: {}", name, world.summary(name).reason);
            prop_assert_eq!(world.summary(name).available, wanted.min(SEATS));
            prop_assert!(latest.autoscaled || wanted == scaling.replicas);
        }
        for (name, model) in world.state.models() {
            prop_assert_eq!(model.deleted, !book.contains_key(&**name));
        }
        let held: usize = world.agents.values().map(|a| a.loaded.len()).sum();
        let wanted: u32 = world.state.models().values().filter(|m| !m.deleted).map(|m| m.latest().unwrap().wanted().min(SEATS)).sum();
        prop_assert_eq!(held, wanted as usize, "agents hold what nobody asked for");
    }
}
