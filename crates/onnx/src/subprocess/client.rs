//! Client of a worker process: starts, supervises and restarts it.

use super::frame::{self, Response, WorkerConfig, read_frame, write_model};
use super::{ModelFiles, WorkerCommand, worker_threads};
use crate::error::RunError;
use crate::rten_engine::Rejection;
use gantry_tensor::{CancelToken, Tensor};
use std::collections::HashMap;
use std::fmt;
use std::io::{BufReader, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(crate) struct RunLimits {
    /// Memory beyond that of the loaded model.
    pub run_bytes: usize,
    pub run_time: Duration,
}

/// Minimum load throughput in bytes per second. A model that takes longer plus `LOAD_GRACE` is stopped.
const LOAD_RATE: u64 = 50 << 20;
const LOAD_GRACE: Duration = Duration::from_mins(1);
/// Memory of the process itself, its threads and buffers.
const PROCESS_BYTES: u64 = 128 << 20;
/// The file, rten's graph, and copies laid out for the kernels.
const COPIES: u64 = 4;
/// Restart backoff of a worker that keeps exiting.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Exits further apart than this are unrelated.
const STABLE_AFTER: Duration = Duration::from_mins(1);
/// How often waiting threads look whether they are still needed.
const POLL: Duration = Duration::from_millis(10);
/// Bounds of the time that a cancelled run may take to end.
const CANCEL_GRACE_MIN: Duration = Duration::from_millis(100);
const CANCEL_GRACE_MAX: Duration = Duration::from_secs(10);

/// Reads the model again for a restart.
type Source = Box<dyn Fn() -> Result<ModelFiles, String> + Send + Sync>;

/// A model in a worker process.
pub(crate) struct SubprocessModel(Arc<Supervisor>);

struct Supervisor {
    command: WorkerCommand,
    threads: usize,
    limits: RunLimits,
    source: Source,
    bytes: usize,
    /// A cancelled run may go on for about as long as a restart would take.
    cancel_grace: Duration,
    state: Mutex<State>,
    /// The model is dropped.
    closed: AtomicBool,
}

struct State {
    worker: Arc<WorkerProcess>,
    restarts: Restarts,
    /// Set while a thread restarts the worker: the time of its next attempt.
    restart_at: Option<Instant>,
    /// Why the last attempt failed.
    restart_error: Option<String>,
}

/// Exits of a worker. Successful runs in between do not count: one request out of two may kill it.
#[derive(Default)]
struct Restarts {
    exits: u32,
    last: Option<Instant>,
}

impl Restarts {
    /// Records an exit and returns the pause before the restart. The first exit may be one bad request and restarts
    /// at once.
    fn record(&mut self, now: Instant) -> Duration {
        if self.last.is_some_and(|last| now.duration_since(last) > STABLE_AFTER) {
            self.exits = 0;
        }
        self.last = Some(now);
        self.exits = self.exits.saturating_add(1);
        match self.exits {
            1 => Duration::ZERO,
            n => BACKOFF_MIN.saturating_mul(1 << (n - 1).min(16)).min(BACKOFF_MAX),
        }
    }
}

impl SubprocessModel {
    pub(crate) fn load(
        command: WorkerCommand,
        threads: usize,
        limits: RunLimits,
        files: &ModelFiles,
        source: Source,
    ) -> Result<Self, Rejection> {
        let closed = AtomicBool::new(false);
        let started = Instant::now();
        let (worker, bytes) = WorkerProcess::start(&command, threads, limits, files, &closed)?;
        let cancel_grace = started.elapsed().clamp(CANCEL_GRACE_MIN, CANCEL_GRACE_MAX);
        let state = Mutex::new(State {
            worker: Arc::new(worker),
            restarts: Restarts::default(),
            restart_at: None,
            restart_error: None,
        });
        Ok(Self(Arc::new(Supervisor {
            command,
            threads,
            limits,
            source,
            bytes,
            cancel_grace,
            state,
            closed,
        })))
    }

    /// Size of the loaded model, as reported by the worker.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Pid of the current worker.
    pub(crate) fn process(&self) -> u32 {
        self.0.state().worker.shared.child().id()
    }

    pub(crate) fn run(
        &self,
        inputs: &[&Tensor],
        outputs: &[usize],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, RunError> {
        let worker = self.0.worker()?;
        match worker.run(inputs, outputs, self.0.limits.run_time, cancel) {
            Ok(Outcome::Done(result)) => result.map_err(RunError::rten),
            Ok(Outcome::Cancelled(response)) => {
                self.0.abandon(&worker, response);
                Err(RunError::Cancelled)
            }
            Err(exit) => {
                // At once, so that the next request finds a worker.
                let _ = self.0.worker();
                Err(match exit {
                    Exit::Cancelled => RunError::Unavailable { reason: exit.to_string() },
                    exit => RunError::Ended { reason: exit.to_string() },
                })
            }
        }
    }
}

impl Drop for SubprocessModel {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

impl Supervisor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The running worker. If it has exited, a thread restarts it, and callers do not wait.
    fn worker(self: &Arc<Self>) -> Result<Arc<WorkerProcess>, RunError> {
        let mut state = self.state();
        let Some(exit) = state.worker.shared.exit.get() else { return Ok(Arc::clone(&state.worker)) };
        let exit = exit.to_string();
        let now = Instant::now();
        let restart_at = state.restart_at.unwrap_or_else(|| now + state.restarts.record(now));
        if state.restart_at.is_none() {
            let this = Arc::clone(self);
            let thread = thread::Builder::new().name("onnx-restart".to_owned());
            state.restart_at = thread.spawn(move || this.restart()).is_ok().then_some(restart_at);
        }
        let when = match restart_at.saturating_duration_since(now) {
            Duration::ZERO => "is restarting".to_owned(),
            left => format!("restarts in {} s", left.as_secs_f64().ceil()),
        };
        let times = match state.restarts.exits {
            1 => "its worker exited".to_owned(),
            n => format!("its worker exited {n} times within a short time"),
        };
        let reason = match &state.restart_error {
            Some(error) => format!("{times} and {when}; last attempt: {error}"),
            None => format!("{times} and {when}; last exit: {exit}"),
        };
        Err(RunError::Unavailable { reason })
    }

    /// Restarts the worker, after its backoff, until it runs.
    fn restart(&self) {
        while !self.is_closed() {
            let at = self.state().restart_at;
            let left = at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            if !left.is_zero() {
                thread::sleep(left.min(POLL));
                continue;
            }
            let files = (self.source)().map_err(|e| rejection(format!("cannot read its files again: {e}")));
            let started = files.and_then(|files| {
                WorkerProcess::start(&self.command, self.threads, self.limits, &files, &self.closed)
            });
            let mut state = self.state();
            match started {
                Ok((worker, _)) => {
                    state.worker = Arc::new(worker);
                    state.restart_at = None;
                    state.restart_error = None;
                    return;
                }
                Err(rejection) => {
                    let now = Instant::now();
                    state.restart_at = Some(now + state.restarts.record(now));
                    state.restart_error = Some(rejection.message);
                }
            }
        }
    }

    /// Lets a cancelled run end by itself for a short time, and else kills the worker. A run cannot be stopped alone.
    fn abandon(self: &Arc<Self>, worker: &Arc<WorkerProcess>, response: mpsc::Receiver<RunResult>) {
        let abandoned = worker.shared.abandoned.fetch_add(1, Ordering::Relaxed) + 1;
        let kill = |this: &Arc<Self>, worker: &WorkerProcess| {
            worker.shared.kill(Exit::Cancelled);
            let _ = this.worker();
        };
        // Others still find a thread of the worker.
        if abandoned >= worker_threads() {
            return kill(self, worker);
        }
        let this = Arc::clone(self);
        let waiting = Arc::clone(worker);
        let wait = move || match response.recv_timeout(this.cancel_grace) {
            Err(mpsc::RecvTimeoutError::Timeout) => kill(&this, &waiting),
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                waiting.shared.abandoned.fetch_sub(1, Ordering::Relaxed);
            }
        };
        if thread::Builder::new().name("onnx-cancelled".to_owned()).spawn(wait).is_err() {
            kill(self, worker);
        }
    }
}

/// What became of a run.
enum Outcome {
    Done(RunResult),
    /// The caller does not wait for the response any more.
    Cancelled(mpsc::Receiver<RunResult>),
}

/// A running worker; it exits when this is dropped.
struct WorkerProcess {
    requests: Mutex<UnixStream>,
    next: AtomicU64,
    shared: Arc<Shared>,
}

/// Outputs of a run, or rten's error.
type RunResult = Result<Vec<Tensor>, String>;
type InFlight = HashMap<u64, mpsc::SyncSender<RunResult>>;

struct Shared {
    /// Runs by request id; `None` once the worker has exited.
    in_flight: Mutex<Option<InFlight>>,
    child: Mutex<Child>,
    exit: OnceLock<Exit>,
    run_bytes: usize,
    /// Cancelled runs that have not ended.
    abandoned: AtomicUsize,
}

impl WorkerProcess {
    fn start(
        command: &WorkerCommand,
        threads: usize,
        limits: RunLimits,
        files: &ModelFiles,
        closed: &AtomicBool,
    ) -> Result<(Self, usize), Rejection> {
        let start_error = |e: std::io::Error| rejection(format!("cannot start its worker process: {e}"));
        let (ours, theirs) = UnixStream::pair().map_err(start_error)?;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .arg0("gantry")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C signals the whole process group; the worker must outlive the requests in flight.
            .process_group(0)
            .spawn()
            .map_err(start_error)?;
        let shared = Arc::new(Shared {
            in_flight: Mutex::new(Some(HashMap::new())),
            child: Mutex::new(child),
            exit: OnceLock::new(),
            run_bytes: limits.run_bytes,
            abandoned: AtomicUsize::new(0),
        });
        let size = files.files.values().map(Vec::len).sum::<usize>() + files.model.len();
        let load_time = LOAD_GRACE + Duration::from_secs(size as u64 / LOAD_RATE);
        let memory = PROCESS_BYTES + COPIES * size as u64 + limits.run_bytes as u64;
        let worker =
            Self { requests: Mutex::new(ours), next: AtomicU64::new(0), shared: Arc::clone(&shared) };
        let (load_sender, loaded) = mpsc::sync_channel(1);
        {
            let mut requests = worker.requests();
            let responses = requests.try_clone().map_err(start_error)?;
            thread::Builder::new()
                .name("onnx-responses".to_owned())
                .spawn(move || shared.read_responses(responses, memory, &load_sender))
                .map_err(start_error)?;
            // A worker that does not read is stuck.
            requests
                .set_write_timeout(Some(limits.run_time.max(Duration::from_secs(1))))
                .map_err(start_error)?;
            let sent = WorkerConfig { threads, memory }
                .write(&mut *requests)
                .and_then(|()| write_model(&mut *requests, files));
            // If sending failed, the exit of the worker has the reason.
            drop(sent);
        }
        let give_up = Instant::now() + load_time;
        loop {
            return match loaded.recv_timeout(POLL) {
                Ok(Response::Loaded(bytes)) => Ok((worker, bytes)),
                Ok(Response::Rejected(rejection)) => Err(rejection),
                Ok(Response::Ran(..)) => Err(rejection("its worker sent an unexpected response".to_owned())),
                Err(mpsc::RecvTimeoutError::Timeout) if closed.load(Ordering::Relaxed) => {
                    Err(rejection("the model was unloaded".to_owned()))
                }
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < give_up => continue,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    Err(rejection(worker.shared.kill(Exit::LoadTime(load_time)).to_string()))
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => Err(rejection(worker.shared.exit().to_string())),
            };
        }
    }

    fn requests(&self) -> MutexGuard<'_, UnixStream> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(
        &self,
        inputs: &[&Tensor],
        outputs: &[usize],
        time: Duration,
        cancel: &CancelToken,
    ) -> Result<Outcome, Exit> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = frame::run(id, inputs, outputs);
        let (reply, response) = mpsc::sync_channel(1);
        match self.shared.in_flight().as_mut() {
            Some(in_flight) => in_flight.insert(id, reply),
            None => return Err(self.shared.exit()),
        };
        if let Err(error) = message.send(&mut *self.requests()) {
            // A partial message makes the stream unusable.
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                return Err(self.shared.kill(Exit::Time(time)));
            }
            let _ = self.shared.child().kill();
        }
        let started = Instant::now();
        loop {
            let left = time.saturating_sub(started.elapsed());
            return match response.recv_timeout(left.min(POLL)) {
                Ok(result) => Ok(Outcome::Done(result)),
                Err(mpsc::RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    Ok(Outcome::Cancelled(response))
                }
                Err(mpsc::RecvTimeoutError::Timeout) if left > POLL => continue,
                Err(mpsc::RecvTimeoutError::Timeout) => Err(self.shared.kill(Exit::Time(time))),
                Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.shared.exit()),
            };
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.requests().shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn in_flight(&self) -> MutexGuard<'_, Option<InFlight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exit(&self) -> Exit {
        self.exit.get().cloned().unwrap_or_else(|| Exit::Other("its worker has exited".to_owned()))
    }

    /// Kills the worker; the first recorded reason wins.
    fn kill(&self, reason: Exit) -> Exit {
        let reason = self.exit.get_or_init(|| reason).clone();
        let _ = self.child().kill();
        reason
    }

    /// Dispatches responses by request id until the worker exits.
    fn read_responses(&self, responses: UnixStream, limit: u64, loaded: &mpsc::SyncSender<Response>) {
        let mut responses = BufReader::new(responses);
        while let Ok(Some(frame)) = read_frame(&mut responses, limit) {
            match Response::parse(&frame) {
                Ok(Response::Ran(id, result)) => {
                    let reply = self.in_flight().as_mut().and_then(|runs| runs.remove(&id));
                    if let Some(reply) = reply {
                        let _ = reply.send(result);
                    }
                }
                Ok(other) => {
                    let _ = loaded.try_send(other);
                }
                Err(_) => break,
            }
        }
        let exit = self.reap();
        let _ = self.exit.set(exit);
        // After `exit` is set: callers that are disconnected read it at once.
        self.in_flight().take();
    }

    /// Waits for the worker that has closed its socket, and determines the reason.
    fn reap(&self) -> Exit {
        let mut child = self.child();
        let _ = child.kill();
        let status = child.wait();
        let mut output = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            let _ = stderr.take(4096).read_to_end(&mut output);
        }
        let output = String::from_utf8_lossy(&output);
        let last = output.lines().rfind(|l| !l.trim().is_empty()).unwrap_or_default();
        // The standard library's message for a failed allocation; the exit status does not tell.
        if output.contains("memory allocation of") {
            return Exit::Memory(self.run_bytes);
        }
        let how = status.map_or_else(
            |e| e.to_string(),
            |s| match s.signal() {
                Some(signal) => format!("by signal {signal}"),
                None => format!("with {}", s.code().unwrap_or_default()),
            },
        );
        Exit::Other(format!("its worker exited {how}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
}

/// Why a worker has exited.
#[derive(Debug, Clone)]
enum Exit {
    /// Memory limit of a run.
    Memory(usize),
    /// Time limit of a run.
    Time(Duration),
    /// A cancelled run did not end.
    Cancelled,
    LoadTime(Duration),
    Other(String),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => write!(
                f,
                "the run exceeded the memory limit of {} MiB and was stopped; raise the parameter max_run_memory",
                bytes >> 20
            ),
            Self::Time(time) => write!(
                f,
                "the run exceeded the time limit of {} s and was stopped; raise the parameter max_run_time",
                time.as_secs_f64()
            ),
            Self::Cancelled => f.write_str("a cancelled run was stopped"),
            Self::LoadTime(time) => {
                write!(f, "the model did not load within {} s and was stopped", time.as_secs())
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

const fn rejection(message: String) -> Rejection {
    Rejection { node: None, operator: false, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_with_each_exit_until_the_worker_is_stable() {
        let mut restarts = Restarts::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let pauses: Vec<u128> = (0..10).map(|i| restarts.record(at(i * 20)).as_millis()).collect();
        assert_eq!(pauses, [0, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        assert!((0..100).all(|i| restarts.record(at(181 + i)) == BACKOFF_MAX));
        assert_eq!(restarts.record(at(280) + STABLE_AFTER + Duration::from_millis(1)), Duration::ZERO);
    }
}
