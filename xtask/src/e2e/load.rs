//! A steady load: so many requests a second, each with a deadline, each counted for the phase in which it was sent.

use super::question::Question;
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

/// Requests a second that one client sends. So few, that a slow answer holds up nobody else.
const RATE: f64 = 2.5;
/// So many good answers one after the other are a recovery: two seconds of it, at fifty a second.
const CALM: u64 = 100;

/// What became of the requests to one model in one phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u64,
    /// How often each failure was met.
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

/// A time in which one thing happens to the world.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) begun: Duration,
    /// By model.
    pub(super) tallies: BTreeMap<&'static str, Tally>,
}

#[derive(Default)]
struct Book {
    phases: Vec<Phase>,
    /// Good answers since the last failure or the beginning of the phase.
    calm: u64,
}

/// A load that goes on until it is ended.
pub(super) struct Load {
    begun: Instant,
    stop: Arc<AtomicBool>,
    book: Arc<Mutex<Book>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins to ask each of these questions so often a second. Of the clients of a question, every other one keeps its
    /// connection; the others open one for each request.
    pub(super) fn start(address: SocketAddr, questions: &[(Question, u32)]) -> Self {
        let mut load =
            Self { begun: Instant::now(), stop: Arc::default(), book: Arc::default(), clients: Vec::new() };
        load.phase("undisturbed");
        for (question, rate) in questions {
            let clients = (f64::from(*rate) / RATE).round() as u32;
            for number in 0..clients {
                let first = f64::from(number) / f64::from(clients) / RATE;
                let client = Client {
                    question: question.clone(),
                    address,
                    keeps: number % 2 == 0,
                    next: load.begun + Duration::from_secs_f64(first),
                    stop: load.stop.clone(),
                    book: load.book.clone(),
                };
                load.clients.push(std::thread::spawn(move || client.run()));
            }
        }
        load
    }

    /// What is sent from now on counts for another phase.
    pub(super) fn phase(&self, name: &str) {
        let mut book = book(&self.book);
        book.calm = 0;
        book.phases.push(Phase { name: name.to_owned(), begun: self.begun.elapsed(), ..Phase::default() });
    }

    /// Waits until all is well: many good answers in a row.
    pub(super) fn settle(&self, seconds: u64) -> Result<(), Failure> {
        book(&self.book).calm = 0;
        k8s::until("a row of good answers", seconds, || book(&self.book).calm >= CALM)
    }

    /// Stops asking; what came of it.
    pub(super) fn end(mut self) -> Vec<Phase> {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
        std::mem::take(&mut book(&self.book).phases)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn book(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Client {
    question: Question,
    address: SocketAddr,
    keeps: bool,
    next: Instant,
    stop: Arc<AtomicBool>,
    book: Arc<Mutex<Book>>,
}

impl Client {
    fn run(mut self) {
        let mut kept = None;
        loop {
            std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // A client that was held up sends what it has missed: the rate is the same, whatever happens.
            self.next += Duration::from_secs_f64(1.0 / RATE);
            let phase = book(&self.book).phases.len().saturating_sub(1);
            let begun = Instant::now();
            let outcome = self.question.ask(self.address, &mut kept);
            if !self.keeps {
                kept = None;
            }
            let mut book = book(&self.book);
            book.calm = if outcome.is_ok() { book.calm + 1 } else { 0 };
            if let Some(phase) = book.phases.get_mut(phase) {
                phase.tallies.entry(self.question.model).or_default().count(&outcome, begun.elapsed());
            }
        }
    }
}

/// The phases as a table: requests, failures and the slowest answer by model, and below it how they failed.
pub(super) fn table(phases: &[Phase]) -> String {
    let models: Vec<&str> = phases.first().into_iter().flat_map(|p| p.tallies.keys().copied()).collect();
    let mut text = format!("    {:>7}  {:<42}", "at", "what happens");
    for model in &models {
        text += &format!(" {model:>8} {:>6} {:>8}", "failed", "slowest");
    }
    text.push('\n');
    for phase in phases {
        text += &format!("    {:>5.0} s  {:<42}", phase.begun.as_secs_f64(), phase.name);
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
        let shown = table(&[phase("quiet", Tally::default()), phase("a kill", tally)]);
        assert!(shown.contains("2 × iris: 503"), "{shown}");
        assert!(
            shown.lines().any(|l| l.contains("a kill") && l.contains(" 3 ") && l.ends_with("9 ms")),
            "{shown}"
        );
    }
}
