//! Constant-rate load: each request has a deadline and is counted in the phase in which it was sent.

use super::inference_check::InferenceCheck;
use crate::{Failure, k8s};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Requests per second and client: so few that a slow response does not delay the next request.
const CLIENT_RATE: f64 = 2.5;
/// Consecutive successes that count as recovered: two seconds at fifty per second.
const RECOVERED: u64 = 100;

/// Results of the requests to one model in one phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// By message.
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) slowest: Duration,
}

impl Tally {
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    fn count(&mut self, outcome: &Result<(), Failure>, took: Duration) {
        self.requests += 1;
        self.slowest = self.slowest.max(took);
        if let Err(failure) = outcome {
            *self.failures.entry(failure.to_string()).or_default() += 1;
        }
    }
}

/// The time of one chaos action.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) started: Duration,
    /// By model.
    pub(super) tallies: BTreeMap<&'static str, Tally>,
}

#[derive(Default)]
struct Results {
    phases: Vec<Phase>,
    /// Consecutive successes.
    successes: u64,
}

pub(super) struct Load {
    started: Instant,
    stop: Arc<AtomicBool>,
    results: Arc<Mutex<Results>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sends each request at its rate. Every other client keeps its connection; the others open one per request.
    pub(super) fn start(address: SocketAddr, checks: &[(InferenceCheck, u32)]) -> Self {
        let mut load = Self {
            started: Instant::now(),
            stop: Arc::default(),
            results: Arc::default(),
            clients: Vec::new(),
        };
        load.phase("undisturbed");
        for (check, rate) in checks {
            let clients = (f64::from(*rate) / CLIENT_RATE).round() as u32;
            for number in 0..clients {
                let first = f64::from(number) / f64::from(clients) / CLIENT_RATE;
                let client = Client {
                    check: check.clone(),
                    address,
                    keep_alive: number % 2 == 0,
                    next: load.started + Duration::from_secs_f64(first),
                    stop: load.stop.clone(),
                    results: load.results.clone(),
                };
                load.clients.push(std::thread::spawn(move || client.run()));
            }
        }
        load
    }

    /// Starts a phase.
    pub(super) fn phase(&self, name: &str) {
        let mut results = lock(&self.results);
        results.successes = 0;
        results.phases.push(Phase {
            name: name.to_owned(),
            started: self.started.elapsed(),
            ..Phase::default()
        });
    }

    /// Waits for a series of successes.
    pub(super) fn wait_for_recovery(&self, seconds: u64) -> Result<(), Failure> {
        lock(&self.results).successes = 0;
        k8s::until("consecutive successes", seconds, || lock(&self.results).successes >= RECOVERED)
    }

    /// Stops the clients and returns the results.
    pub(super) fn stop(mut self) -> Vec<Phase> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
        std::mem::take(&mut lock(&self.results).phases)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn lock(results: &Mutex<Results>) -> MutexGuard<'_, Results> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Client {
    check: InferenceCheck,
    address: SocketAddr,
    keep_alive: bool,
    next: Instant,
    stop: Arc<AtomicBool>,
    results: Arc<Mutex<Results>>,
}

impl Client {
    fn run(mut self) {
        let mut kept = None;
        loop {
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // A delayed client catches up: the rate is constant.
            self.next += Duration::from_secs_f64(1.0 / CLIENT_RATE);
            let phase = lock(&self.results).phases.len().saturating_sub(1);
            let started = Instant::now();
            let outcome = self.check.send(self.address, &mut kept);
            if !self.keep_alive {
                kept = None;
            }
            let mut results = lock(&self.results);
            results.successes = if outcome.is_ok() { results.successes + 1 } else { 0 };
            if let Some(phase) = results.phases.get_mut(phase) {
                phase.tallies.entry(self.check.model).or_default().count(&outcome, started.elapsed());
            }
        }
    }
}

/// The phases as a table: requests, failures and slowest response by model, and the failures in detail.
pub(super) fn table(phases: &[Phase]) -> String {
    let models: Vec<&str> = phases.first().into_iter().flat_map(|p| p.tallies.keys().copied()).collect();
    let mut text = format!("    {:>7}  {:<42}", "at", "phase");
    for model in &models {
        text += &format!(" {model:>8} {:>6} {:>8}", "failed", "slowest");
    }
    text.push('\n');
    for phase in phases {
        text += &format!("    {:>5.0} s  {:<42}", phase.started.as_secs_f64(), phase.name);
        for model in &models {
            let tally = phase.tallies.get(model).cloned().unwrap_or_default();
            let slowest = tally.slowest.as_millis();
            text += &format!(" {:>8} {:>6} {slowest:>5} ms", tally.requests, tally.failed());
        }
        text.push('\n');
        for (model, tally) in &phase.tallies {
            for (failure, count) in &tally.failures {
                text += &format!("               {count} × {model}: {failure}\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_in_their_phase() {
        let mut tally = Tally::default();
        tally.count(&Ok(()), Duration::from_millis(2));
        tally.count(&Err("503".into()), Duration::from_millis(9));
        tally.count(&Err("503".into()), Duration::from_millis(3));
        assert_eq!((tally.requests, tally.failed(), tally.slowest), (3, 2, Duration::from_millis(9)));
        let phase = |name: &str, tally: Tally| Phase {
            name: name.into(),
            tallies: [("iris", tally)].into(),
            ..Phase::default()
        };
        let text = table(&[phase("quiet", Tally::default()), phase("a kill", tally)]);
        assert!(text.contains("2 × iris: 503"), "{text}");
        assert!(
            text.lines().any(|l| l.contains("a kill") && l.contains(" 3 ") && l.ends_with("9 ms")),
            "{text}"
        );
    }
}
