//! The server: state, faults, trace and clock behind one lock.

use super::{
    builtin::Controllers,
    discovery,
    failure::Failure,
    faults::{Fault, FaultPlan, Faults},
    registry::Registry,
    request::{HttpRequest, Request, Verb},
    service::HttpService,
    state::{Reply, State},
    trace::Trace,
    watch::Watch,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Shared between clones.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    core: Mutex<Core>,
    /// Wakes watches and controllers.
    changed: watch::Sender<u64>,
    start: Instant,
    epoch: Timestamp,
}

#[derive(Default)]
struct Hooks(Vec<Hook>);

struct Hook {
    actor: Option<String>,
    /// Whether failed writes count.
    attempts: bool,
    left: u64,
    call: Box<dyn FnOnce() + Send>,
}

struct Core {
    state: State,
    faults: Faults,
    trace: Trace,
    hooks: Hooks,
    counted: u64,
}

/// Delivery of a response.
pub(super) enum Delivery {
    /// After a delay.
    Answer { reply: Reply, after: Duration },
    /// The connection closes after a delay.
    Lost { after: Duration },
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Server {
    /// Uses tokio's clock, with `epoch` as the start time.
    pub fn new(registry: Registry, seed: u64, epoch: Timestamp) -> Self {
        let state = State::new(registry, seed, epoch);
        let counted = state.revision();
        let core = Core {
            state,
            faults: Faults::default(),
            trace: Trace::default(),
            hooks: Hooks::default(),
            counted,
        };
        let inner = Inner {
            core: Mutex::new(core),
            changed: watch::Sender::new(counted),
            start: Instant::now(),
            epoch,
        };
        Self { inner: Arc::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.inner.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.inner.start.elapsed()).unwrap_or_default();
        self.inner.epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    pub(super) fn instant(&self, time: Timestamp) -> Instant {
        let since = time.duration_since(self.inner.epoch);
        self.inner.start + Duration::try_from(since).unwrap_or_default()
    }

    /// `actor` names the client in the trace.
    pub fn client(&self, actor: &str, namespace: &str) -> ::kube::Client {
        ::kube::Client::new(HttpService::new(self.clone(), actor), namespace)
    }

    /// Accesses the state directly; watches receive changes.
    pub fn with<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        let mut core = self.lock();
        let result = look(&mut core.state);
        core.settle();
        let revision = core.state.revision();
        drop(core);
        self.notify(revision);
        result
    }

    fn notify(&self, revision: u64) {
        self.inner.changed.send_if_modified(|known| std::mem::replace(known, revision) != revision);
    }

    pub fn start(&self, plan: FaultPlan) {
        self.lock().faults.start(plan);
    }

    /// Watches of a kind (`deployments.apps`) deliver nothing until [`Self::release`].
    pub fn freeze(&self, kind: &str) {
        let mut core = self.lock();
        let Core { state, faults, .. } = &mut *core;
        faults.freeze(kind, state);
    }

    /// Reads and watches of a kind return the state of a revision until [`Self::release`].
    pub fn travel(&self, kind: &str, revision: u64) {
        self.lock().faults.travel(kind, revision);
    }

    /// Ends the stale view of a kind.
    pub fn release(&self, kind: &str) {
        let mut core = self.lock();
        core.faults.release(kind);
        let revision = core.state.revision();
        drop(core);
        self.inner.changed.send_replace(revision);
    }

    /// Calls once after the nth write of an actor (or any), before its response.
    pub fn after_write(&self, nth: u64, actor: Option<&str>, call: impl FnOnce() + Send + 'static) {
        self.hook(nth, actor, false, Box::new(call));
    }

    /// As [`Self::after_write`], but also counts failed writes.
    pub fn after_attempt(&self, nth: u64, actor: Option<&str>, call: impl FnOnce() + Send + 'static) {
        self.hook(nth, actor, true, Box::new(call));
    }

    fn hook(&self, nth: u64, actor: Option<&str>, attempts: bool, call: Box<dyn FnOnce() + Send>) {
        let hook = Hook { actor: actor.map(str::to_owned), attempts, left: nth.max(1), call };
        self.lock().hooks.0.push(hook);
    }

    pub fn trace(&self) -> Trace {
        self.lock().trace.clone()
    }

    /// Runs the built-in controllers until the future is dropped.
    pub async fn run(&self, mut controllers: Controllers) {
        let mut changed = self.inner.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let due = self.with(|state| {
                let before = state.revision();
                let due = controllers.step(state, self.now());
                if state.revision() == before { due } else { Some(self.now()) }
            });
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.instant(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wait => {}
                result = changed.changed() => if result.is_err() { return },
            }
        }
    }

    /// Handles a request without HTTP and without delays.
    pub fn handle(&self, actor: &str, raw: &HttpRequest) -> Reply {
        match self.deliver(actor, raw) {
            Delivery::Answer { reply, .. } => reply,
            Delivery::Lost { .. } => Failure::new(504, "Timeout", "connection closed").into(),
        }
    }

