//! Applies the plan: one task that owns the state of every replica.

use super::{
    desired_servers::{DesiredServers, Specs},
    launch_spec::{Allocation, LaunchSpec},
    log_tail::LogTail,
    plan::{self, Action, Key, Millis},
    probe::probe,
    process,
    process_identity::ProcessIdentity,
    process_registry::ProcessRegistry,
    replica::{Phase, Run, Slot},
    report::Report,
};
use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

const OUTPUT_INTERVAL: Duration = Duration::from_millis(200);
const RESYNC_PERIOD: Duration = Duration::from_secs(10);
/// Limit for the agent of a stopped replica to move its models away.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(75);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// A ready replica, for its agent.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) server: String,
    pub(crate) index: u32,
    pub(crate) spec: LaunchSpec,
    pub(crate) allocation: Allocation,
    /// For persistent state of the agent.
    pub(crate) directory: PathBuf,
}

/// How an agent is stopped.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShutdownMode {
    /// Models are moved away first.
    pub(crate) drain: CancellationToken,
    /// The server has exited.
    pub(crate) immediate: CancellationToken,
}

impl ShutdownMode {
    /// Waits for either mode.
    pub(crate) async fn requested(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = self.immediate.cancelled() => {}
        }
    }
}

/// Starts the agent of a replica as a task.
pub(crate) type StartAgent = Arc<dyn Fn(Replica, ShutdownMode) -> JoinHandle<()> + Send + Sync>;

/// A change of a run.
pub(super) enum ChangeEvent {
    Exited { key: Key, run: u64, reason: String },
    Ready { key: Key, run: u64, ready: bool },
}

pub(crate) struct Supervisor {
    directory: PathBuf,
    registry: ProcessRegistry,
    slots: BTreeMap<Key, Slot>,
    desired: watch::Receiver<Specs>,
    start_agent: StartAgent,
    report: Report,
    runs: u64,
    sender: mpsc::Sender<ChangeEvent>,
    events: mpsc::Receiver<ChangeEvent>,
    jitter: RandomState,
}

impl Supervisor {
    /// Adopts the live processes of the previous run.
    pub(crate) fn new(
        state_dir: &Path,
        desired: &DesiredServers,
        start_agent: StartAgent,
        report: Report,
    ) -> Self {
        // Absolute: servers have working directories of their own.
        let state_dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        let (registry, mut entries) = ProcessRegistry::open(&state_dir);
        let (sender, events) = mpsc::channel(64);
        let mut supervisor = Self {
            directory: state_dir.join("servers"),
            registry,
            slots: BTreeMap::new(),
            desired: desired.subscribe(),
            start_agent,
            report,
            runs: 0,
            sender,
            events,
            jitter: RandomState::new(),
        };
        entries.retain(|e| e.process.is_alive());
        let groups: Vec<u32> = entries.iter().map(|e| e.process.pid).collect();
        process::kill_unregistered(&format!("{}:", supervisor.directory.display()), &groups);
        for entry in entries {
            tracing::info!(server = %entry.server, replica = entry.replica, pid = entry.process.pid, "adopted process of the previous run");
            let key = (entry.server, entry.replica);
            let slot = Slot {
                key: key.clone(),
                fingerprint: entry.fingerprint,
                allocation: entry.allocation,
                command: String::new(),
                phase: Phase::Stopped,
                output: LogTail::from_end(&supervisor.log_file(&key)),
                failures: 0,
                last_end: String::new(),
            };
            supervisor.slots.insert(key.clone(), slot);
            supervisor.watch(&key, entry.process, None);
        }
        supervisor
    }

