//! The process of a model: its start, its messages and its end.

use super::{
    Description, HostConfig, HostError,
    message::{self, MAX_HEADER, PREFIX, TensorHeader},
};
use gantry_tensor::{DataType, Tensor, TensorSpec};
use nix::{sys::signal, unistd::Pid};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _, process::ExitStatusExt as _},
    },
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const PROGRAM: &str = include_str!("host.py");
/// How often a wait for the process looks whether it is still needed.
const POLL: Duration = Duration::from_millis(50);
const MAX_LINE: u64 = 16 << 10;
const LAST_LINES: usize = 10;
/// Of a response beyond the memory that a run may use.
const RESPONSE_SLACK: u64 = 64 << 20;

#[derive(Deserialize)]
struct ReadyMessage {
    inputs: Vec<SpecMessage>,
    outputs: Vec<String>,
    memory: usize,
    isolated: bool,
}

#[derive(Deserialize)]
struct SpecMessage {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

/// Any message of the process.
#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    ready: Option<ReadyMessage>,
    #[serde(default)]
    outputs: Vec<TensorHeader>,
    #[serde(default)]
    error: Option<String>,
    /// The error is one of the request.
    #[serde(default)]
    request: bool,
}

#[derive(Serialize)]
struct Request<'a> {
    inputs: Vec<TensorHeader>,
    outputs: &'a [String],
}

type Lines = Arc<Mutex<VecDeque<String>>>;

