//! Scheduling time and allocations for many models.
//!
//! `cargo run --release -p gantry-core --example schedule` prints a row per size, `--json` the values for
//! `cargo xtask bench scheduler`. Agents and gateways are simulated and respond at once. Times are CPU time of one
//! thread, so that a busy machine does not matter.

use gantry_core::scheduling::{
    Command, Definition, Digest, Effects, Needs, Order, Owner, PipelineDefinition, Policy, Replica,
    ReplicaEvent, ReplicaId, Scaling, State, dry_run, explain,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

thread_local! {
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[allow(unsafe_code, reason = "an allocator that counts is the only way to see allocations; example only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.with(|b| b.set(b.get() + layout.size() as u64));
        LIVE.with(|l| l.set(l.get() + layout.size() as i64));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.with(|l| l.set(l.get() - layout.size() as i64));
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.with(|b| b.set(b.get() + size as u64));
        LIVE.with(|l| l.set(l.get() + size as i64 - layout.size() as i64));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Commands per route acknowledgement, as in the scheduler.
const BATCH: usize = 256;

/// CPU time of this thread; wall time where that is not available.
fn spent(start: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split_whitespace().next().and_then(|n| n.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

struct Run {
    time: Duration,
    allocated: u64,
    live: i64,
    routed: usize,
}

fn definition(number: usize, replicas: u32) -> Definition {
    Definition {
        name: format!("model-{number}").into(),
        spec: Digest(number as u128),
        content: Digest(0),
        needs: Needs { requirements: vec!["onnx".into()], memory: 1000, ..Needs::default() },
        scaling: Scaling { replicas, min: 0, max: 0 },
        generation: None,
        replaces: None,
    }
}

fn apply(state: &mut State, command: Command, now: u64) -> Effects {
    state.apply(command, now).unwrap_or_default()
}

fn run(models: usize, replicas: u32) -> Run {
    let mut state = State::new(Policy::default());
    let memory = 1 << 40;
    for index in 0..replicas {
        let id = ReplicaId { server: "builtin".into(), index };
        let capabilities = vec!["onnx".into()];
        let replica =
            Replica { capabilities, memory_total: memory, memory_free: memory, ..Replica::default() };
        apply(&mut state, Command::ReplicaJoined { id, replica, shared: true, loaded: Vec::new() }, 1);
    }
    let definitions: Vec<Definition> = (0..models).map(|number| definition(number, replicas)).collect();
    let before = (BYTES.get(), LIVE.get());
    let start = Instant::now();
    let spent_before = spent(start);
    let mut routed = 0;
    let mut definitions = definitions.into_iter().peekable();
    while definitions.peek().is_some() {
        let mut orders = Vec::new();
        for definition in definitions.by_ref().take(BATCH) {
            let command = Command::LoadModel { definition: Box::new(definition), by: Owner::Cli };
            orders.extend(apply(&mut state, command, 2).orders);
        }
        let mut changed = Effects::default();
        for order in orders {
            changed.merge(apply(&mut state, loaded(order, memory), 3));
        }
        for name in &changed.routes {
            routed += state.route(name).versions.iter().map(|v| v.replicas.len()).sum::<usize>();
        }
        let sequence = state.sequence();
        apply(
            &mut state,
            Command::RoutesAcknowledged { applied: sequence, drained: sequence, undrained: BTreeSet::new() },
            4,
        );
    }
    let time = spent(start).saturating_sub(spent_before);
    Run { time, allocated: BYTES.get() - before.0, live: LIVE.get() - before.1, routed }
}

fn load(number: usize, replicas: u32) -> Command {
    Command::LoadModel { definition: Box::new(definition(number, replicas)), by: Owner::Cli }
}

fn join(index: u32, memory: u64) -> Command {
    let id = ReplicaId { server: "builtin".into(), index };
    let capabilities = vec!["onnx".into()];
    let replica = Replica { capabilities, memory_total: memory, memory_free: memory, ..Replica::default() };
    Command::ReplicaJoined { id, replica, shared: true, loaded: Vec::new() }
}

/// Duration of single commands among many models.
#[allow(clippy::print_stdout, reason = "what it prints is what it is for")]
fn single(models: usize) {
    let timed = |what: &str, times: usize, work: &mut dyn FnMut(usize)| {
        let start = Instant::now();
        (0..times).for_each(work);
        println!("{what:<58}{:.1} µs", start.elapsed().as_secs_f64() * 1e6 / times as f64);
    };
    let mut serving = served(models, 1);
    timed(&format!("one model change among {models}"), 1_000, &mut |n| {
        let mut changed = definition(n * 7 % models, 1);
        changed.spec = Digest(u128::MAX);
        let command = Command::LoadModel { definition: Box::new(changed), by: Owner::Cli };
        serving.begin();
        apply(&mut serving, command, 5);
        serving.commit();
    });
    let records = serving.records();
    timed(&format!("restore {models} records"), 5, &mut |_| {
        State::restore(Policy::default(), records.clone(), 5);
    });
    timed(&format!("explain one among {models}"), 100, &mut |n| {
        explain::model(&serving, &format!("model-{n}"), 5);
    });
    timed(&format!("dry-run one change among {models}"), 5, &mut |n| {
        dry_run::dry_run(serving.clone(), vec![load(models + n, 1)], 5);
    });
    pipelines(serving, models, &timed);
    let mut waiting = State::new(Policy::default());
    (0..models).for_each(|number| drop(apply(&mut waiting, load(number, 1), 1)));
    timed(&format!("a join with memory for ten among {models} waiting"), 20, &mut |n| {
        apply(&mut waiting, join(u32::try_from(n).unwrap_or(0), 10_000), 5);
    });
}

/// Runs work a number of times and prints the duration of one.
type Timed<'a> = dyn Fn(&str, usize, &mut dyn FnMut(usize)) + 'a;

/// As many pipelines of three steps as there are models; each model is a step of three of them.
#[allow(clippy::print_stdout, reason = "what it prints is what it is for")]
fn pipelines(mut state: State, models: usize, timed: &Timed<'_>) {
    let load = |number: usize, spec: u128| {
        let steps = (0..3).map(|step| format!("model-{}", (number + step) % models).into()).collect();
        let name = format!("pipeline-{number}").into();
        let (spec, content) = (Digest(spec), Digest(spec));
        let definition = PipelineDefinition {
            name,
            spec,
            content,
            steps,
            keep_payloads: false,
            generation: None,
            replaces: None,
        };
        let uid = format!("uid-{number}-{}", spec.0).into();
        Command::LoadPipeline { definition: Box::new(definition), uid, by: Owner::Cli }
    };
    let live = LIVE.get();
    timed(&format!("load one of {models} pipelines"), models, &mut |n| {
        apply(&mut state, load(n, 0), 5);
    });
    println!("{:<58}{} B", "memory of each", (LIVE.get() - live) / i64::try_from(models.max(1)).unwrap_or(1));
    timed(&format!("one pipeline change among {models}"), 1_000, &mut |n| {
        state.begin();
        apply(&mut state, load(n * 7 % models, u128::MAX), 5);
        state.commit();
    });
    timed(&format!("one model deleted among {models} with three pipelines"), 1_000, &mut |n| {
        let name = format!("model-{}", n * 7 % models).into();
        apply(&mut state, Command::UnloadModel { name, by: Owner::Cli }, 5);
    });
}

fn served(models: usize, replicas: u32) -> State {
    let mut state = State::new(Policy::default());
    (0..replicas).for_each(|index| drop(apply(&mut state, join(index, 1 << 40), 1)));
    for number in 0..models {
        for order in apply(&mut state, load(number, replicas), 2).orders {
            apply(&mut state, loaded(order, 1 << 40), 3);
        }
    }
    let sequence = state.sequence();
    apply(
        &mut state,
        Command::RoutesAcknowledged { applied: sequence, drained: sequence, undrained: BTreeSet::new() },
        4,
    );
    state
}

fn loaded(order: Order, memory_free: u64) -> Command {
    Command::ReplicaReported {
        id: order.replica,
        model: order.model,
        version: order.version,
        event: ReplicaEvent::Loaded { multiplier: None },
        memory_free,
    }
}

#[allow(clippy::print_stdout, reason = "what it prints is what it is for")]
fn main() {
    run(1_000, 1);
    if std::env::args().any(|a| a == "--json") {
        let Run { time, allocated, .. } = run(10_000, 10);
        println!("{{\"ms\":{},\"mb\":{}}}", time.as_secs_f64() * 1e3, allocated as f64 / 1e6);
        return;
    }
    println!("models   replicas   CPU time    per model   allocated   kept        routed");
    for (models, replicas) in [(1_000, 1), (10_000, 1), (50_000, 1), (10_000, 10)] {
        // CPU time has a coarse resolution: repeat short runs.
        let times = (20_000 / models).max(1);
        let Run { time, allocated, live, routed } = run(models, replicas);
        let time = (1..times).map(|_| run(models, replicas).time).sum::<Duration>() + time;
        let time = time / u32::try_from(times).unwrap_or(1);
        println!(
            "{models:<9}{replicas:<11}{:<12}{:<12}{:<12}{:<12}{routed}",
            format!("{:.1} ms", time.as_secs_f64() * 1e3),
            format!("{:.2} µs", time.as_secs_f64() * 1e6 / models as f64),
            format!("{:.1} MB", allocated as f64 / 1e6),
            format!("{:.1} MB", live as f64 / 1e6),
        );
    }
    single(10_000);
}
