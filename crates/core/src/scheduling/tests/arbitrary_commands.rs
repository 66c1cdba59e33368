//! Arbitrary commands in any order never panic, and the index stays consistent.

use super::*;
use crate::{
    rollout::ObservationId,
    scheduling::{dry_run, explain},
};
use proptest::prelude::*;

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..4, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..100, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![Just("a"), Just("b"), Just("")].prop_map(Arc::from)
}

fn place() -> impl Strategy<Value = ReplicaId> {
    (name(), prop_oneof![4 => 0u32..3, 1 => Just(u32::MAX)])
        .prop_map(|(server, index)| ReplicaId { server, index })
}

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        6 => Just(Owner::Cli),
        1 => Just(Owner::Gateway),
        1 => Just(Owner::Operator { namespace: String::new() }),
        1 => "\\PC{0,8}".prop_map(Owner::Other),
    ]
}

fn any_definition() -> impl Strategy<Value = Box<Definition>> {
    let needs = (bytes(), prop::option::weighted(0.2, name()), prop::bool::weighted(0.1), 0u8..3);
    (name(), any::<u8>(), needs, (count(), count(), count()), prop::option::of(any::<i64>())).prop_map(
        |(name, spec, (memory, server, explainer, requirement), (replicas, min, max), generation)| {
            let requirements =
                ["onnx", " xgboost ", ""].get(usize::from(requirement)).map(|r| (*r).to_owned());
            Box::new(Definition {
                name,
                spec: Digest((spec % 3).into()),
                content: Digest(spec.into()),
                needs: Needs { requirements: requirements.into_iter().collect(), memory, server, explainer },
                scaling: Scaling { replicas, min, max },
                generation,
                replaces: None,
            })
        },
    )
}

fn target() -> impl Strategy<Value = RolloutTarget> {
    (name(), 0..3u8).prop_map(|(name, kind)| match kind {
        0 => RolloutTarget::model(name),
        1 => RolloutTarget::pipeline(name),
        _ => RolloutTarget::service(name),
    })
}

fn generation() -> impl Strategy<Value = Option<i64>> {
    prop::option::of(0i64..3)
}

fn any_experiment() -> impl Strategy<Value = Box<ExperimentDefinition>> {
    let candidates = prop::collection::vec((name(), any::<u32>()), 0..3);
    let mirror = prop::option::of((name(), any::<u32>()));
    (name(), any::<bool>(), prop::option::of(name()), candidates, mirror, generation()).prop_map(
        |(name, pipelines, default, candidates, mirror, generation)| {
            let resource = if pipelines { Resource::Pipeline } else { Resource::Model };
            let definition = experiment(&name, resource, &[]);
            Box::new(ExperimentDefinition { default, candidates, mirror, generation, ..definition })
        },
    )
}