pub(super) struct Worker {
    child: Child,
    socket: UnixStream,
    lines: Lines,
    closed: Arc<AtomicBool>,
    max_body: u64,
    run_memory: u64,
    /// Removed with the process.
    _directory: tempfile::TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // With the processes that the model started.
        let group = Pid::from_raw(self.child.id().cast_signed());
        let _ = signal::killpg(group, signal::Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Worker {
    pub(super) fn start(
        config: &HostConfig,
        closed: &Arc<AtomicBool>,
    ) -> Result<(Self, Description), HostError> {
        let failed = |e: io::Error| HostError::Load(format!("its Python process cannot be started: {e}"));
        let directory = tempfile::Builder::new().prefix("gantry-python-").tempdir().map_err(failed)?;
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        socket.set_read_timeout(Some(POLL)).map_err(failed)?;
        socket.set_write_timeout(Some(config.run_time.max(Duration::from_secs(1)))).map_err(failed)?;
        let threads = config.threads.max(1).to_string();
        let mut command = Command::new(&config.python);
        command
            .args(["-I", "-B", "-c", PROGRAM])
            // The variables of this process may contain credentials.
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", directory.path())
            .env("TMPDIR", directory.path())
            .envs(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, &threads)))
            .env("TF_CPP_MIN_LOG_LEVEL", "2")
            .current_dir(directory.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C signals the whole group of the terminal; requests in flight finish first.
            .process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        // It holds the other end of the socket: without this, the end of the process would not close it.
        drop(command);
        let lines = Lines::default();
        if let Some(stderr) = child.stderr.take() {
            follow(stderr, config.model.clone(), lines.clone());
        }
        let mut worker = Self {
            child,
            socket,
            lines,
            closed: closed.clone(),
            max_body: config.run_memory.saturating_add(RESPONSE_SLACK),
            run_memory: config.run_memory,
            _directory: directory,
        };
        let settings = json!({
            "loader": config.loader,
            "path": config.file,
            "import_path": config.import_path,
            "load_memory": config.load_memory,
            "run_memory": config.run_memory,
        });
        let response =
            worker.send(&settings, &[]).and_then(|()| worker.receive(config.load_time)).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::TimedOut => {
                        HostError::Load(format!("it was not loaded within {} s", config.load_time.as_secs()))
                    }
                    io::ErrorKind::Interrupted => HostError::Load("the model was unloaded".into()),
                    _ => HostError::Load(worker.end()),
                }
            })?;
        match response.0 {
            Response { ready: Some(ready), .. } => Ok((worker, ready.into())),
            Response { error, .. } => {
                Err(HostError::Load(error.unwrap_or_else(|| "it gave no reason".into())))
            }
        }
    }

    /// The outer error means that the process has ended.
    pub(super) fn infer(
        &mut self,
        inputs: &[Tensor],
        wanted: &[String],
        limit: Duration,
    ) -> Result<Result<Vec<Tensor>, HostError>, String> {
        let (headers, body) = message::encode(inputs);
        let request = Request { inputs: headers, outputs: wanted };
        let received = self.send(&request, &body).and_then(|()| self.receive(limit));
        let (response, body) = received.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => format!(
                "the run exceeded the time limit of {} s and was stopped; raise the parameter max_run_time",
                limit.as_secs_f64()
            ),
            io::ErrorKind::Interrupted => "the model was unloaded".into(),
            io::ErrorKind::InvalidData => {
                format!("its Python process sent a message that is not valid: {error}")
            }
            _ => self.end(),
        })?;
        Ok(match response {
            Response { error: Some(error), request: true, .. } => Err(HostError::Request(error)),
            Response { error: Some(error), .. } => Err(HostError::Model(error)),
            Response { outputs, .. } => message::decode(outputs, &body).map_err(|e| {
                HostError::Model(format!("its Python process sent outputs that are not valid: {e}"))
            }),
        })
    }

    fn send(&mut self, header: &impl Serialize, body: &[u8]) -> io::Result<()> {
        let frame = message::frame(header, body)?;
        self.socket.write_all(&frame).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    fn receive(&mut self, limit: Duration) -> io::Result<(Response, Vec<u8>)> {
        let give_up = Instant::now() + limit;
        let mut prefix = [0; PREFIX];
        self.read_exact(&mut prefix, give_up)?;
        let (header, body) = message::lengths(prefix);
        if header > MAX_HEADER || body > self.max_body {
            let limit = self.run_memory >> 20;
            return Err(message::malformed(&format!(
                "it is larger than the memory limit of {limit} MiB; raise the parameter max_run_memory"
            )));
        }
        let mut text = vec![0; header as usize];
        self.read_exact(&mut text, give_up)?;
        let mut raw = vec![0; usize::try_from(body).map_err(|_| message::malformed("it is too large"))?];
        self.read_exact(&mut raw, give_up)?;
        Ok((serde_json::from_slice(&text)?, raw))
    }

    fn read_exact(&mut self, mut buffer: &mut [u8], give_up: Instant) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.socket.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = buffer.get_mut(count..).unwrap_or_default(),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.closed.load(Ordering::Relaxed) {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    if Instant::now() >= give_up {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How the process ended, with the last line of its output.
    fn end(&mut self) -> String {
        let give_up = Instant::now() + Duration::from_secs(2);
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < give_up => std::thread::sleep(POLL),
                Ok(status) => break status,
                Err(_) => break None,
            }
        };
        let how = match status.map(|status| (status.code(), status.signal())) {
            Some((_, Some(9))) => "was killed (out of memory, perhaps)".into(),
            Some((_, Some(number))) => signal::Signal::try_from(number)
                .map_or_else(|_| format!("was killed by signal {number}"), |s| format!("was killed by {s}")),
            Some((Some(code), _)) => format!("ended with exit code {code}"),
            _ => "closed its connection".into(),
        };
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let last = lines.iter().rev().find(|line| !line.trim().is_empty());
        format!("its Python process {how}{}", last.map(|line| format!(": {line}")).unwrap_or_default())
    }
}

impl From<ReadyMessage> for Description {
    fn from(ready: ReadyMessage) -> Self {
        let inputs = ready.inputs.into_iter().filter_map(|spec| {
            let SpecMessage { name, datatype, shape } = spec;
            Some(TensorSpec { name, datatype: DataType::parse(&datatype)?, shape })
        });
        Self {
            inputs: inputs.collect(),
            outputs: ready.outputs,
            memory: ready.memory,
            isolated: ready.isolated,
        }
    }
}

/// Logs the output of the process and keeps its last lines.
fn follow(stderr: ChildStderr, model: String, lines: Lines) {
    std::thread::spawn(move || {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut stderr).take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    tracing::info!(model, "{text}");
                    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                    if lines.len() == LAST_LINES {
                        lines.pop_front();
                    }
                    lines.push_back(text);
                }
            }
        }
    });
}
