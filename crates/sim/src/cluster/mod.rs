//! The simulated cluster: its components, the events of a scenario, and their effects.

mod client;
mod clock;
mod dependants;
mod gateway;
mod ground_truth;
mod inference;
mod invariants;
mod replica;
mod route_watcher;
mod scheduler;
mod subscriber;

use crate::{
    net::{Host, Net, OBSERVER},
    scenario::{Action, Scenario},
    trace::{Trace, Violation},
};
use client::{Operation, SchedulerApi};
use clock::WallClock;
use dependants::Dependants;
use gantry_store::faulty_disk::{Disk, Fault};
use ground_truth::GroundTruth;
use inference::InferenceServer;
use replica::Replica;
use route_watcher::RouteWatcher;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use subscriber::LastStatuses;
use tokio::{sync::mpsc, time::Instant};

/// Invariants are checked after each step, and at this interval.
const CHECK_INTERVAL: u64 = 10_000;
/// The scheduler may expire a gateway that is unreachable for this long.
const GATEWAY_EXPIRY: u64 = 8000;
/// Extra latency with which connecting times out.
const UNREACHABLE_LATENCY: u64 = 500;
const RECONNECT_TIME: u64 = 12_000;
/// From the restart of a scheduler that lost its state until its clients send theirs again.
const RESEND_DELAY: u64 = 3000;
/// Keep-alive pings of the scheduler reveal a silent peer within 10 s.
const NODE_LOSS_NOTICED: u64 = 12_000;

pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) lines: Vec<String>,
}

#[derive(Clone, Debug)]
enum Event {
    Step(Action),
    StartScheduler,
    StartReplica(String, u32),
    StartGateway(u32),
    Unblock(Host, Host),
    ResetLatency(Host, Host),
    RepairDisk,
    EndStall,
    /// Clients send their desired state again, as the operator does to a scheduler that lost its state.
    Resend,
    /// The scheduler has to know by now that the replica is gone, unless its server has restarted.
    NodeLost {
        server: String,
        replica: u32,
        crashes: u64,
    },
    /// The result of draining a replica.
    Drained {
        server: String,
        replica: u32,
        down: u64,
        result: Result<(), String>,
    },
    /// An inference server has loaded a model.
    Loaded,
    PeriodicCheck,
    Check,
    End,
}

struct Cluster {
    scenario: Scenario,
    trace: Trace,
    truth: GroundTruth,
    net: Net,
    disk: Disk,
    clock: Arc<WallClock>,
    scheduler_host: Host,
    scheduler: Option<scheduler::Process>,
    replicas: BTreeMap<(String, u32), Replica>,
    gateways: BTreeMap<u32, Option<gateway::Process>>,
    checker: gateway::Checker,
    api: SchedulerApi,
    observer: invariants::Observer,
    last_statuses: LastStatuses,
    operations: BTreeMap<String, mpsc::UnboundedSender<Operation>>,
    dependants: Dependants,
    watcher: RouteWatcher,
    queue: BTreeMap<(u64, u64), Event>,
    added: u64,
    drains_in_flight: u32,
    /// A write of the store may stall until then.
    stalled_until: u64,
    /// Replicas whose loss the scheduler must have noticed, with the crashes of their servers then.
    lost_nodes: BTreeMap<(String, u32), u64>,
    reports: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    start: Instant,
}

pub(crate) async fn run(scenario: Scenario) -> Outcome {
    let trace = Trace::new();
    let disk_may_fail = scenario
        .steps
        .iter()
        .any(|s| matches!(s.action, Action::FullDisk { .. } | Action::BrokenDisk { .. }));
    let log = crate::log::Log::new(trace.clone(), disk_may_fail);
    // One process runs one scenario: there is no other subscriber.
    let _ = tracing::subscriber::set_global_default(log);
    let panicked = trace.clone();
    std::panic::set_hook(Box::new(move |panic| panicked.violate("no_panics", panic.to_string())));
    let mut cluster = Cluster::new(scenario, trace.clone());
    cluster.run_scenario().await;
    if trace.violation().is_none() {
        cluster.check_convergence().await;
    }
    Outcome { violation: trace.violation(), lines: trace.lines() }
}

