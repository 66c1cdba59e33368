//! What a person sees while models are fetched and loaded.

use gantry_agent::{Loaded, Observer};
use gantry_artifacts::ProgressSink;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// A fetch that takes longer than this is worth a bar.
const WORTH_A_BAR: Duration = Duration::from_millis(200);
/// How often a fetch is worth a line where there is no terminal.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// How a model was loaded last.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) platform: String,
    pub(crate) version: u32,
    pub(crate) took: Duration,
}

/// The terminal, or the file that stands for it.
pub(crate) struct Screen {
    bars: Option<MultiProgress>,
    outcomes: Mutex<BTreeMap<String, Outcome>>,
}

impl Screen {
    pub(crate) fn new() -> Arc<Self> {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Arc::new(Self { bars, outcomes: Mutex::default() })
    }

    /// Writes a line, above the bars if there are some.
    pub(crate) fn say(&self, line: &str) {
        let write = || {
            // Whoever reads may have gone away; that is no reason to stop serving.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        };
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }

    /// Writes a line about something that went wrong.
    pub(crate) fn complain(&self, line: &str) {
        let write = || {
            let _ = writeln!(std::io::stderr(), "{line}");
        };
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }

    pub(crate) fn outcome(&self, model: &str) -> Option<Outcome> {
        self.outcomes().get(model).cloned()
    }

    fn outcomes(&self) -> MutexGuard<'_, BTreeMap<String, Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Screen {
    fn fetching(&self, model: &str, _: u32) -> Arc<dyn ProgressSink> {
        let started = Instant::now();
        match &self.bars {
            Some(bars) => {
                Arc::new(Bar { bars: bars.clone(), model: model.to_owned(), started, drawn: OnceLock::new() })
            }
            None => Arc::new(Plain { model: model.to_owned(), last: Mutex::new(started) }),
        }
    }

    fn finished(&self, model: &str, version: u32, result: Result<&Loaded, &str>, took: Duration) {
        if let Ok(loaded) = result {
            let outcome = Outcome { platform: loaded.platform.clone(), version, took };
            self.outcomes().insert(model.to_owned(), outcome);
        }
    }
}

/// A bar with bytes and the time left; it goes away when the fetch ends.
struct Bar {
    bars: MultiProgress,
    model: String,
    started: Instant,
    drawn: OnceLock<ProgressBar>,
}

impl ProgressSink for Bar {
    fn bytes(&self, done: u64, total: Option<u64>) {
        if self.drawn.get().is_none() && self.started.elapsed() < WORTH_A_BAR {
            return;
        }
        let bar = self.drawn.get_or_init(|| {
            let template = if total.is_some() {
                "  {prefix}  {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left"
            } else {
                "  {prefix}  {spinner} {bytes}  {bytes_per_sec}"
            };
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total.unwrap_or(0)).with_style(style).with_prefix(self.model.clone());
            self.bars.add(bar)
        });
        bar.set_position(done);
    }

    fn note(&self, text: &str) {
        self.bars.suspend(|| eprintln!("  {}  {text}", self.model));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.drawn.get() {
            bar.finish_and_clear();
        }
    }
}

/// A line now and then.
struct Plain {
    model: String,
    last: Mutex<Instant>,
}

impl ProgressSink for Plain {
    fn bytes(&self, done: u64, total: Option<u64>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() < WORTH_A_LINE {
            return;
        }
        *last = Instant::now();
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match total {
            Some(total) => {
                eprintln!("{}: fetched {:.1} of {:.1} MB", self.model, megabytes(done), megabytes(total));
            }
            None => eprintln!("{}: fetched {:.1} MB", self.model, megabytes(done)),
        }
    }

    fn note(&self, text: &str) {
        eprintln!("{}: {text}", self.model);
    }
}
