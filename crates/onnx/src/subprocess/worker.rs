//! The worker process: reads a model from the socket on its standard input, then serves runs there.

use super::frame::{Response, RunRequest, WorkerConfig, read_frame, read_model};
use super::{ModelFiles, worker_threads};
use crate::error::{LoadError, RunError};
use crate::proto::parse;
use crate::rten_engine::{Rejection, RtenModel};
use crate::spec::Interface;
use gantry_tensor::{Tensor, TensorSpec};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

/// Serves the parent process until it closes the socket.
///
/// This thread only reads, so that the worker exits with its parent even during a run.
pub fn serve() -> io::Result<()> {
    configure_process();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut requests = BufReader::new(socket.try_clone()?);
    let config = WorkerConfig::read(&mut requests)?;
    // From here on an allocation beyond the limit aborts the process.
    setrlimit(Resource::RLIMIT_DATA, config.memory, config.memory)?;
    let files = read_model(&mut requests)?;
    let (sender, queue) = mpsc::channel::<RunRequest>();
    spawn(move || {
        // A failed send means that the parent is gone.
        let _ = match load(files, config.threads) {
            Err(rejection) => Response::Rejected(rejection).message().send(&mut &socket),
            Ok((model, outputs)) => {
                let sent = Response::Loaded(model.bytes()).message().send(&mut &socket);
                sent.and_then(|()| LoadedModel { model, outputs, responses: Mutex::new(socket) }.serve(queue))
            }
        };
    })?;
    while let Some(frame) = read_frame(&mut requests, u64::MAX)? {
        if sender.send(RunRequest::parse(&frame)?).is_err() {
            break;
        }
    }
    Ok(())
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("onnx-worker".to_owned()).spawn(work).map(drop)
}

fn load(files: ModelFiles, threads: usize) -> Result<(RtenModel, Vec<TensorSpec>), Rejection> {
    let interface = parse(&files.model)
        .map_err(LoadError::from)
        .and_then(|m| Interface::new(&m))
        .map_err(|e| Rejection { node: None, operator: false, message: e.to_string() })?;
    let model = RtenModel::load(files.model, files.files, &interface, threads)?;
    Ok((model, interface.outputs))
}

/// Ignores termination signals: the parent handles them, drains its requests and then closes the socket.
fn configure_process() {
    let mut ignored = SigSet::empty();
    ignored.add(Signal::SIGINT);
    ignored.add(Signal::SIGTERM);
    let _ = ignored.thread_block();
    // Under memory pressure the kernel kills a worker before its parent.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // Panics of rten are reported in the response.
    std::panic::set_hook(Box::new(|_| {}));
}

struct LoadedModel {
    model: RtenModel,
    outputs: Vec<TensorSpec>,
    responses: Mutex<UnixStream>,
}

impl LoadedModel {
    /// One thread per core: the parent has no more runs in flight than that, and always leaves one to those that are
    /// not cancelled.
    fn serve(self, queue: mpsc::Receiver<RunRequest>) -> io::Result<()> {
        let (model, queue) = (Arc::new(self), Arc::new(Mutex::new(queue)));
        for _ in 0..worker_threads() {
            let (model, queue) = (Arc::clone(&model), Arc::clone(&queue));
            spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    if next.is_ok_and(|run| model.respond(&run).is_ok()) {
                        continue;
                    }
                    return;
                }
            })?;
        }
        Ok(())
    }

    fn respond(&self, run: &RunRequest) -> io::Result<()> {
        let inputs: Vec<&Tensor> = run.inputs.iter().collect();
        let result = self.model.run(&inputs, &run.outputs, &self.outputs).map_err(RunError::into_message);
        let message = Response::Ran(run.id, result).message();
        message.send(&mut &*self.responses.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