fn event() -> impl Strategy<Value = ReplicaEvent> {
    prop_oneof![
        4 => prop::option::of(bytes()).prop_map(|multiplier| ReplicaEvent::Loaded { multiplier }),
        1 => Just(ReplicaEvent::LoadFailed { reason: String::new() }),
        1 => Just(ReplicaEvent::LoadRejected { reason: String::new() }),
        1 => Just(ReplicaEvent::LoadFailedMemory { reason: "x.".into() }),
        2 => Just(ReplicaEvent::Unloaded),
        1 => Just(ReplicaEvent::UnloadFailed { reason: "\n".into() }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let offered =
        (bytes(), bytes(), any::<u32>(), any::<bool>()).prop_map(|(total, free, over_commit, all)| Replica {
            capabilities: if all { vec!["onnx".into(), "xgboost".into()] } else { vec![] },
            memory_total: total,
            memory_free: free,
            over_commit,
            ..Replica::default()
        });
    let loaded = (name(), count(), prop::option::of(0..4u8))
        .prop_map(|(model, version, spec)| loaded_version(&model, version, spec));
    prop_oneof![
        4 => (any_definition(), owner()).prop_map(|(definition, by)| Command::LoadModel { definition, by }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::UnloadModel { name, by }),
        1 => name().prop_map(|name| Command::ReloadModel { name }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::AdoptModel { name, by }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::AdoptServer { name, by }),
        2 => (name(), count(), count(), count(), any::<bool>(), owner()).prop_map(
            |(name, replicas, min, max, shared, by)| {
                let expected = ExpectedReplicas { replicas, min, max, generation: None };
                Command::UpsertServer { name, expected, shared, namespace: None, by }
            }
        ),
        4 => (place(), offered, any::<bool>(), prop::collection::vec(loaded, 0..3)).prop_map(
            |(id, replica, shared, loaded)| Command::ReplicaJoined { id, replica, shared, loaded }
        ),
        1 => place().prop_map(|id| Command::ReplicaDisconnected { id }),
        1 => place().prop_map(|id| Command::ReplicaLost { id }),
        1 => place().prop_map(|id| Command::DrainReplica { id }),
        6 => (place(), name(), count(), event(), bytes()).prop_map(|(id, model, version, event, memory_free)| {
            Command::ReplicaReported { id, model, version, event, memory_free }
        }),
        3 => (bytes(), bytes()).prop_map(|(applied, drained)| Command::RoutesAcknowledged { applied, drained, undrained: BTreeSet::new() }),
        1 => (name(), count(), any::<i32>())
            .prop_map(|(name, version, change)| Command::ScaleModel { name, version, change }),
        1 => (name(), bytes(), bytes(), any::<bool>()).prop_map(|(model, in_flight_milli, answered, waiting)| {
            Command::DemandReported { model, in_flight_milli, answered, waiting }
        }),
        2 => (name(), 0u8..3, prop::collection::vec(name(), 0..3), owner(), generation()).prop_map(
            |(name, spec, steps, by, generation)| Command::LoadPipeline {
                definition: Box::new(PipelineDefinition { steps, generation, ..pipeline(&name, spec, &[]) }),
                uid: format!("{spec}-{generation:?}").into(),
                by,
            }
        ),
        1 => (name(), owner()).prop_map(|(name, by)| Command::UnloadPipeline { name, by }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::AdoptPipeline { name, by }),
        1 => (name(), 0u8..3, prop::option::of("x")).prop_map(|(name, spec, failure)| {
            Command::PipelineReported { name, uid: format!("{spec}-None").into(), failure }
        }),
        2 => (any_experiment(), owner()).prop_map(|(definition, by)| Command::StartExperiment { definition, by }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::StopExperiment { name, by }),
        1 => (name(), owner()).prop_map(|(name, by)| Command::AdoptExperiment { name, by }),
        2 => (name(), 0u8..3, any::<bool>(), prop::option::of(bytes()), service_rollouts::delivery()).prop_map(
            |(name, route, sleeps, idle_timeout, delivery)| {
                let route = format!("{route} {delivery:?}").into_bytes().into();
                let record = ServiceRecord { name, route, sleeps, idle_timeout, delivery, rollout: None };
                Command::PutService(Box::new(record))
            }
        ),
        1 => name().prop_map(|name| Command::DeleteService { name }),
        1 => (name(), any::<bool>(), any::<bool>()).prop_map(|(name, waiting, is_active)| {
            Command::ServiceDemanded { name, waiting, is_active }
        }),
        1 => prop::option::of(bytes()).prop_map(|applied| Command::GatewaysAcknowledged { applied }),
        2 => (name(), target(), any::<bool>()).prop_map(|(name, target, short)| {
            Command::PutRolloutPolicy(rollouts::policy(&name, [target], short))
        }),
        1 => name().prop_map(|name| Command::DeleteRolloutPolicy { name }),
        2 => (target(), rollouts::steer()).prop_map(|(target, steer)| Command::SteerRollout { target, steer }),
        3 => (target(), bytes(), bytes(), count(), bytes()).prop_map(
            |(target, sequence, generation, version, requests)| {
                let versions = vec![(version, rollouts::stats(requests, requests / 2)), (1, rollouts::stats(1, 0))];
                let id = ObservationId { epoch: 1, sequence };
                Command::TrafficObserved { target, traffic: Traffic { id, generation, versions } }
            }
        ),
        3 => Just(Command::Tick),
    ]
}

proptest! {
    #![proptest_config(proptest_config())]

    #[test]
    fn arbitrary_commands_do_not_panic(
        commands in prop::collection::vec((command(), bytes()), 1..60),
        packing in any::<bool>(),
        grace in bytes(),
    ) {
        let policy = Policy { packing, grace, max_clock_step: u64::MAX, ..Policy::default() };
        let mut state = State::new(policy);
        for (command, now) in commands {
            dry_run::dry_run(state.clone(), vec![command.clone()], now);
            let _ = state.apply(command, now);
            state.check_index();
            for name in state.models().keys() {
                prop_assert!(explain::model(&state, name, now).is_some());
                state.route(name);
            }
            for name in state.pipelines().keys() {
                prop_assert!(explain::pipeline(&state, name, now).is_some());
            }
            for name in state.experiments().keys() {
                prop_assert!(explain::experiment(&state, name, now).is_some());
            }
            for name in state.servers().keys() {
                prop_assert!(explain::server(&state, name, now).is_some());
            }
        }
        State::restore(policy, state.records(), u64::MAX).check_index();
    }
}
