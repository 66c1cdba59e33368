//! A network in a process apart, seen from the process that serves it.

use super::frame::{self, Answer, Terms, read_frame, write_network};
use super::{Apart, Network};
use crate::error::RunError;
use crate::rten_engine::Refusal;
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

/// What a network may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes, beside what it takes when it is loaded.
    pub run_bytes: usize,
    /// Time of one run.
    pub run_time: Duration,
}

/// Loading reads and rearranges at least so many bytes a second. A network that takes longer, and this much more, is one
/// that computes without an end.
const LOAD_RATE: u64 = 50 << 20;
const LOAD_TIME: Duration = Duration::from_mins(1);
/// Memory of the program itself, its threads and its buffers.
const PROGRAM_BYTES: u64 = 128 << 20;
/// A loaded network holds its file, what rten makes of it and copies that are laid out for the kernels.
const COPIES: u64 = 4;
/// How long to wait before the process is started again when it ends time after time.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Brings the files again, for a process that has to start again.
type Source = Box<dyn Fn() -> Result<Network, String> + Send + Sync>;

/// A network that a process apart runs.
pub(crate) struct ApartModel {
    apart: Apart,
    threads: usize,
    bounds: Bounds,
    source: Source,
    bytes: usize,
    state: Mutex<State>,
}

struct State {
    life: Arc<Life>,
    /// How often the process ended since it last gave an answer.
    ends: u32,
    ended: Option<Instant>,
}

impl ApartModel {
    pub(crate) fn load(
        apart: Apart,
        threads: usize,
        bounds: Bounds,
        network: &Network,
        source: Source,
    ) -> Result<Self, Refusal> {
        let (life, bytes) = Life::start(&apart, threads, bounds, network)?;
        let state = Mutex::new(State { life: Arc::new(life), ends: 0, ended: None });
        Ok(Self { apart, threads, bounds, source, bytes, state })
    }

    /// Bytes that the process says the network takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The process; another one after an end.
    pub(crate) fn process(&self) -> u32 {
        self.state().life.shared.child().id()
    }

