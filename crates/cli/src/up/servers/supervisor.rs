//! Carries out the plan: one task that owns what is known of every replica.

use super::{
    identity::Identity,
    ledger::Ledger,
    plan::{self, Action, Key, Millis},
    probe::probe,
    process,
    recipe::{Place, Recipe},
    replica::{Phase, Run, Slot},
    report::Report,
    tail::Tail,
    wishes::{Wanted, Wishes},
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

/// How often what replicas say is read.
const HEAR: Duration = Duration::from_millis(200);
/// How long the agent of a replica that is stopped may take to move its models elsewhere.
const LEAVE: Duration = Duration::from_secs(75);
/// How long everything has to end when we do.
const GOODBYE: Duration = Duration::from_secs(15);

/// A replica that answers, for whoever stands beside it.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) server: String,
    pub(crate) index: u32,
    pub(crate) recipe: Recipe,
    pub(crate) place: Place,
    /// Where the agent may keep what it needs to remember.
    pub(crate) directory: PathBuf,
}

/// How an agent is told to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Farewell {
    /// In good order: models are moved elsewhere first.
    pub(crate) leave: CancellationToken,
    /// At once: its server is gone.
    pub(crate) gone: CancellationToken,
}

impl Farewell {
    /// Waits until one of them is said.
    pub(crate) async fn any(&self) {
        tokio::select! {
            () = self.leave.cancelled() => {}
            () = self.gone.cancelled() => {}
        }
    }
}

/// Starts an agent beside a replica, as a task of its own.
pub(crate) type Beside = Arc<dyn Fn(Replica, Farewell) -> JoinHandle<()> + Send + Sync>;

/// What happened to a run.
pub(super) enum News {
    Ended { key: Key, run: u64, how: String },
    Ready { key: Key, run: u64, ready: bool },
}

/// The task's state.
pub(crate) struct Supervisor {
    directory: PathBuf,
    ledger: Ledger,
    slots: BTreeMap<Key, Slot>,
    wanted: watch::Receiver<Wanted>,
    beside: Beside,
    report: Report,
    runs: u64,
    sender: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
    chance: RandomState,
}

impl Supervisor {
    /// A supervisor that knows the processes of the last run.
    pub(crate) fn new(state_dir: &Path, wishes: &Wishes, beside: Beside, report: Report) -> Self {
        // Servers run elsewhere: what they are told about must not depend on where we are.
        let state_dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        let (ledger, entries) = Ledger::open(&state_dir);
        let (sender, news) = mpsc::channel(64);
        let mut supervisor = Self {
            directory: state_dir.join("servers"),
            ledger,
            slots: BTreeMap::new(),
            wanted: wishes.subscribe(),
            beside,
            report,
            runs: 0,
            sender,
            news,
            chance: RandomState::new(),
        };
        let known: Vec<u32> =
            entries.iter().filter(|e| e.process.is_alive()).map(|e| e.process.pid).collect();
        process::sweep_unknown(&format!("{}:", supervisor.directory.display()), &known);
        for entry in entries {
            let key = (entry.server.clone(), entry.replica);
            if !entry.process.is_alive() {
                continue;
            }
            tracing::info!(server = %entry.server, replica = entry.replica, pid = entry.process.pid, "taken over from the last run");
            let tail = Tail::from_end(&supervisor.log_of(&key));
            let slot = Slot {
                key: key.clone(),
                fingerprint: entry.fingerprint,
                place: entry.place,
                command: String::new(),
                phase: Phase::Stopped,
                tail,
                failures: 0,
                last_end: String::new(),
            };
            supervisor.slots.insert(key.clone(), slot);
            supervisor.watch(&key, entry.process, None);
        }
        supervisor
    }

