//! A model in a Python process of its own.
//!
//! ```text
//! callers ── jobs (bounded) ──▶ one thread per model ── socket ──▶ host.py: the library
//!                                  └ starts, stops and restarts the process
//! ```
//!
//! The process gets neither the environment variables nor, where the kernel allows it, the network of its parent. It is
//! stopped when a run exceeds its time limit or its memory limit, and when the model is unloaded; it exits by itself when
//! this process does.

pub(crate) mod message;
mod worker;

use gantry_tensor::{CancelToken, Tensor, TensorSpec};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};
use worker::Worker;

/// Jobs that wait for the process; the runtime bounds its own queue before.
const MAX_WAITING: usize = 64;
const POLL: Duration = Duration::from_millis(10);
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// What a process needs to know.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// For log lines.
    pub model: String,
    pub python: PathBuf,
    /// The name of the loader in the host program.
    pub loader: &'static str,
    pub file: PathBuf,
    /// Modules beside the model.
    pub import_path: Option<PathBuf>,
    pub threads: usize,
    /// Memory of the process while it loads.
    pub load_memory: u64,
    /// Memory of a run beyond that of the loaded model.
    pub run_memory: u64,
    pub load_time: Duration,
    pub run_time: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The model cannot be loaded.
    #[error("{0}")]
    Load(String),
    /// The request does not fit the model.
    #[error("{0}")]
    Request(String),
    #[error("{0}")]
    Model(String),
    /// The process is being restarted.
    #[error("{0}")]
    Unavailable(String),
    #[error("the request was cancelled")]
    Cancelled,
}

/// Interface and size of a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    pub inputs: Vec<TensorSpec>,
    /// Names of the default outputs.
    pub outputs: Vec<String>,
    pub memory: usize,
    /// The process has no network.
    pub isolated: bool,
}

struct Job {
    inputs: Vec<Tensor>,
    wanted: Vec<String>,
    cancel: CancelToken,
    reply: mpsc::SyncSender<Result<Vec<Tensor>, HostError>>,
}

/// A model in a process; the process is stopped when this is dropped.
#[derive(Debug)]
pub struct Host {
    jobs: mpsc::SyncSender<Job>,
    description: Description,
    closed: Arc<AtomicBool>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Host {
    /// Starts the process and waits until the model is loaded. Blocking.
    pub fn start(config: HostConfig) -> Result<Self, HostError> {
        let closed = Arc::new(AtomicBool::new(false));
        let (worker, description) = Worker::start(&config, &closed)?;
        let (jobs, receiver) = mpsc::sync_channel(MAX_WAITING);
        let supervisor = Supervisor {
            config,
            worker: Some(worker),
            failures: 0,
            start_at: Instant::now(),
            closed: closed.clone(),
        };
        std::thread::Builder::new()
            .name("python-host".into())
            .spawn(move || supervisor.run(&receiver))
            .map_err(|e| HostError::Unavailable(format!("no thread for its Python process: {e}")))?;
        Ok(Self { jobs, description, closed })
    }

    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Runs the model. Blocking; polls `cancel`.
    pub fn infer(
        &self,
        inputs: &[Tensor],
        wanted: &[&str],
        cancel: &CancelToken,
    ) -> Result<Vec<Tensor>, HostError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
        let job = Job { inputs: inputs.to_vec(), wanted, cancel: cancel.clone(), reply };
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => HostError::Unavailable("its Python process is busy".into()),
            mpsc::TrySendError::Disconnected(_) => {
                HostError::Unavailable("its Python process has ended".into())
            }
        })?;
        loop {
            match answer.recv_timeout(POLL) {
                Ok(answer) => return answer,
                Err(mpsc::RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                    return Err(HostError::Cancelled);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(HostError::Unavailable("its Python process has ended".into()));
                }
            }
        }
    }
}

/// The thread that owns the process.
struct Supervisor {
    config: HostConfig,
    worker: Option<Worker>,
    /// Ends of the process without a successful run since.
    failures: u32,
    start_at: Instant,
    closed: Arc<AtomicBool>,
}

impl Supervisor {
    fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let answer = if job.cancel.is_cancelled() {
                Err(HostError::Cancelled)
            } else {
                self.infer(&job.inputs, &job.wanted)
            };
            // The caller may have gone.
            let _ = job.reply.try_send(answer);
        }
    }

    fn infer(&mut self, inputs: &[Tensor], wanted: &[String]) -> Result<Vec<Tensor>, HostError> {
        if self.worker.is_none() {
            let left = self.start_at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let seconds = left.as_secs_f64().ceil();
                return Err(HostError::Unavailable(format!(
                    "its Python process ended and restarts in {seconds} s"
                )));
            }
            match Worker::start(&self.config, &self.closed) {
                Ok((worker, _)) => self.worker = Some(worker),
                Err(error) => {
                    self.back_off();
                    return Err(HostError::Unavailable(format!(
                        "its Python process does not start again: {error}"
                    )));
                }
            }
        }
        let Some(worker) = &mut self.worker else {
            return Err(HostError::Unavailable("its Python process has ended".into()));
        };
        match worker.infer(inputs, wanted, self.config.run_time) {
            Ok(answer) => {
                self.failures = 0;
                answer
            }
            Err(end) => {
                tracing::warn!(model = self.config.model, reason = %end, "Python process ended");
                self.worker = None;
                self.back_off();
                Err(HostError::Model(end))
            }
        }
    }

    /// The first end restarts at once: it may be one bad request.
    fn back_off(&mut self) {
        let pause = match self.failures {
            0 => Duration::ZERO,
            n => BACKOFF_MIN.saturating_mul(1 << (n - 1).min(16)).min(BACKOFF_MAX),
        };
        self.failures = self.failures.saturating_add(1);
        self.start_at = Instant::now() + pause;
    }
}