    /// Supervises until `stop` is cancelled; then stops all replicas.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut output = tokio::time::interval(OUTPUT_INTERVAL);
        output.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !stop.is_cancelled() {
            let wake_at = self.reconcile();
            let sleep = wake_at.map_or(RESYNC_PERIOD, |at| Duration::from_millis(at.saturating_sub(now())));
            tokio::select! {
                () = stop.cancelled() => {}
                changed = self.desired.changed() => if changed.is_err() { break },
                Some(event) = self.events.recv() => self.handle(event),
                _ = output.tick() => self.log_output(),
                () = tokio::time::sleep(sleep) => {}
            }
        }
        self.shut_down().await;
    }

    /// Applies the actions that are possible now; returns when to plan again.
    fn reconcile(&mut self) -> Option<Millis> {
        let specs = self.desired.borrow_and_update().clone();
        let desired: BTreeMap<Key, u64> = specs
            .iter()
            .flat_map(|(name, (spec, size))| {
                let fingerprint = spec.fingerprint();
                (0..*size).map(move |replica| ((name.clone(), replica), fingerprint))
            })
            .collect();
        let observed = self.slots.iter().map(|(key, slot)| (key.clone(), slot.observed())).collect();
        let plan = plan::plan(&desired, &observed, now());
        for action in plan.actions {
            match action {
                Action::Start(key) => {
                    if let Some((spec, _)) = specs.get(&key.0) {
                        self.start(&key, spec);
                    }
                }
                Action::Stop(key) => self.stop(&key, true),
                Action::Remove(key) => {
                    self.slots.remove(&key);
                }
            }
        }
        self.registry.write(self.slots.values().filter_map(Slot::entry).collect());
        self.report.set(self.slots.values().map(Slot::report).collect());
        plan.wake_at
    }

    fn marker(&self, key: &Key) -> String {
        format!("{}:{}-{}", self.directory.display(), key.0, key.1)
    }

    fn replica_dir(&self, key: &Key) -> PathBuf {
        self.directory.join(format!("{}-{}", key.0, key.1))
    }

    fn log_file(&self, key: &Key) -> PathBuf {
        self.replica_dir(key).join("output.log")
    }

    fn start(&mut self, key: &Key, spec: &LaunchSpec) {
        let (failures, last_end) =
            self.slots.get(key).map_or((0, String::new()), |slot| (slot.failures, slot.last_end.clone()));
        let models_dir = self.replica_dir(key).join("models");
        let allocated = std::fs::create_dir_all(&models_dir).and_then(|()| allocate(models_dir.clone()));
        let mut allocation = allocated.unwrap_or_else(|error| {
            tracing::warn!(server = %key.0, replica = key.1, %error, "failed to allocate ports and directory");
            Allocation { http_port: 0, grpc_port: 0, metrics_port: 0, models_dir }
        });
        if spec.is_single_port() {
            allocation.grpc_port = allocation.http_port;
        }
        let (command, env) = spec.render(&key.0, key.1, &allocation);
        let log = self.log_file(key);
        let mut slot = Slot {
            key: key.clone(),
            fingerprint: spec.fingerprint(),
            allocation,
            command: command.join(" "),
            phase: Phase::Stopped,
            output: LogTail::from_end(&log),
            failures,
            last_end,
        };
        match process::start(&command, &env, &spec.directory, &log, &self.marker(key)) {
            Ok(mut child) => {
                let pid = child.id();
                if let Some(process) = pid.and_then(ProcessIdentity::of) {
                    tracing::info!(server = %key.0, replica = key.1, pid = process.pid, "started");
                    self.slots.insert(key.clone(), slot);
                    self.watch(key, process, Some(child));
                    return;
                }
                // It exited before its identity could be read.
                let status = child.try_wait().ok().flatten();
                let reason = status.map_or("ended at once".into(), process::describe_exit);
                if let Some(pid) = pid {
                    process::kill_orphans(pid, &self.marker(key));
                }
                slot.log_output(true);
                slot.crash(&reason, 0, self.jitter(key));
            }
            Err(reason) => slot.crash(&format!("did not start: {reason}"), 0, self.jitter(key)),
        }
        self.slots.insert(key.clone(), slot);
    }

    /// Waits for the exit of a process and probes its readiness, in tasks.
    fn watch(&mut self, key: &Key, process: ProcessIdentity, child: Option<tokio::process::Child>) {
        self.runs += 1;
        let number = self.runs;
        let ended = CancellationToken::new();
        let (sender, exited_key, identity) = (self.sender.clone(), key.clone(), process.clone());
        let marker = self.marker(key);
        tokio::spawn(async move {
            let reason = if let Some(mut child) = child {
                child.wait().await.map_or_else(|e| e.to_string(), process::describe_exit)
            } else {
                process::exited(&identity).await;
                "ended with an unknown status (started by an earlier run of gantry)".into()
            };
            process::kill_orphans(identity.pid, &marker);
            let _ = sender.send(ChangeEvent::Exited { key: exited_key, run: number, reason }).await;
        });
        let Some(slot) = self.slots.get_mut(key) else { return };
        let port = slot.allocation.http_port;
        tokio::spawn(probe(key.clone(), number, port, self.sender.clone(), ended.clone()));
        slot.phase = Phase::Running(Run { number, process, since: now(), ready: false, ended, agent: None });
    }

    /// Stops a replica; `drain` moves its models away first.
    fn stop(&mut self, key: &Key, drain: bool) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let phase = std::mem::replace(&mut slot.phase, Phase::Stopped);
        let Phase::Running(mut run) = phase else {
            slot.phase = phase;
            return;
        };
        tracing::info!(server = %key.0, replica = key.1, pid = run.process.pid, "stopping");
        run.ended.cancel();
        let (agent, process) = (run.agent.take(), run.process.clone());
        slot.phase = Phase::Stopping(run);
        tokio::spawn(async move {
            if let Some((shutdown, agent)) = agent {
                if drain {
                    shutdown.drain.cancel();
                } else {
                    shutdown.immediate.cancel();
                }
                if tokio::time::timeout(DRAIN_TIMEOUT, agent).await.is_err() {
                    shutdown.immediate.cancel();
                }
            }
            process::terminate(&process).await;
        });
    }

    fn handle(&mut self, event: ChangeEvent) {
        let (ChangeEvent::Exited { key, run, .. } | ChangeEvent::Ready { key, run, .. }) = &event;
        let jitter = self.jitter(key);
        let directory = self.replica_dir(key);
        let Some(slot) = self.slots.get_mut(key).filter(|s| s.run().is_some_and(|r| r.number == *run)) else {
            return;
        };
        match event {
            ChangeEvent::Ready { key, ready, .. } => {
                let Phase::Running(run) = &mut slot.phase else { return };
                if run.ready == ready {
                    return;
                }
                run.ready = ready;
                if !ready {
                    tracing::warn!(server = %key.0, replica = key.1, "readiness probe failed");
                    return;
                }
                tracing::info!(server = %key.0, replica = key.1, "ready");
                let spec = self.desired.borrow().get(&key.0).map(|(spec, _)| spec.clone());
                if let (None, Some(spec)) = (&run.agent, spec) {
                    let shutdown = ShutdownMode::default();
                    let allocation = slot.allocation.clone();
                    let replica = Replica { server: key.0, index: key.1, spec, allocation, directory };
                    run.agent = Some((shutdown.clone(), (self.start_agent)(replica, shutdown)));
                }
            }
            ChangeEvent::Exited { key, reason, .. } => {
                slot.log_output(true);
                let Some(run) = slot.run_mut() else { return };
                run.ended.cancel();
                if let Some((shutdown, _)) = run.agent.take() {
                    shutdown.immediate.cancel();
                }
                let ran = now().saturating_sub(run.since);
                if matches!(slot.phase, Phase::Stopping(_)) {
                    tracing::info!(server = %key.0, replica = key.1, "stopped");
                    slot.phase = Phase::Stopped;
                } else {
                    slot.crash(&reason, ran, jitter);
                }
            }
        }
    }

    /// A pseudo-random number between 0 and 1.
    fn jitter(&self, key: &Key) -> f64 {
        (self.jitter.hash_one((key, self.runs)) % 1_000_000) as f64 / 1e6
    }

    fn log_output(&mut self) {
        for slot in self.slots.values_mut().filter(|s| s.run().is_some()) {
            slot.log_output(false);
        }
    }

    /// Stops every replica and waits for their exit.
    async fn shut_down(mut self) {
        let keys: Vec<Key> = self.slots.keys().cloned().collect();
        for key in &keys {
            self.stop(key, false);
        }
        let exited = async {
            while self.slots.values().any(|s| s.run().is_some()) {
                let Some(event) = self.events.recv().await else { return };
                self.handle(event);
            }
        };
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, exited).await;
        self.registry.write(self.slots.values().filter_map(Slot::entry).collect());
    }
}

pub(super) fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Picks free ports. Racy: if one is taken meanwhile, the server fails to bind and restarts on new ones.
fn allocate(models_dir: PathBuf) -> std::io::Result<Allocation> {
    let listen = || TcpListener::bind(("127.0.0.1", 0));
    // Held together so that they differ.
    let listeners = [listen()?, listen()?, listen()?];
    let [http_port, grpc_port, metrics_port] =
        listeners.each_ref().map(|l| l.local_addr().map_or(0, |a| a.port()));
    Ok(Allocation { http_port, grpc_port, metrics_port, models_dir })
}