    /// Supervises until `stop` is cancelled; then ends everything.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut hear = tokio::time::interval(HEAR);
        hear.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !stop.is_cancelled() {
            let wake_at = self.act();
            let sleep = Duration::from_millis(
                wake_at.map_or(HEAR.as_millis() as u64 * 50, |at| at.saturating_sub(now())),
            );
            tokio::select! {
                () = stop.cancelled() => {}
                changed = self.wanted.changed() => if changed.is_err() { break },
                Some(news) = self.news.recv() => self.take(news),
                _ = hear.tick() => self.hear(),
                () = tokio::time::sleep(sleep) => {}
            }
        }
        self.end().await;
    }

    /// Does what can be done now; says when to look again.
    fn act(&mut self) -> Option<Millis> {
        let recipes = self.wanted.borrow_and_update().clone();
        let wanted: BTreeMap<Key, u64> = recipes
            .iter()
            .flat_map(|(name, (recipe, size))| {
                let fingerprint = recipe.fingerprint();
                (0..*size).map(move |replica| ((name.clone(), replica), fingerprint))
            })
            .collect();
        let seen = self.slots.iter().map(|(key, slot)| (key.clone(), slot.seen())).collect();
        let plan = plan::plan(&wanted, &seen, now());
        for action in plan.actions {
            match action {
                Action::Start(key) => {
                    if let Some((recipe, _)) = recipes.get(&key.0) {
                        self.start(&key, recipe);
                    }
                }
                Action::Stop(key) => self.stop(&key, true),
                Action::Forget(key) => {
                    self.slots.remove(&key);
                }
            }
        }
        self.ledger.write(self.slots.values().filter_map(Slot::entry).collect());
        self.report.set(self.slots.values().map(Slot::report).collect());
        plan.wake_at
    }

    fn mark(&self, key: &Key) -> String {
        format!("{}:{}-{}", self.directory.display(), key.0, key.1)
    }

    fn home_of(&self, key: &Key) -> PathBuf {
        self.directory.join(format!("{}-{}", key.0, key.1))
    }

    fn log_of(&self, key: &Key) -> PathBuf {
        self.home_of(key).join("output.log")
    }

    fn start(&mut self, key: &Key, recipe: &Recipe) {
        let (failures, last_end) =
            self.slots.get(key).map_or((0, String::new()), |slot| (slot.failures, slot.last_end.clone()));
        let home = self.home_of(key);
        let place =
            std::fs::create_dir_all(home.join("models")).and_then(|()| free_place(home.join("models")));
        let place = place.unwrap_or_else(|error| {
            tracing::warn!(server = %key.0, replica = key.1, %error, "no place to start it in");
            Place { http_port: 0, grpc_port: 0, metrics_port: 0, models_dir: home.join("models") }
        });
        let place = if recipe.one_port() { Place { grpc_port: place.http_port, ..place } } else { place };
        let (words, env) = recipe.fill(&key.0, key.1, &place);
        let log = self.log_of(key);
        let mut slot = Slot {
            key: key.clone(),
            fingerprint: recipe.fingerprint(),
            place,
            command: words.join(" "),
            phase: Phase::Stopped,
            tail: Tail::from_end(&log),
            failures,
            last_end,
        };
        match process::start(&words, &env, &recipe.directory, &log, &self.mark(key)) {
            Ok(mut child) => {
                let pid = child.id();
                let Some(process) = pid.and_then(Identity::of) else {
                    // It ended before it could be looked at.
                    let how = child.try_wait().ok().flatten().map_or("ended at once".into(), process::how);
                    if let Some(pid) = pid {
                        process::sweep(pid, &self.mark(key));
                    }
                    slot.hear(true);
                    slot.fail(&how, 0, self.chance(key));
                    self.slots.insert(key.clone(), slot);
                    return;
                };
                tracing::info!(server = %key.0, replica = key.1, pid = process.pid, "started");
                self.slots.insert(key.clone(), slot);
                self.watch(key, process, Some(child));
            }
            Err(reason) => {
                slot.fail(&format!("did not start: {reason}"), 0, self.chance(key));
                self.slots.insert(key.clone(), slot);
            }
        }
    }

    /// Waits for the end of a process and asks it whether it is ready, in tasks of their own.
    fn watch(&mut self, key: &Key, process: Identity, child: Option<tokio::process::Child>) {
        self.runs += 1;
        let number = self.runs;
        let over = CancellationToken::new();
        let (sender, key_of, waited) = (self.sender.clone(), key.clone(), process.clone());
        let mark = self.mark(key);
        tokio::spawn(async move {
            let how = if let Some(mut child) = child {
                child.wait().await.map_or_else(|e| e.to_string(), process::how)
            } else {
                process::ended(&waited).await;
                "ended; how is not known, since it was started by an earlier run of gantry".into()
            };
            process::sweep(waited.pid, &mark);
            let _ = sender.send(News::Ended { key: key_of, run: number, how }).await;
        });
        let Some(slot) = self.slots.get_mut(key) else { return };
        let port = slot.place.http_port;
        tokio::spawn(probe(key.clone(), number, port, self.sender.clone(), over.clone()));
        slot.phase = Phase::Running(Run { number, process, since: now(), ready: false, over, agent: None });
    }

    /// Ends a replica; `gently` lets its models be moved elsewhere first.
    fn stop(&mut self, key: &Key, gently: bool) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let phase = std::mem::replace(&mut slot.phase, Phase::Stopped);
        let Phase::Running(mut run) = phase else {
            slot.phase = phase;
            return;
        };
        tracing::info!(server = %key.0, replica = key.1, pid = run.process.pid, "stopping");
        run.over.cancel();
        let (agent, process) = (run.agent.take(), run.process.clone());
        slot.phase = Phase::Stopping(run);
        tokio::spawn(async move {
            if let Some((farewell, agent)) = agent {
                if gently {
                    farewell.leave.cancel();
                } else {
                    farewell.gone.cancel();
                }
                if tokio::time::timeout(LEAVE, agent).await.is_err() {
                    farewell.gone.cancel();
                }
            }
            process::end(&process).await;
        });
    }

    fn take(&mut self, news: News) {
        let (News::Ended { key, run, .. } | News::Ready { key, run, .. }) = &news;
        let Some(slot) = self.slots.get_mut(key).filter(|s| s.run().is_some_and(|r| r.number == *run)) else {
            return;
        };
        match news {
            News::Ready { key, ready, .. } => {
                let Phase::Running(run) = &mut slot.phase else { return };
                if run.ready == ready {
                    return;
                }
                run.ready = ready;
                if !ready {
                    tracing::warn!(server = %key.0, replica = key.1, "does not answer any more");
                    return;
                }
                tracing::info!(server = %key.0, replica = key.1, "ready");
                let recipe = self.wanted.borrow().get(&key.0).map(|(recipe, _)| recipe.clone());
                if let (None, Some(recipe)) = (&run.agent, recipe) {
                    let farewell = Farewell::default();
                    let directory = self.directory.join(format!("{}-{}", key.0, key.1));
                    let replica =
                        Replica { server: key.0, index: key.1, recipe, place: slot.place.clone(), directory };
                    run.agent = Some((farewell.clone(), (self.beside)(replica, farewell)));
                }
            }
            News::Ended { key, how, .. } => {
                slot.hear(true);
                let Some(run) = slot.run_mut() else { return };
                run.over.cancel();
                if let Some((farewell, _)) = run.agent.take() {
                    farewell.gone.cancel();
                }
                let ran = now().saturating_sub(run.since);
                if matches!(slot.phase, Phase::Stopping(_)) {
                    tracing::info!(server = %key.0, replica = key.1, "stopped");
                    slot.phase = Phase::Stopped;
                    return;
                }
                let chance = chance(&self.chance, &key, self.runs);
                if let Some(slot) = self.slots.get_mut(&key) {
                    slot.fail(&how, ran, chance);
                }
            }
        }
    }

    fn chance(&self, key: &Key) -> f64 {
        chance(&self.chance, key, self.runs)
    }

    fn hear(&mut self) {
        for slot in self.slots.values_mut().filter(|s| s.run().is_some()) {
            slot.hear(false);
        }
    }

    /// Stops every replica and waits until they are gone.
    async fn end(mut self) {
        let keys: Vec<Key> = self.slots.keys().cloned().collect();
        for key in &keys {
            self.stop(key, false);
        }
        let gone = async {
            while self.slots.values().any(|s| s.run().is_some()) {
                let Some(news) = self.news.recv().await else { return };
                self.take(news);
            }
        };
        let _ = tokio::time::timeout(GOODBYE, gone).await;
        self.ledger.write(self.slots.values().filter_map(Slot::entry).collect());
    }
}

impl Slot {
    /// It ended by itself.
    fn fail(&mut self, how: &str, ran: Millis, chance: f64) {
        self.failures = plan::failures(self.failures, ran);
        how.clone_into(&mut self.last_end);
        let wait = plan::backoff(self.failures, chance);
        self.phase = Phase::Ended { again_at: now() + wait };
        let (server, replica) = (&self.key.0, self.key.1);
        tracing::warn!(%server, replica, failures = self.failures, "{how}; started again in {wait} ms");
    }
}

/// A number between 0 and 1.
fn chance(state: &RandomState, key: &Key, run: u64) -> f64 {
    (state.hash_one((key, run)) % 1_000_000) as f64 / 1e6
}

fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Ports that nobody has at this moment. Who is quicker than the server makes it crash, and it is started with others.
fn free_place(models_dir: PathBuf) -> std::io::Result<Place> {
    let listen = || TcpListener::bind(("127.0.0.1", 0));
    // All are held at once, so that they differ.
    let held = [listen()?, listen()?, listen()?];
    let [http_port, grpc_port, metrics_port] =
        held.each_ref().map(|l| l.local_addr().map_or(0, |a| a.port()));
    Ok(Place { http_port, grpc_port, metrics_port, models_dir })
}
