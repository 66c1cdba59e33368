//! The process apart: takes a network from its standard input, which is a socket, and answers there until it ends.

use super::Network;
use super::frame::{Answer, Run, Terms, read_frame, read_network};
use crate::error::{LoadError, RunError};
use crate::proto::parse;
use crate::rten_engine::{Refusal, RtenModel};
use crate::spec::Interface;
use gantry_tensor::{Tensor, TensorSpec};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

/// Serves the process that started this one, until it closes the socket.
///
/// This thread does nothing but read, so that the process goes with its parent whatever the network is doing.
pub fn serve() -> io::Result<()> {
    step_aside();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut orders = BufReader::new(socket.try_clone()?);
    let terms = Terms::read(&mut orders)?;
    // From here on the system refuses what is too much, and the process ends.
    setrlimit(Resource::RLIMIT_DATA, terms.memory, terms.memory)?;
    let network = read_network(&mut orders)?;
    let (hand_out, taken) = mpsc::channel::<Run>();
    spawn(move || {
        let loaded = load(network, terms.threads);
        // Without a parent there is nobody to tell.
        let _ = match loaded {
            Err(refusal) => Answer::Refused(refusal).message().send(&mut &socket),
            Ok((network, outputs)) => {
                let told = Answer::Loaded(network.bytes()).message().send(&mut &socket);
                told.and_then(|()| Served { network, outputs, answers: Mutex::new(socket) }.answer_all(taken))
            }
        };
    })?;
    while let Some(frame) = read_frame(&mut orders, u64::MAX)? {
        if hand_out.send(Run::parse(&frame)?).is_err() {
            break;
        }
    }
    Ok(())
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("network".to_owned()).spawn(work).map(drop)
}

fn load(network: Network, threads: usize) -> Result<(RtenModel, Vec<TensorSpec>), Refusal> {
    let interface = parse(&network.model)
        .map_err(LoadError::from)
        .and_then(|m| Interface::new(&m))
        .map_err(|e| Refusal { node: None, operator: false, message: e.to_string() })?;
    let network = RtenModel::load(network.model, network.files, &interface, threads)?;
    Ok((network, interface.outputs))
}

/// Ctrl-C and a supervisor's signals are for the parent, which lets requests end first and then closes the socket.
fn step_aside() {
    let mut theirs = SigSet::empty();
    theirs.add(Signal::SIGINT);
    theirs.add(Signal::SIGTERM);
    let _ = theirs.thread_block();
    // When the system has no memory left, one network is the least that can be given up.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // What rten gives up on is told in the answer.
    std::panic::set_hook(Box::new(|_| {}));
}

struct Served {
    network: RtenModel,
    outputs: Vec<TensorSpec>,
    answers: Mutex<UnixStream>,
}

impl Served {
    /// As many at a time as there are cores: the parent has no more on their way than it has threads.
    fn answer_all(self, taken: mpsc::Receiver<Run>) -> io::Result<()> {
        let (served, taken) = (Arc::new(self), Arc::new(Mutex::new(taken)));
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (served, taken) = (Arc::clone(&served), Arc::clone(&taken));
            spawn(move || {
                loop {
                    let next = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    if next.is_ok_and(|run| served.answer(&run).is_ok()) {
                        continue;
                    }
                    return;
                }
            })?;
        }
        Ok(())
    }

    fn answer(&self, run: &Run) -> io::Result<()> {
        let inputs: Vec<&Tensor> = run.inputs.iter().collect();
        let result = self.network.run(&inputs, &run.wanted, &self.outputs).map_err(RunError::into_words);
        let message = Answer::Ran(run.id, result).message();
        message.send(&mut &*self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
