//! Client of a worker process: starts, supervises and restarts it.

use super::frame::{self, Response, WorkerConfig, read_frame, write_model};
use super::{ModelFiles, WorkerCommand};
use crate::error::RunError;
use crate::rten_engine::Rejection;
use gantry_tensor::Tensor;
use std::collections::HashMap;
use std::fmt;
use std::io::{BufReader, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Reads the model again for a restart.
type Source = Box<dyn Fn() -> Result<ModelFiles, String> + Send + Sync>;

/// A model in a worker process.
pub(crate) struct SubprocessModel {
    command: WorkerCommand,
    threads: usize,
    limits: RunLimits,
    source: Source,
    bytes: usize,
    state: Mutex<State>,
}

struct State {
    worker: Arc<WorkerProcess>,
    /// Exits since the last successful run.
    failures: u32,
    failed_at: Option<Instant>,
}

impl SubprocessModel {
    pub(crate) fn load(
        command: WorkerCommand,
        threads: usize,
        limits: RunLimits,
        files: &ModelFiles,
        source: Source,
    ) -> Result<Self, Rejection> {
        let (worker, bytes) = WorkerProcess::start(&command, threads, limits, files)?;
        let state = Mutex::new(State { worker: Arc::new(worker), failures: 0, failed_at: None });
        Ok(Self { command, threads, limits, source, bytes, state })
    }

    /// Size of the loaded model, as reported by the worker.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pid of the current worker.
    pub(crate) fn process(&self) -> u32 {
        self.state().worker.shared.child().id()
    }

    pub(crate) fn run(&self, inputs: &[&Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, RunError> {
        let worker = self.ensure_running().map_err(RunError::rten)?;
        let result = worker.run(inputs, outputs, self.limits.run_time);
        if result.is_ok() {
            self.state().failures = 0;
        }
        result.map_err(|exit| RunError::Ended { reason: exit.to_string() })?.map_err(RunError::rten)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker, restarted if it has exited. Concurrent callers share one restart.
    fn ensure_running(&self) -> Result<Arc<WorkerProcess>, String> {
        let mut state = self.state();
        let Some(exit) = state.worker.shared.exit.get() else { return Ok(Arc::clone(&state.worker)) };
        let exit = exit.to_string();
        let now = Instant::now();
        let failed_at = *state.failed_at.get_or_insert(now);
        let left = backoff(state.failures).saturating_sub(now.duration_since(failed_at));
        if !left.is_zero() {
            return Err(format!(
                "its worker exited {} times in a row and restarts in {} s; last exit: {exit}",
                state.failures + 1,
                left.as_secs_f64().ceil()
            ));
        }
        let files = (self.source)().map_err(|e| format!("cannot read its files again: {e}"))?;
        state.failures += 1;
        let started = WorkerProcess::start(&self.command, self.threads, self.limits, &files);
        // The next backoff counts from a failed attempt, not from the first exit.
        state.failed_at = started.is_err().then(Instant::now);
        let (worker, _) = started.map_err(|rejection| rejection.message)?;
        state.worker = Arc::new(worker);
        Ok(Arc::clone(&state.worker))
    }
}

/// The first exit may be one bad request and restarts at once; repeated exits back off.
fn backoff(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(BACKOFF_MAX)
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
}

impl WorkerProcess {
    fn start(
        command: &WorkerCommand,
        threads: usize,
        limits: RunLimits,
        files: &ModelFiles,
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
        match loaded.recv_timeout(load_time) {
            Ok(Response::Loaded(bytes)) => Ok((worker, bytes)),
            Ok(Response::Rejected(rejection)) => Err(rejection),
            Ok(Response::Ran(..)) => Err(rejection("its worker sent an unexpected response".to_owned())),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(rejection(worker.shared.kill(Exit::LoadTime(load_time)).to_string()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(rejection(worker.shared.exit().to_string())),
        }
    }

    fn requests(&self) -> MutexGuard<'_, UnixStream> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, inputs: &[&Tensor], outputs: &[usize], time: Duration) -> Result<RunResult, Exit> {
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
        match response.recv_timeout(time) {
            Ok(result) => Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.shared.kill(Exit::Time(time))),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.shared.exit()),
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
    fn backoff_grows_up_to_the_maximum() {
        assert_eq!(backoff(0), Duration::ZERO);
        assert_eq!(backoff(1), Duration::from_millis(200));
        assert!((1..60).all(|n| backoff(n) <= backoff(n + 1) && backoff(n) <= BACKOFF_MAX));
    }
}
