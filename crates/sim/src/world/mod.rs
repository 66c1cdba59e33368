//! The world: the parts, what happens to them, and how it ends.

mod clock;
mod facts;
mod gateway;
mod inference;
mod judge;
mod replica;
mod scheduler;
mod subscriber;
mod user;

use crate::{
    net::{Host, Net, OBSERVER},
    plan::{Action, Plan},
    trace::{Trace, Violation},
};
use clock::WallClock;
use facts::Facts;
use gantry_store::faults::{Disk, Fault};
use inference::InferenceServer;
use replica::Replica;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use subscriber::Heard;
use tokio::{sync::mpsc, time::Instant};
use user::{Desk, Errand};

/// How often the properties are looked at besides after each step.
const LOOK: u64 = 10_000;
/// A gateway that cannot be reached for this long may be given up by the scheduler.
const PATIENCE: u64 = 8000;
/// A detour that takes so long that no connection is made within its time.
const TOO_SLOW: u64 = 500;
/// How long reconnecting may take.
const RECONNECT: u64 = 12_000;

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) violation: Option<Violation>,
    pub(crate) lines: Vec<String>,
}

/// Something on the agenda.
#[derive(Clone, Debug)]
enum Event {
    Step(Action),
    SchedulerBack,
    ReplicaBack(String, u32),
    GatewayBack(u32),
    Unblock(Host, Host),
    Hasten(Host, Host),
    DiskHeals,
    /// A replica was drained, or could not be.
    Drained {
        server: String,
        replica: u32,
        down: u64,
        result: Result<(), String>,
    },
    /// A server has loaded a model: others are about to hear of it.
    Loaded,
    Look,
    LookOnce,
    End,
}

struct World {
    plan: Plan,
    trace: Trace,
    facts: Facts,
    net: Net,
    disk: Disk,
    clock: Arc<WallClock>,
    scheduler_host: Host,
    scheduler: Option<scheduler::Process>,
    replicas: BTreeMap<(String, u32), Replica>,
    gateways: BTreeMap<u32, Option<gateway::Process>>,
    bench: gateway::Bench,
    desk: Desk,
    observer: judge::Observer,
    heard: Heard,
    errands: BTreeMap<String, mpsc::UnboundedSender<Errand>>,
    agenda: BTreeMap<(u64, u64), Event>,
    added: u64,
    reports: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    start: Instant,
}

/// Runs a plan from its beginning to its end.
pub(crate) async fn run(plan: Plan) -> Outcome {
    let trace = Trace::new();
    let disk_may_fail =
        plan.steps.iter().any(|s| matches!(s.action, Action::FullDisk { .. } | Action::BrokenDisk { .. }));
    let log = crate::log::Log::new(trace.clone(), disk_may_fail);
    // One process runs one world: there is no other subscriber.
    let _ = tracing::subscriber::set_global_default(log);
    let panicked = trace.clone();
    std::panic::set_hook(Box::new(move |panic| panicked.violate("no_panics", panic.to_string())));
    let mut world = World::new(plan, trace.clone());
    world.live().await;
    if trace.violation().is_none() {
        world.rest().await;
    }
    Outcome { violation: trace.violation(), lines: trace.lines() }
}

fn gateway_host(index: u32) -> Host {
    format!("gateway-{index}").into()
}

