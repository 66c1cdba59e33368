//! Properties over command sequences.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Load { model: u8, spec: u8, replicas: u32, min: u32, max: u32 },
    Unload { model: u8 },
    LoadPipeline { pipeline: u8, spec: u8 },
    UnloadPipeline { pipeline: u8 },
    StartExperiment { experiment: u8, spec: u8 },
    StopExperiment { experiment: u8 },
    Rollback { model: u8, spec: u8 },
    Join { id: ReplicaId },
    Subscribe { id: ReplicaId },
    Disconnect { id: ReplicaId },
    Lose { id: ReplicaId },
    Drain { id: ReplicaId },
    Expect { server: u8, replicas: u32, max: u32 },
    Work { id: ReplicaId, outcome: Outcome },
    Demand { model: u8, in_flight: u64, waiting: bool },
    Scale { model: u8, version: u32, change: i32 },
    Crash { id: ReplicaId },
    Acknowledge { not_applied: u64, not_drained: u64 },
    Wait { time: Millis },
    Restart,
}

fn some_id() -> impl Strategy<Value = ReplicaId> {
    (0u8..2, 0u32..3).prop_map(|(server, index)| id(&format!("s{server}"), index))
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![8 => Just(Outcome::Success), 2 => Just(Outcome::Failure), 1 => Just(Outcome::OutOfMemory)];
    let bounds = prop_oneof![3 => Just((0, 0)), 1 => Just((1, 0)), 1 => Just((0, 3)), 1 => Just((1, 2))];
    prop_oneof![
        5 => (0u8..4, 0u8..3, 0u32..4, bounds).prop_map(|(model, spec, replicas, (min, max))| Step::Load {
            model, spec, replicas, min, max
        }),
        2 => (0u8..4).prop_map(|model| Step::Unload { model }),
        2 => (0u8..3, 0u8..6).prop_map(|(pipeline, spec)| Step::LoadPipeline { pipeline, spec }),
        1 => (0u8..3).prop_map(|pipeline| Step::UnloadPipeline { pipeline }),
        2 => (0u8..3, 0u8..6).prop_map(|(experiment, spec)| Step::StartExperiment { experiment, spec }),
        1 => (0u8..3).prop_map(|experiment| Step::StopExperiment { experiment }),
        1 => (0u8..4, 0u8..3).prop_map(|(model, spec)| Step::Rollback { model, spec }),
        3 => some_id().prop_map(|id| Step::Join { id }),
        2 => some_id().prop_map(|id| Step::Subscribe { id }),
        2 => some_id().prop_map(|id| Step::Disconnect { id }),
        1 => some_id().prop_map(|id| Step::Lose { id }),
        1 => some_id().prop_map(|id| Step::Drain { id }),
        1 => (0u8..2, 0u32..3, 0u32..4).prop_map(|(server, replicas, max)| Step::Expect { server, replicas, max }),
        10 => (some_id(), outcome).prop_map(|(id, outcome)| Step::Work { id, outcome }),
        1 => (0u8..4, 0u64..100, any::<bool>())
            .prop_map(|(model, in_flight, waiting)| Step::Demand { model, in_flight, waiting }),
        1 => (0u8..4, 1u32..4, -2i32..3).prop_map(|(model, version, change)| Step::Scale { model, version, change }),
        4 => (0u64..4, 0u64..4).prop_map(|(not_applied, not_drained)| Step::Acknowledge { not_applied, not_drained }),
        1 => some_id().prop_map(|id| Step::Crash { id }),
        2 => prop_oneof![Just(2_000u64), Just(12_000), Just(700_000)].prop_map(|time| Step::Wait { time }),
        1 => Just(Step::Restart),
    ]
}

impl Step {
    /// Whether the step may interrupt serving.
    const fn may_interrupt(&self) -> bool {
        matches!(
            self,
            Self::Unload { .. }
                | Self::Join { .. }
                | Self::Lose { .. }
                | Self::Wait { .. }
                | Self::Crash { .. }
        )
    }
}

/// Replicas of each server after recovery.
const REPLICAS: u32 = 4;

type DesiredModels = BTreeMap<String, (u8, Scaling)>;

fn desired_model(model: u8, spec: u8, scaling: Scaling) -> Definition {
    Definition { scaling, ..definition(&format!("m{model}"), spec, scaling.replicas) }
}

/// Steps that vary with the spec.
fn desired_pipeline(number: u8, spec: u8) -> PipelineDefinition {
    let steps = [format!("m{}", spec % 4), format!("m{}", (spec + number) % 4)];
    pipeline(&format!("p{number}"), spec, &[&steps[0], &steps[1]])
}

fn desired_experiment(number: u8, spec: u8) -> ExperimentDefinition {
    let (resource, prefix) =
        if spec.is_multiple_of(2) { (Resource::Model, 'm') } else { (Resource::Pipeline, 'p') };
    let candidates = [format!("{prefix}{}", spec % 3), format!("{prefix}{}", (spec + 1) % 3)];
    let definition = experiment(&format!("e{number}"), resource, &[&candidates[0], &candidates[1]]);
    ExperimentDefinition { spec: Digest(spec.into()), content: Digest(spec.into()), ..definition }
}