    pub(super) fn deliver(&self, actor: &str, raw: &HttpRequest) -> Delivery {
        let now = self.now();
        let at = u64::try_from(self.inner.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut core = self.lock();
        let path = raw.target.split('?').next().unwrap_or_default();
        if let (true, Some(body)) = (raw.method == "GET", discovery::answer(path, &core.state.registry)) {
            return Delivery::Answer { reply: Reply::json(200, body), after: Duration::ZERO };
        }
        let request = match Request::read(raw, &core.state.registry) {
            Ok(request) => request,
            Err(failure) => return Delivery::Answer { reply: failure.into(), after: Duration::ZERO },
        };
        let (delivery, calls) = core.answer(&request, actor, now, at);
        let revision = core.state.revision();
        drop(core);
        self.notify(revision);
        for call in calls {
            call();
        }
        delivery
    }

    /// The next events of a watch, and when to poll it again.
    pub(super) fn next_events(&self, watch: &mut Watch) -> (Vec<Value>, Option<Timestamp>) {
        let core = self.lock();
        let (newest, until) = core.faults.newest(&watch.kind.id(), &core.state, self.now());
        (watch.next(&core.state, newest), until)
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }
}

impl Core {
    fn settle(&mut self) {
        for change in self.state.changes_after(self.counted) {
            self.trace.count(change);
        }
        self.counted = self.state.revision();
    }

    fn answer(
        &mut self,
        request: &Request,
        actor: &str,
        now: Timestamp,
        at: u64,
    ) -> (Delivery, Vec<Box<dyn FnOnce() + Send>>) {
        let faults = self.faults.meet(request, actor, &self.state, now);
        let (mut after, mut lost, mut refused) = (Duration::ZERO, false, None);
        for fault in &faults {
            match fault {
                Fault::Delay { millis } => after = after.saturating_add(Duration::from_millis(*millis)),
                Fault::TimeoutBefore { millis } => {
                    self.trace.note(at, actor, request, 0, false);
                    return (Delivery::Lost { after: Duration::from_millis(*millis) }, Vec::new());
                }
                Fault::TimeoutAfterCommit { millis } => {
                    lost = true;
                    after = Duration::from_millis(*millis);
                }
                other => refused = refused.or_else(|| refusal(other, request)),
            }
        }
        if let Some(failure) = refused {
            self.trace.note(at, actor, request, failure.code, false);
            return (Delivery::Answer { reply: failure.into(), after }, Vec::new());
        }
        let before = self.state.revision();
        let mut reply = self.handle(request, now);
        if let Reply::Watch(watch) = &mut reply {
            for fault in &faults {
                watch.trouble.add(fault);
            }
        }
        let wrote = self.state.revision() != before;
        self.settle();
        self.trace.note(at, actor, request, if lost { 0 } else { reply.code() }, wrote);
        let calls = if request.verb.writes() { self.hooks.fire(actor, wrote) } else { Vec::new() };
        (if lost { Delivery::Lost { after } } else { Delivery::Answer { reply, after } }, calls)
    }

    /// Reads may see a stale state; writes see the current one.
    fn handle(&mut self, request: &Request, now: Timestamp) -> Reply {
        let newest = self.faults.newest_read(&request.kind.id(), &self.state, now);
        if newest == self.state.revision() {
            return self.state.handle(request, now);
        }
        let answer = match request.verb {
            Verb::Get => self.state.get_at(request, newest),
            Verb::List => self.state.list(request, newest),
            Verb::Watch => self.state.watch_at(request, newest, now),
            _ => return self.state.handle(request, now),
        };
        answer.unwrap_or_else(Reply::from)
    }
}

impl Hooks {
    fn fire(&mut self, actor: &str, wrote: bool) -> Vec<Box<dyn FnOnce() + Send>> {
        let mut calls = Vec::new();
        let mut waiting = Vec::new();
        for mut hook in self.0.drain(..) {
            if hook.actor.as_deref().is_none_or(|wanted| wanted == actor) && (wrote || hook.attempts) {
                hook.left -= 1;
            }
            if hook.left == 0 {
                calls.push(hook.call);
            } else {
                waiting.push(hook);
            }
        }
        self.0 = waiting;
        calls
    }
}

fn refusal(fault: &Fault, request: &Request) -> Option<Failure> {
    let failure = match fault {
        Fault::Forbidden => {
            let (verb, kind, namespace) = (request.verb, request.kind.id(), &request.namespace);
            let message =
                format!("{kind} is forbidden: cannot {verb} resource in the namespace \"{namespace}\"");
            Failure::new(403, "Forbidden", message)
        }
        Fault::Conflict => {
            Failure::conflict(&request.kind, &request.name, "the object has been modified: read it again")
        }
        Fault::TooManyRequests { retry_after } => {
            let mut failure = Failure::new(429, "TooManyRequests", "too many requests: try again later");
            failure.retry_after = Some(*retry_after);
            failure
        }
        Fault::InternalError => Failure::new(500, "InternalError", "injected internal error"),
        Fault::Unavailable => Failure::new(503, "ServiceUnavailable", "injected unavailability"),
        _ => return None,
    };
    Some(failure)
}
