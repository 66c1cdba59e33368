//! How long it takes to schedule and route many models, and what is allocated for it.
//!
//! `cargo run --release -p gantry-core --example schedule` prints a row for each size; agents and gateways are played
//! here, and answer at once. Times are of one thread.

use gantry_core::scheduling::{
    Command, Definition, Effects, Manager, Needs, Policy, Replica, ReplicaEvent, ReplicaId, Scaling, State,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
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

/// How many commands share one look at the gateways, as in the scheduler.
const BATCH: usize = 256;

struct Run {
    time: Duration,
    allocated: u64,
    live: i64,
    routed: usize,
}

fn definition(number: usize, replicas: u32) -> Definition {
    Definition {
        name: format!("model-{number}").into(),
        spec: Arc::from(number.to_le_bytes().as_slice()),
        whole: Arc::from([0u8; 64].as_slice()),
        needs: Needs { requirements: vec!["onnx".into()], memory: 1000, ..Needs::default() },
        scaling: Scaling { replicas, min: 0, max: 0 },
        generation: None,
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
    let mut routed = 0;
    let mut definitions = definitions.into_iter().peekable();
    while definitions.peek().is_some() {
        let mut orders = Vec::new();
        for definition in definitions.by_ref().take(BATCH) {
            let command = Command::LoadModel { definition: Box::new(definition), by: Manager::Cli };
            orders.extend(apply(&mut state, command, 2).orders);
        }
        let mut changed = Effects::default();
        for order in orders {
            let report = Command::ReplicaReported {
                id: order.replica,
                model: order.model,
                version: order.version,
                event: ReplicaEvent::Loaded { multiplier: None },
                memory_free: memory,
            };
            changed.merge(apply(&mut state, report, 3));
        }
        for name in &changed.routes {
            routed += state.route(name).versions.iter().map(|v| v.replicas.len()).sum::<usize>();
        }
        let sequence = state.sequence();
        apply(&mut state, Command::RoutesSettled { applied: sequence, drained: sequence }, 4);
    }
    let time = start.elapsed();
    Run { time, allocated: BYTES.get() - before.0, live: LIVE.get() - before.1, routed }
}

#[allow(clippy::print_stdout, reason = "what it prints is what it is for")]
fn main() {
    println!("models   replicas   time        per model   allocated   kept        routed");
    run(1_000, 1);
    for (models, replicas) in [(1_000, 1), (10_000, 1), (50_000, 1), (10_000, 10)] {
        let Run { time, allocated, live, routed } = run(models, replicas);
        println!(
            "{models:<9}{replicas:<11}{:<12}{:<12}{:<12}{:<12}{routed}",
            format!("{:.1} ms", time.as_secs_f64() * 1e3),
            format!("{:.2} µs", time.as_secs_f64() * 1e6 / models as f64),
            format!("{:.1} MB", allocated as f64 / 1e6),
            format!("{:.1} MB", live as f64 / 1e6),
        );
    }
}