/// Everything that a restart must keep.
fn durable(state: &State) -> Records {
    Records { servers: Vec::new(), ..state.records() }
}

fn apply_step(harness: &mut Harness, step: Step, models: &mut DesiredModels) {
    match step {
        Step::Load { model, spec, replicas, min, max } => {
            let max = if max == 0 { 0 } else { max.max(replicas) };
            let scaling = Scaling { replicas: replicas.max(min), min, max };
            let name = format!("m{model}");
            if let Ok(effects) = harness.load(desired_model(model, spec, scaling)) {
                assert!(effects.models.iter().all(|n| **n == *name), "only the changed model is touched");
                assert!(
                    effects.orders.iter().all(|o| *o.model == *name),
                    "only the changed model is touched"
                );
                models.insert(name, (spec, scaling));
            }
        }
        Step::Unload { model } => {
            let name = format!("m{model}");
            let known = harness.state.models().contains_key(name.as_str());
            assert_eq!(harness.apply(unload(&name)).is_ok(), known);
            models.remove(&name);
        }
        Step::LoadPipeline { pipeline, spec } => {
            if let Ok(effects) = harness.load_pipeline(desired_pipeline(pipeline, spec)) {
                assert!(effects.models.is_empty() && effects.orders.is_empty(), "models are not touched");
                assert!(effects.pipelines.iter().all(|n| **n == *format!("p{pipeline}")));
            }
        }
        Step::UnloadPipeline { pipeline } => {
            let name = format!("p{pipeline}");
            let known = harness.state.pipelines().contains_key(name.as_str());
            assert_eq!(harness.apply(unload_pipeline(&name)).is_ok(), known);
        }
        Step::StartExperiment { experiment, spec } => {
            let _ = harness.apply(start(desired_experiment(experiment, spec)));
        }
        Step::StopExperiment { experiment } => {
            let name = format!("e{experiment}");
            let known = harness.state.experiments().contains_key(name.as_str());
            assert_eq!(harness.apply(stop(&name)).is_ok(), known);
        }
        Step::Rollback { model, spec } => {
            let before = harness.state.clone();
            harness.state.begin();
            let scaling = Scaling { replicas: 2, min: 0, max: 0 };
            let definition = Box::new(desired_model(model, spec, scaling));
            let commands = [
                Command::LoadModel { definition, by: Owner::Cli },
                unload(&format!("m{}", (model + 1) % 4)),
                Command::LoadPipeline {
                    definition: Box::new(desired_pipeline(model % 3, spec)),
                    uid: "rolled back".into(),
                    by: Owner::Cli,
                },
                unload_pipeline(&format!("p{}", (model + 1) % 3)),
                start(desired_experiment(model % 3, spec)),
                stop(&format!("e{}", (model + 1) % 3)),
                expect("s0", 0, 0, 0),
                Command::AdoptModel { name: format!("m{model}").into(), by: Owner::Other("me".into()) },
                // Reports are rolled back too, and reapplied.
                demand(&format!("m{model}"), 99, true),
                Command::ReplicaDisconnected { id: id("s0", 1) },
                Command::ReplicaLost { id: id("s1", 1) },
                Command::DrainReplica { id: id("s1", 0) },
                Command::RoutesAcknowledged {
                    applied: u64::MAX - 1,
                    drained: u64::MAX - 1,
                    undrained: BTreeSet::new(),
                },
                Command::Tick,
            ];
            for (command, time) in commands.into_iter().zip(1..) {
                let _ = harness.state.apply(command, harness.now + time * 4_000);
            }
            harness.state.rollback();
            assert_eq!(before.models(), harness.state.models());
            assert_eq!(before.servers(), harness.state.servers());
            assert_eq!(before.pipelines(), harness.state.pipelines());
            assert_eq!(before.experiments(), harness.state.experiments());
            assert_eq!(before.sequence(), harness.state.sequence());
            harness.check();
        }
        Step::Join { id } => {
            if !harness.agents.get(&id).is_some_and(|a| a.connected) {
                harness.join(&id, 35);
            }
        }
        Step::Subscribe { id } => {
            if harness.agents.contains_key(&id) {
                harness.subscribe(&id);
            }
        }
        Step::Disconnect { id } => harness.disconnect(&id),
        Step::Lose { id } => harness.lose(&id),
        Step::Drain { id } => {
            harness.apply(Command::DrainReplica { id }).unwrap();
        }
        Step::Expect { server, replicas, max } => {
            harness.apply(expect(&format!("s{server}"), replicas, 0, max)).unwrap();
        }
        Step::Work { id, outcome } => harness.work(&id, outcome),
        Step::Demand { model, in_flight, waiting } => {
            let name = format!("m{model}");
            let effects = harness.apply(demand(&name, in_flight, waiting)).unwrap();
            assert!(effects.models.iter().all(|n| **n == *name), "only the reported model is touched");
        }
        Step::Scale { model, version, change } => {
            harness.apply(Command::ScaleModel { name: format!("m{model}").into(), version, change }).unwrap();
        }
        Step::Acknowledge { not_applied, not_drained } => harness.acknowledge(not_applied, not_drained),
        Step::Crash { id } => harness.crash(&id),
        Step::Wait { time } => {
            harness.wait(time);
        }
        Step::Restart => {
            let before = durable(&harness.state);
            harness.restart();
            let after = durable(&harness.state);
            assert_eq!(before.experiments, after.experiments);
            for (before, after) in before.pipelines.iter().zip(&after.pipelines) {
                assert_eq!(before.versions.last().map(|v| &v.uid), after.versions.last().map(|v| &v.uid));
                assert_eq!((before.deleted, &before.owner), (after.deleted, &after.owner));
            }
        }
    }
}