fn gateway_host(index: u32) -> Host {
    format!("gateway-{index}").into()
}

impl Cluster {
    fn new(scenario: Scenario, trace: Trace) -> Self {
        let (truth, net, disk, clock) =
            (GroundTruth::default(), Net::new(scenario.seed), Disk::new(), WallClock::new());
        let (fault_free, strict) = (scenario.is_fault_free(), scenario.keeps_replicas_connected());
        truth.lock().scheduler_crashes = scenario
            .steps
            .iter()
            .any(|s| matches!(s.action, Action::CrashScheduler { .. } | Action::LoseState { .. }));
        let reports = mpsc::unbounded_channel();
        let mut replicas = BTreeMap::new();
        for server in &scenario.servers {
            for index in 0..server.replicas {
                let host: Host = format!("{}-{index}", server.name).into();
                let inference = InferenceServer::new(
                    host,
                    server.clone(),
                    trace.clone(),
                    truth.clone(),
                    scenario.seed,
                    strict,
                );
                let report = reports.0.clone();
                let inference = inference.on_load(move || drop(report.send(Event::Loaded)));
                let replica = Replica::new(inference, index, net.clone(), trace.clone(), scenario.seed);
                replicas.insert((server.name.clone(), index), replica);
            }
        }
        let models: BTreeSet<String> = scenario
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Load { model, .. }
                | Action::Unload { model }
                | Action::InvalidLoad { model, .. }
                | Action::SlowRequest { model, .. } => Some(model.clone()),
                _ => None,
            })
            .collect();
        let checker = gateway::Checker {
            servers: Arc::new(replicas.iter().map(|(key, r)| (key.clone(), r.server.clone())).collect()),
            models: Arc::new(models.iter().cloned().collect()),
            truth: truth.clone(),
            trace: trace.clone(),
            fault_free,
        };
        let api = |host: &str| SchedulerApi {
            net: net.clone(),
            trace: trace.clone(),
            truth: truth.clone(),
            host: host.into(),
        };
        let last_statuses = LastStatuses::default();
        tokio::spawn(subscriber::subscribe(api("user"), last_statuses.clone()));
        let mut operations = BTreeMap::new();
        for model in models {
            let (sender, receiver) = mpsc::unbounded_channel();
            tokio::spawn(client::run(api("user"), model.clone(), receiver));
            operations.insert(model, sender);
        }
        let dependants = Dependants::new(&scenario, || api("user"));
        let watcher = RouteWatcher::start(api(OBSERVER));
        let gateways = (0..scenario.gateways).map(|index| (index, None)).collect();
        let mut cluster = Self {
            observer: invariants::Observer::new(api(OBSERVER)),
            api: api("user"),
            scheduler_host: "scheduler".into(),
            scheduler: None,
            scenario,
            trace,
            truth,
            net,
            disk,
            clock,
            replicas,
            gateways,
            checker,
            last_statuses,
            operations,
            dependants,
            watcher,
            queue: BTreeMap::new(),
            added: 0,
            drains_in_flight: 0,
            stalled_until: 0,
            lost_nodes: BTreeMap::new(),
            reports,
            start: Instant::now(),
        };
        for step in cluster.scenario.steps.clone() {
            cluster.add(step.at, Event::Step(step.action));
        }
        // Servers are announced before their replicas register, as the operator does.
        for (server, index) in cluster.replicas.keys().cloned().collect::<Vec<_>>() {
            cluster.add(50, Event::StartReplica(server, index));
        }
        cluster.add(cluster.scenario.length, Event::End);
        cluster.add(CHECK_INTERVAL, Event::PeriodicCheck);
        cluster
    }

    fn now(&self) -> u64 {
        self.trace.millis()
    }

    fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.queue.insert((at, self.added), event);
    }

    /// Executes the steps of the scenario.
    async fn run_scenario(&mut self) {
        self.start_scheduler();
        for index in self.gateways.keys().copied().collect::<Vec<_>>() {
            self.start_gateway(index);
        }
        for server in self.scenario.servers.clone() {
            tokio::spawn(self.api.clone().announce(server.name, server.replicas, server.shared));
        }
        while let Some((&(at, number), _)) = self.queue.first_key_value() {
            let event = tokio::select! {
                biased;
                Some(event) = self.reports.1.recv() => Some(event),
                () = tokio::time::sleep_until(self.start + Duration::from_millis(at)) => {
                    self.queue.remove(&(at, number))
                }
            };
            match event {
                Some(Event::End) => return,
                Some(Event::Loaded) => {
                    self.handle(Event::Loaded);
                    continue;
                }
                Some(event) => self.handle(event),
                None => {}
            }
            self.check_invariants().await;
            if self.trace.violation().is_some() {
                return;
            }
        }
    }

    fn start_all(&mut self) {
        if self.scheduler.is_none() {
            self.start_scheduler();
        }
        for replica in self.replicas.values_mut() {
            replica.start();
        }
        let missing: Vec<u32> =
            self.gateways.iter().filter(|(_, g)| g.is_none()).map(|(index, _)| *index).collect();
        for index in missing {
            self.start_gateway(index);
        }
    }

    fn start_scheduler(&mut self) {
        let started =
            scheduler::Process::start(&self.net, &self.scheduler_host, &self.disk, &self.clock, &self.trace);
        if started.is_none() {
            // The supervisor restarts it.
            self.add(self.now() + 1000, Event::StartScheduler);
        }
        // Gateways reconnect at their next attempt, however long the scheduler was down.
        for index in self.gateways.keys() {
            self.truth.mark_disconnected(&gateway_host(*index), self.now() + RECONNECT_TIME);
            // While it cannot start, gateways do not learn of crashed servers.
            if started.is_none() {
                self.truth.mark_expired(&gateway_host(*index), self.now() + RECONNECT_TIME);
            }
        }
        self.scheduler = started;
    }

    fn start_gateway(&mut self, index: u32) {
        let seed = self.scenario.seed.wrapping_add(self.added);
        let process = gateway::Process::start(&self.net, &gateway_host(index), &self.checker, seed);
        self.gateways.insert(index, Some(process));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step(action) => {
                self.trace.note("step", &action);
                self.step(action);
            }
            Event::StartScheduler if self.scheduler.is_none() => self.start_scheduler(),
            Event::StartReplica(server, index) => {
                if let Some(replica) = self.replicas.get_mut(&(server, index)) {
                    replica.start();
                }
            }
            Event::StartGateway(index) if self.gateways.get(&index).is_some_and(Option::is_none) => {
                self.start_gateway(index);
            }
            Event::Unblock(from, to) => self.net.unblock(&from, &to),
            Event::ResetLatency(a, b) => self.net.slow_down(&a, &b, Duration::ZERO),
            Event::RepairDisk => self.disk.heal(),
            Event::Resend => {
                for server in self.scenario.servers.clone() {
                    tokio::spawn(self.api.clone().announce(server.name, server.replicas, server.shared));
                }
                for operations in self.operations.values() {
                    let _ = operations.send(Operation::Resend);
                }
                self.dependants.resend();
            }
            Event::NodeLost { server, replica, crashes } => {
                let process = self.replicas.get(&(server.clone(), replica));
                if process.is_some_and(|r| !r.has_agent() && r.server.crashes() == crashes) {
                    self.lost_nodes.insert((server, replica), crashes);
                }
            }
            Event::EndStall => {
                if let Some(scheduler) = &self.scheduler {
                    scheduler.stall(false);
                }
            }
            Event::Drained { server, replica, down, result } => {
                self.drains_in_flight -= 1;
                self.trace.note(format_args!("{server}-{replica}"), format_args!("drained: {result:?}"));
                if result.is_err() {
                    self.truth.lock().outages_allowed = true;
                }
                self.add(self.now() + down, Event::StartReplica(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.stop();
                }
            }
            // A premature status or route would appear now.
            Event::Loaded => self.add(self.now() + 1 + self.added % 9, Event::Check),
            Event::PeriodicCheck => self.add(self.now() + CHECK_INTERVAL, Event::PeriodicCheck),
            Event::StartScheduler | Event::StartGateway(_) | Event::Check | Event::End => {}
        }
    }

    /// Excuses the gateway on a faulty link from invariants about current routes.
    fn record_link_fault(&self, a: &str, b: &str, lasts: u64) {
        // It reconnects when the writer is not stalled.
        let until = (self.now() + lasts).max(self.stalled_until) + RECONNECT_TIME;
        for host in [a, b] {
            self.truth.mark_disconnected(host, until);
            if lasts >= GATEWAY_EXPIRY {
                self.truth.mark_expired(host, until);
            }
        }
    }

    fn step(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Load { model, desired } => self.send(&model, Operation::Load(desired)),
            Action::InvalidLoad { model, kind } => self.send(&model, Operation::InvalidLoad(kind)),
            Action::Unload { model } => self.send(&model, Operation::Unload),
            Action::LoadPipeline { pipeline, desired } => {
                self.dependants.pipeline(&pipeline, Some(desired));
            }
            Action::UnloadPipeline { pipeline } => self.dependants.pipeline(&pipeline, None),
            Action::StartExperiment { experiment, desired } => {
                self.dependants.experiment(&experiment, Some(desired));
            }
            Action::StopExperiment { experiment } => self.dependants.experiment(&experiment, None),
            Action::PutService { service, desired } => self.dependants.service(&service, Some(desired)),
            Action::DeleteService { service } => self.dependants.service(&service, None),
            Action::Announce { server, replicas } => {
                let shared = self.scenario.servers.iter().any(|s| s.name == server && s.shared);
                tokio::spawn(self.api.clone().announce(server, replicas, shared));
            }
            Action::Drain { server, replica, down } => self.drain(server, replica, down),
            Action::Leave { server, replica, down } => {
                self.add(now + down, Event::StartReplica(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.stop();
                }
            }
            Action::CrashReplica { server, replica, silent, down } => {
                self.add(now + down, Event::StartReplica(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.kill(silent);
                }
            }
            Action::CrashAgent { server, replica, down } => {
                self.add(now + down, Event::StartReplica(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.kill_agent(false);
                }
            }
            Action::RestartServer { server, replica } => {
                let replica = self.replicas.get_mut(&(server, replica)).filter(|r| r.server.is_up());
                if let Some(replica) = replica {
                    replica.server.crash();
                    replica.server.start();
                }
            }
            Action::CrashGateway { gateway, silent, down } => {
                if let Some(process) = self.gateways.get_mut(&gateway).and_then(Option::take) {
                    process.kill();
                    self.net.kill(&gateway_host(gateway), silent);
                    self.add(now + down, Event::StartGateway(gateway));
                }
            }
            Action::CrashScheduler { silent, down } => self.crash_scheduler(silent, down),
            Action::LoseState { silent, down } => {
                self.crash_scheduler(silent, down);
                self.disk.wipe();
                self.truth.lose_state();
                self.add(now + down + RESEND_DELAY, Event::Resend);
            }
            Action::LoseNode { server, replica, down } => {
                if let Some(process) = self.replicas.get_mut(&(server.clone(), replica)) {
                    process.kill(true);
                    let crashes = process.server.crashes();
                    self.add(
                        now + NODE_LOSS_NOTICED,
                        Event::NodeLost { server: server.clone(), replica, crashes },
                    );
                }
                self.add(now + down, Event::StartReplica(server, replica));
            }
            Action::SlowRequest { gateway, model, lasts } => {
                if let Some(Some(process)) = self.gateways.get_mut(&gateway) {
                    process.slow_request(&self.checker, &gateway_host(gateway), model, lasts);
                }
            }
            Action::Block { from, to, lasts } => {
                let (from, to): (Host, Host) = (from.into(), to.into());
                self.net.block(&from, &to);
                self.record_link_fault(&from, &to, lasts);
                self.add(now + lasts, Event::Unblock(from, to));
            }
            Action::Cut { a, b } => {
                self.net.cut(&a, &b);
                self.record_link_fault(&a, &b, 0);
            }
            Action::Freeze { a, b } => {
                self.net.freeze(&a, &b);
                // HTTP/2 pings detect it within 20 s.
                self.truth.mark_disconnected(&a, now + 20_000 + RECONNECT_TIME);
                self.truth.mark_disconnected(&b, now + 20_000 + RECONNECT_TIME);
            }
            Action::LoseReplies { a, b, ends_after } => {
                self.net.lose_replies(&a, &b, Duration::from_millis(ends_after));
                self.truth.mark_disconnected(&a, now + 20_000 + RECONNECT_TIME);
                self.truth.mark_disconnected(&b, now + 20_000 + RECONNECT_TIME);
            }
            Action::Slow { a, b, by, lasts } => {
                let (a, b): (Host, Host) = (a.into(), b.into());
                self.net.slow_down(&a, &b, Duration::from_millis(by));
                self.truth.mark_disconnected(&a, now + lasts + RECONNECT_TIME);
                self.truth.mark_disconnected(&b, now + lasts + RECONNECT_TIME);
                if by >= UNREACHABLE_LATENCY {
                    self.record_link_fault(&a, &b, lasts);
                }
                self.add(now + lasts, Event::ResetLatency(a, b));
            }
            Action::FullDisk { lasts } => {
                self.disk.fail_writes(Fault::Full);
                self.add(now + lasts, Event::RepairDisk);
            }
            Action::BrokenDisk { lasts } => {
                self.disk.fail_writes(Fault::Broken);
                self.add(now + lasts, Event::RepairDisk);
            }
            Action::StallDisk { lasts } => {
                if let Some(scheduler) = &self.scheduler {
                    scheduler.stall(true);
                }
                // Gateways that restart or reconnect wait for the writer.
                for index in self.gateways.keys() {
                    let (host, until) = (gateway_host(*index), now + lasts + RECONNECT_TIME);
                    self.truth.mark_disconnected(&host, until);
                    if self.truth.is_expired(&host, now) {
                        self.truth.mark_expired(&host, until);
                    }
                }
                self.stalled_until = self.stalled_until.max(now + lasts + 1000);
                self.add(now + lasts, Event::EndStall);
            }
            Action::Jump { by } => self.clock.jump(by),
            Action::StalledSubscriber { lasts } => {
                tokio::spawn(subscriber::stall(self.api.clone(), Duration::from_millis(lasts)));
            }
        }
    }

    fn send(&self, model: &str, operation: Operation) {
        if let Some(operations) = self.operations.get(model) {
            let _ = operations.send(operation);
        }
    }

    fn drain(&mut self, server: String, replica: u32, down: u64) {
        let Some(process) = self.replicas.get(&(server.clone(), replica)).filter(|r| r.has_agent()) else {
            return;
        };
        let (draining, report) = (process.drain(), self.reports.0.clone());
        self.drains_in_flight += 1;
        tokio::spawn(async move {
            let result = draining.await;
            let _ = report.send(Event::Drained { server, replica, down, result });
        });
    }

    fn crash_scheduler(&mut self, silent: bool, down: u64) {
        // An expired gateway cannot resync before the scheduler is back.
        for index in self.gateways.keys() {
            let host = gateway_host(*index);
            if self.truth.is_expired(&host, self.now()) {
                self.truth.mark_expired(&host, self.now() + down + RECONNECT_TIME);
            }
        }
        let Some(process) = self.scheduler.take() else { return };
        process.kill();
        self.net.kill(&self.scheduler_host, silent);
        if silent {
            // The whole machine: unsynced writes are lost or torn.
            self.disk.crash(self.scenario.seed ^ self.now());
        } else {
            self.disk.kill();
        }
        for index in self.gateways.keys() {
            let noticed = if silent { 20_000 } else { 0 };
            self.truth.mark_disconnected(&gateway_host(*index), self.now() + down + noticed + RECONNECT_TIME);
        }
        self.add(self.now() + down, Event::StartScheduler);
    }
}