impl World {
    fn new(plan: Plan, trace: Trace) -> Self {
        let (facts, net, disk, clock) =
            (Facts::default(), Net::new(plan.seed), Disk::new(), WallClock::new());
        let (calm, strict) = (plan.is_calm(), plan.keeps_replicas_in_touch());
        facts.lock().dies = plan.steps.iter().any(|s| matches!(s.action, Action::CrashScheduler { .. }));
        let reports = mpsc::unbounded_channel();
        let mut replicas = BTreeMap::new();
        for server in &plan.servers {
            for index in 0..server.replicas {
                let host: Host = format!("{}-{index}", server.name).into();
                let inference = InferenceServer::new(
                    host,
                    server.clone(),
                    trace.clone(),
                    facts.clone(),
                    plan.seed,
                    strict,
                );
                let report = reports.0.clone();
                let inference = inference.telling(move || drop(report.send(Event::Loaded)));
                let replica = Replica::new(inference, index, net.clone(), trace.clone(), plan.seed);
                replicas.insert((server.name.clone(), index), replica);
            }
        }
        let models: BTreeSet<String> = plan
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Load { model, .. } | Action::Unload { model } | Action::Nonsense { model, .. } => {
                    Some(model.clone())
                }
                _ => None,
            })
            .collect();
        let bench = gateway::Bench {
            servers: Arc::new(replicas.iter().map(|(key, r)| (key.clone(), r.server.clone())).collect()),
            models: Arc::new(models.iter().cloned().collect()),
            facts: facts.clone(),
            trace: trace.clone(),
            calm,
        };
        let desk = |host: &str| Desk {
            net: net.clone(),
            trace: trace.clone(),
            facts: facts.clone(),
            host: host.into(),
        };
        let heard = Heard::default();
        tokio::spawn(subscriber::follow(desk("user"), heard.clone()));
        let mut errands = BTreeMap::new();
        for model in models {
            let (sender, receiver) = mpsc::unbounded_channel();
            tokio::spawn(user::serve(desk("user"), model.clone(), receiver));
            errands.insert(model, sender);
        }
        let gateways = (0..plan.gateways).map(|index| (index, None)).collect();
        let mut world = Self {
            observer: judge::Observer::new(desk(OBSERVER)),
            desk: desk("user"),
            scheduler_host: "scheduler".into(),
            scheduler: None,
            plan,
            trace,
            facts,
            net,
            disk,
            clock,
            replicas,
            gateways,
            bench,
            heard,
            errands,
            agenda: BTreeMap::new(),
            added: 0,
            reports,
            start: Instant::now(),
        };
        for step in world.plan.steps.clone() {
            world.add(step.at, Event::Step(step.action));
        }
        // Servers are announced before their replicas join, as an operator does.
        for (server, index) in world.replicas.keys().cloned().collect::<Vec<_>>() {
            world.add(50, Event::ReplicaBack(server, index));
        }
        world.add(world.plan.length, Event::End);
        world.add(LOOK, Event::Look);
        world
    }

    fn now(&self) -> u64 {
        self.trace.millis()
    }

    fn add(&mut self, at: u64, event: Event) {
        self.added += 1;
        self.agenda.insert((at, self.added), event);
    }

    /// Lets things happen until the plan's time is over.
    async fn live(&mut self) {
        self.scheduler_starts();
        for index in self.gateways.keys().copied().collect::<Vec<_>>() {
            self.gateway_starts(index);
        }
        for server in self.plan.servers.clone() {
            tokio::spawn(self.desk.clone().announce(server.name, server.replicas, server.shared));
        }
        while let Some((&(at, number), _)) = self.agenda.first_key_value() {
            let event = tokio::select! {
                biased;
                Some(event) = self.reports.1.recv() => Some(event),
                () = tokio::time::sleep_until(self.start + Duration::from_millis(at)) => {
                    self.agenda.remove(&(at, number))
                }
            };
            match event {
                Some(Event::End) => return,
                Some(Event::Loaded) => {
                    self.happen(Event::Loaded);
                    continue;
                }
                Some(event) => self.happen(event),
                None => {}
            }
            self.look().await;
            if self.trace.violation().is_some() {
                return;
            }
        }
    }

    fn everything_starts(&mut self) {
        if self.scheduler.is_none() {
            self.scheduler_starts();
        }
        for replica in self.replicas.values_mut() {
            replica.start();
        }
        let missing: Vec<u32> =
            self.gateways.iter().filter(|(_, g)| g.is_none()).map(|(index, _)| *index).collect();
        for index in missing {
            self.gateway_starts(index);
        }
    }

    fn scheduler_starts(&mut self) {
        let started =
            scheduler::Process::start(&self.net, &self.scheduler_host, &self.disk, &self.clock, &self.trace);
        if started.is_none() {
            // Whoever supervises it tries again.
            self.add(self.now() + 1000, Event::SchedulerBack);
        }
        // Gateways are told to come when they look for it next, however long it was away.
        for index in self.gateways.keys() {
            self.facts.part(&gateway_host(*index), self.now() + RECONNECT);
            // While it cannot start, nobody can tell them that a server died.
            if started.is_none() {
                self.facts.disturb(&gateway_host(*index), self.now() + RECONNECT);
            }
        }
        self.scheduler = started;
    }

    fn gateway_starts(&mut self, index: u32) {
        let life = self.added;
        let seed = self.plan.seed.wrapping_add(life);
        let process = gateway::Process::start(&self.net, &gateway_host(index), &self.bench, seed);
        self.gateways.insert(index, Some(process));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step(action) => {
                self.trace.note("step", &action);
                self.step(action);
            }
            Event::SchedulerBack if self.scheduler.is_none() => self.scheduler_starts(),
            Event::ReplicaBack(server, index) => {
                if let Some(replica) = self.replicas.get_mut(&(server, index)) {
                    replica.start();
                }
            }
            Event::GatewayBack(index) if self.gateways.get(&index).is_some_and(Option::is_none) => {
                self.gateway_starts(index);
            }
            Event::Unblock(from, to) => self.net.unblock(&from, &to),
            Event::Hasten(a, b) => self.net.slow_down(&a, &b, Duration::ZERO),
            Event::DiskHeals => self.disk.heal(),
            Event::Drained { server, replica, down, result } => {
                self.trace.note(format_args!("{server}-{replica}"), format_args!("drained: {result:?}"));
                if result.is_err() {
                    self.facts.lock().gaps_allowed = true;
                }
                self.add(self.now() + down, Event::ReplicaBack(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.leave();
                }
            }
            // Now is when somebody could know too early: look in a moment.
            Event::Loaded => self.add(self.now() + 1 + self.added % 9, Event::LookOnce),
            Event::Look => self.add(self.now() + LOOK, Event::Look),
            Event::SchedulerBack | Event::GatewayBack(_) | Event::LookOnce | Event::End => {}
        }
    }

    /// What a fault between two hosts means for what the gateway among them can know.
    fn link_suffers(&self, a: &str, b: &str, lasts: u64) {
        for host in [a, b] {
            self.facts.part(host, self.now() + lasts + RECONNECT);
            if lasts >= PATIENCE {
                self.facts.disturb(host, self.now() + lasts + RECONNECT);
            }
        }
    }

    fn step(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Load { model, asked } => self.send(&model, Errand::Load(asked)),
            Action::Nonsense { model, kind } => self.send(&model, Errand::Nonsense(kind)),
            Action::Unload { model } => self.send(&model, Errand::Unload),
            Action::Announce { server, replicas } => {
                let shared = self.plan.servers.iter().any(|s| s.name == server && s.shared);
                tokio::spawn(self.desk.clone().announce(server, replicas, shared));
            }
            Action::Drain { server, replica, down } => self.drain(server, replica, down),
            Action::Leave { server, replica, down } => {
                self.add(now + down, Event::ReplicaBack(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.leave();
                }
            }
            Action::CrashReplica { server, replica, silent, down } => {
                self.add(now + down, Event::ReplicaBack(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.kill(silent);
                }
            }
            Action::CrashAgent { server, replica, down } => {
                self.add(now + down, Event::ReplicaBack(server.clone(), replica));
                if let Some(replica) = self.replicas.get_mut(&(server, replica)) {
                    replica.kill_agent(false);
                }
            }
            Action::RestartServer { server, replica } => {
                let replica = self.replicas.get_mut(&(server, replica)).filter(|r| r.server.is_up());
                if let Some(replica) = replica {
                    replica.server.die();
                    replica.server.start();
                }
            }
            Action::CrashGateway { gateway, silent, down } => {
                if let Some(process) = self.gateways.get_mut(&gateway).and_then(Option::take) {
                    process.die();
                    self.net.kill(&gateway_host(gateway), silent);
                    self.add(now + down, Event::GatewayBack(gateway));
                }
            }
            Action::CrashScheduler { silent, down } => self.crash_scheduler(silent, down),
            Action::Block { from, to, lasts } => {
                let (from, to): (Host, Host) = (from.into(), to.into());
                self.net.block(&from, &to);
                self.link_suffers(&from, &to, lasts);
                self.add(now + lasts, Event::Unblock(from, to));
            }
            Action::Cut { a, b } => {
                self.net.cut(&a, &b);
                self.link_suffers(&a, &b, 0);
            }
            Action::Freeze { a, b } => {
                self.net.freeze(&a, &b);
                // The gateway's pings find it out in twenty seconds.
                self.facts.part(&a, now + 20_000 + RECONNECT);
                self.facts.part(&b, now + 20_000 + RECONNECT);
            }
            Action::LoseReplies { a, b, ends_after } => {
                self.net.lose_replies(&a, &b, Duration::from_millis(ends_after));
                self.facts.part(&a, now + 20_000 + RECONNECT);
                self.facts.part(&b, now + 20_000 + RECONNECT);
            }
            Action::Slow { a, b, by, lasts } => {
                let (a, b): (Host, Host) = (a.into(), b.into());
                self.net.slow_down(&a, &b, Duration::from_millis(by));
                self.facts.part(&a, now + lasts + RECONNECT);
                self.facts.part(&b, now + lasts + RECONNECT);
                if by >= TOO_SLOW {
                    self.link_suffers(&a, &b, lasts);
                }
                self.add(now + lasts, Event::Hasten(a, b));
            }
            Action::FullDisk { lasts } => {
                self.disk.fail_writes(Fault::Full);
                self.add(now + lasts, Event::DiskHeals);
            }
            Action::BrokenDisk { lasts } => {
                self.disk.fail_writes(Fault::Broken);
                self.add(now + lasts, Event::DiskHeals);
            }
            Action::Jump { by } => self.clock.jump(by),
            Action::DeafSubscriber { lasts } => {
                tokio::spawn(subscriber::ignore(self.desk.clone(), Duration::from_millis(lasts)));
            }
        }
    }

    fn send(&self, model: &str, errand: Errand) {
        if let Some(errands) = self.errands.get(model) {
            let _ = errands.send(errand);
        }
    }

    fn drain(&mut self, server: String, replica: u32, down: u64) {
        let Some(process) = self.replicas.get(&(server.clone(), replica)).filter(|r| r.has_agent()) else {
            return;
        };
        let (draining, report) = (process.drain(), self.reports.0.clone());
        tokio::spawn(async move {
            let result = draining.await;
            let _ = report.send(Event::Drained { server, replica, down, result });
        });
    }

    fn crash_scheduler(&mut self, silent: bool, down: u64) {
        // A gateway that was out of reach cannot catch up before the scheduler is back.
        for index in self.gateways.keys() {
            let host = gateway_host(*index);
            if self.facts.is_disturbed(&host, self.now()) {
                self.facts.disturb(&host, self.now() + down + RECONNECT);
            }
        }
        let Some(process) = self.scheduler.take() else { return };
        process.die();
        self.net.kill(&self.scheduler_host, silent);
        if silent {
            // The whole machine: what was not synced is lost, or torn.
            self.disk.crash(self.plan.seed ^ self.now());
        } else {
            self.disk.kill();
        }
        for index in self.gateways.keys() {
            let noticed = if silent { 20_000 } else { 0 };
            self.facts.part(&gateway_host(*index), self.now() + down + noticed + RECONNECT);
        }
        self.add(self.now() + down, Event::SchedulerBack);
    }
}