/// Reconnects every agent with enough memory for all models, then waits for every retry.
fn recover(harness: &mut Harness) {
    for server in ["s0", "s1"] {
        if harness.state.servers().contains_key(server) {
            harness.apply(expect(server, REPLICAS, 0, 0)).unwrap();
        }
        for index in 0..REPLICAS {
            let id = id(server, index);
            harness.agents.entry(id.clone()).or_default().memory = 1000;
            harness.subscribe(&id);
        }
    }
    harness.quiesce();
    harness.wait(20_000);
    harness.quiesce();
}

proptest! {
    #![proptest_config(proptest_config())]

    /// Invariants hold after each step; after recovery every model reaches its desired state.
    #[test]
    fn every_command_sequence_converges(steps in prop::collection::vec(step(), 1..80)) {
        let mut harness = Harness::new();
        let mut models = DesiredModels::new();
        for step in steps {
            let served: Vec<Arc<str>> =
                harness.state.models().keys().filter(|n| !harness.routed(n).is_empty()).cloned().collect();
            let (shown, interrupts) = (format!("{step:?}"), step.may_interrupt());
            apply_step(&mut harness, step, &mut models);
            for name in served.iter().filter(|_| !interrupts) {
                let model = &harness.state.models()[name];
                let desired = model.latest().is_some_and(|v| v.desired_replicas() > 0);
                prop_assert!(
                    model.deleted || !desired || !harness.routed(name).is_empty(),
                    "{name} was served until {shown}"
                );
            }
        }
        recover(&mut harness);
        for (name, (spec, scaling)) in &models {
            let model: u8 = name[1..].parse().unwrap();
            harness.load(desired_model(model, *spec, *scaling)).unwrap();
        }
        harness.quiesce();
        for (name, (spec, scaling)) in &models {
            let model = &harness.state.models()[name.as_str()];
            let latest = model.latest().unwrap();
            prop_assert_eq!(latest.definition.spec, Digest((*spec).into()));
            prop_assert_eq!(model.versions.len(), 1, "{}: older versions remain", name);
            prop_assert_eq!(&latest.definition.scaling, scaling);
            let desired = latest.desired_replicas();
            let expected = if desired == 0 { ModelState::ScaledDown } else { ModelState::Available };
            prop_assert_eq!(harness.version_status(name).state, expected, "{}: {}", name, harness.version_status(name).reason);
            prop_assert_eq!(harness.version_status(name).available, desired.min(REPLICAS));
            prop_assert!(latest.autoscaled || desired == scaling.replicas);
        }
        for (name, model) in harness.state.models() {
            prop_assert_eq!(model.deleted, !models.contains_key(&**name));
        }
        for (name, pipeline) in harness.state.pipelines().iter().filter(|(_, p)| !p.deleted) {
            let status = harness.pipeline_status(name);
            let ready = pipeline.latest().unwrap().definition.steps.iter().all(|s| harness.serves(s));
            prop_assert_eq!(status.models_ready, ready, "{}: {}", name, status.reason);
            prop_assert!(!ready || status.state == PipelineState::Ready, "{}: {}", name, status.reason);
        }
        for (name, experiment) in harness.state.experiments() {
            let status = experiment.status();
            prop_assert_eq!(status.active, experiment.obstacle().is_none(), "{}: {}", name, status.description);
        }
        let settled = harness.state.sequence();
        harness.wait(5_000);
        harness.acknowledge_routes();
        prop_assert_eq!(harness.state.sequence(), settled, "the steady state has no effects");
        let assigned: usize = harness.agents.values().map(|a| a.loaded.len()).sum();
        let desired: u32 = harness.state.models().values().filter(|m| !m.deleted).map(|m| m.latest().unwrap().desired_replicas().min(REPLICAS)).sum();
        prop_assert_eq!(assigned, desired as usize, "agents hold undesired models");
    }
}