    pub(crate) fn run(&self, inputs: &[&Tensor], wanted: &[usize]) -> Result<Vec<Tensor>, RunError> {
        let life = self.living().map_err(RunError::rten)?;
        let result = life.run(inputs, wanted, self.bounds.run_time);
        if result.is_ok() {
            self.state().ends = 0;
        }
        result.map_err(|end| RunError::Ended { reason: end.to_string() })?.map_err(RunError::rten)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process, started again if it has ended. Callers wait for it together.
    fn living(&self) -> Result<Arc<Life>, String> {
        let mut state = self.state();
        let Some(end) = state.life.shared.end.get() else { return Ok(Arc::clone(&state.life)) };
        let end = end.to_string();
        let now = Instant::now();
        let ended = *state.ended.get_or_insert(now);
        let left = pause(state.ends).saturating_sub(now.duration_since(ended));
        if !left.is_zero() {
            return Err(format!(
                "its process ended {} times in a row and is started again in {} s; the last time {end}",
                state.ends + 1,
                left.as_secs_f64().ceil()
            ));
        }
        let network = (self.source)().map_err(|e| format!("its files cannot be read again: {e}"))?;
        state.ends += 1;
        let started = Life::start(&self.apart, self.threads, self.bounds, &network);
        // The next pause counts from an attempt that fails, not from the first end.
        state.ended = started.is_err().then(Instant::now);
        let (life, _) = started.map_err(|refusal| refusal.message)?;
        state.life = Arc::new(life);
        Ok(Arc::clone(&state.life))
    }
}

/// The first end may be one bad request; one after the other is a network that should not be tried at every request.
fn pause(ends: u32) -> Duration {
    if ends == 0 {
        return Duration::ZERO;
    }
    Duration::from_millis(100).saturating_mul(1 << ends.min(16)).min(LONGEST_PAUSE)
}

/// One life of the process. When the last of those who use it are gone, so is the process.
struct Life {
    orders: Mutex<UnixStream>,
    next: AtomicU64,
    shared: Arc<Shared>,
}

/// What a run gave, or why rten refused it.
type Given = Result<Vec<Tensor>, String>;
type Waiting = HashMap<u64, mpsc::SyncSender<Given>>;

struct Shared {
    /// Who waits for which answer; `None` when no answer can come any more.
    waiting: Mutex<Option<Waiting>>,
    child: Mutex<Child>,
    end: OnceLock<End>,
    run_bytes: usize,
}

impl Life {
    fn start(
        apart: &Apart,
        threads: usize,
        bounds: Bounds,
        network: &Network,
    ) -> Result<(Self, usize), Refusal> {
        let no_process = |e: std::io::Error| refusal(format!("no process can be started for it: {e}"));
        let (ours, theirs) = UnixStream::pair().map_err(no_process)?;
        let child = Command::new(&apart.program)
            .args(&apart.arguments)
            .arg0("gantry")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C on a terminal goes to a whole group; the process must last until requests have ended.
            .process_group(0)
            .spawn()
            .map_err(no_process)?;
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            child: Mutex::new(child),
            end: OnceLock::new(),
            run_bytes: bounds.run_bytes,
        });
        let size = network.files.values().map(Vec::len).sum::<usize>() + network.model.len();
        let load_time = LOAD_TIME + Duration::from_secs(size as u64 / LOAD_RATE);
        let memory = PROGRAM_BYTES + COPIES * size as u64 + bounds.run_bytes as u64;
        let life = Self { orders: Mutex::new(ours), next: AtomicU64::new(0), shared: Arc::clone(&shared) };
        let (tell_loaded, loaded) = mpsc::sync_channel(1);
        {
            let mut orders = life.orders();
            let answers = orders.try_clone().map_err(no_process)?;
            thread::Builder::new()
                .name("network-answers".to_owned())
                .spawn(move || shared.take_answers(answers, memory, &tell_loaded))
                .map_err(no_process)?;
            // A process that does not read is one that does not live.
            orders
                .set_write_timeout(Some(bounds.run_time.max(Duration::from_secs(1))))
                .map_err(no_process)?;
            let sent = Terms { threads, memory }
                .write(&mut *orders)
                .and_then(|()| write_network(&mut *orders, network));
            // Why it could not be sent is told by how the process ended.
            drop(sent);
        }
        match loaded.recv_timeout(load_time) {
            Ok(Answer::Loaded(bytes)) => Ok((life, bytes)),
            Ok(Answer::Refused(refusal)) => Err(refusal),
            Ok(Answer::Ran(..)) => Err(refusal("its process answers out of turn".to_owned())),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(refusal(life.shared.kill(End::LoadTime(load_time)).to_string()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(refusal(life.shared.end().to_string())),
        }
    }

    fn orders(&self) -> MutexGuard<'_, UnixStream> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, inputs: &[&Tensor], wanted: &[usize], time: Duration) -> Result<Given, End> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = frame::run(id, inputs, wanted);
        let (reply, answer) = mpsc::sync_channel(1);
        match self.shared.waiting().as_mut() {
            Some(waiting) => waiting.insert(id, reply),
            None => return Err(self.shared.end()),
        };
        if let Err(error) = message.send(&mut *self.orders()) {
            // Half a message may have been sent: nothing after it would be understood.
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
                return Err(self.shared.kill(End::Time(time)));
            }
            let _ = self.shared.child().kill();
        }
        match answer.recv_timeout(time) {
            Ok(result) => Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self.shared.kill(End::Time(time))),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.shared.end()),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.orders().shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the process has ended.
    fn end(&self) -> End {
        self.end.get().cloned().unwrap_or_else(|| End::Other("its process is gone".to_owned()))
    }

    /// Ends the process for a reason, unless it ended for another one before.
    fn kill(&self, reason: End) -> End {
        let reason = self.end.get_or_init(|| reason).clone();
        let _ = self.child().kill();
        reason
    }

    /// Gives each answer to who waits for it, until the process ends.
    fn take_answers(&self, answers: UnixStream, limit: u64, loaded: &mpsc::SyncSender<Answer>) {
        let mut answers = BufReader::new(answers);
        while let Ok(Some(frame)) = read_frame(&mut answers, limit) {
            match Answer::parse(&frame) {
                Ok(Answer::Ran(id, result)) => {
                    let waiting = self.waiting().as_mut().and_then(|w| w.remove(&id));
                    if let Some(reply) = waiting {
                        let _ = reply.send(result);
                    }
                }
                Ok(other) => {
                    let _ = loaded.try_send(other);
                }
                Err(_) => break,
            }
        }
        let end = self.bury();
        let _ = self.end.set(end);
        // Only now: who is told that no answer comes looks at once for the reason.
        self.waiting().take();
    }

    /// Waits for the process that has closed its socket, and finds out why it did.
    fn bury(&self) -> End {
        let mut child = self.child();
        let _ = child.kill();
        let status = child.wait();
        let mut words = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            let _ = stderr.take(4096).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rfind(|l| !l.trim().is_empty()).unwrap_or_default();
        // The standard library's words when the system refuses memory; the system has none for it.
        if words.contains("memory allocation of") {
            return End::Memory(self.run_bytes);
        }
        let how = status.map_or_else(
            |e| e.to_string(),
            |s| match s.signal() {
                Some(signal) => format!("by signal {signal}"),
                None => format!("with {}", s.code().unwrap_or_default()),
            },
        );
        End::Other(format!("its process ended {how}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
}

/// Why a process has ended.
#[derive(Debug, Clone)]
enum End {
    /// It asked for more memory than it may have.
    Memory(usize),
    /// A run took too long.
    Time(Duration),
    /// Loading took too long.
    LoadTime(Duration),
    Other(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => write!(
                f,
                "the network asked for more than the {} MiB of memory that a run may take, and was stopped: \
                 the parameter max_run_memory gives it more",
                bytes >> 20
            ),
            Self::Time(time) => write!(
                f,
                "the network ran longer than {} s, and was stopped: the parameter max_run_time gives it more",
                time.as_secs_f64()
            ),
            Self::LoadTime(time) => {
                write!(f, "the network was not loaded within {} s, and was stopped", time.as_secs())
            }
            Self::Other(words) => f.write_str(words),
        }
    }
}

const fn refusal(message: String) -> Refusal {
    Refusal { node: None, operator: false, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_again_and_again_waits_longer_and_not_for_ever() {
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(1), Duration::from_millis(200));
        assert!((1..60).all(|n| pause(n) <= pause(n + 1) && pause(n) <= LONGEST_PAUSE));
    }
}
