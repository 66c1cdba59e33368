//! Terminal output: progress of downloads, model states.

use crate::sources::Unserved;
use gantry_agent::{Loaded, Observer};
use gantry_artifacts::ProgressSink;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Write as _},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Shorter downloads have no progress bar.
const BAR_DELAY: Duration = Duration::from_millis(200);
/// Interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Prints a line to stdout; a closed pipe does not stop the process.
pub fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints a step of a long operation to stderr.
pub fn step(line: &str) {
    let _ = writeln!(std::io::stderr(), "  {line}");
}

/// The last load of a model.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) platform: String,
    pub(crate) version: u32,
    pub(crate) took: Duration,
}

pub(crate) struct Console {
    bars: Option<MultiProgress>,
    loads: Mutex<BTreeMap<String, Load>>,
    notes: Notes,
}

/// The last note about each model's download: one that repeats it is not printed.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<BTreeMap<String, String>>>);

impl Notes {
    fn is_new(&self, model: &str, note: &str) -> bool {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.insert(model.to_owned(), note.to_owned()).as_deref() != Some(note)
    }

    fn clear(&self, model: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(model);
    }
}

impl Console {
    pub(crate) fn new() -> Arc<Self> {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Arc::new(Self { bars, loads: Mutex::default(), notes: Notes::default() })
    }

    /// Prints a line to stdout, above the progress bars.
    pub(crate) fn print(&self, line: &str) {
        self.suspend_bars(|| print(line));
    }

    /// Prints a line to stderr, above the progress bars.
    pub(crate) fn print_error(&self, line: &str) {
        self.suspend_bars(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }

    /// Prints models that are not served, with the reason and the remedies.
    pub(crate) fn print_unserved(&self, models: &[Unserved]) {
        let width = models.iter().map(|model| model.name.len()).max().unwrap_or_default();
        let indent = " ".repeat(width + 5);
        for model in models {
            self.print(&format!("  {:width$}   {}", model.name, model.lines(&indent).join("\n")));
        }
        if !models.is_empty() {
            self.print("");
        }
    }

    fn suspend_bars(&self, write: impl FnOnce()) {
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }

    pub(crate) fn last_load(&self, model: &str) -> Option<Load> {
        self.loads().get(model).cloned()
    }

    fn loads(&self) -> MutexGuard<'_, BTreeMap<String, Load>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Console {
    fn fetching(&self, model: &str, _: u32) -> Arc<dyn ProgressSink> {
        let started = Instant::now();
        let (model, notes) = (model.to_owned(), self.notes.clone());
        match &self.bars {
            Some(bars) => {
                Arc::new(DownloadBar { bars: bars.clone(), model, notes, started, drawn: OnceLock::new() })
            }
            None => Arc::new(ProgressLines { model, notes, last: Mutex::new(started) }),
        }
    }

    fn finished(&self, model: &str, version: u32, result: Result<&Loaded, &str>, took: Duration) {
        if let Ok(loaded) = result {
            let load = Load { platform: loaded.platform.clone(), version, took };
            self.loads().insert(model.to_owned(), load);
            self.notes.clear(model);
        }
    }
}

/// Cleared when the download ends.
struct DownloadBar {
    bars: MultiProgress,
    model: String,
    notes: Notes,
    started: Instant,
    drawn: OnceLock<ProgressBar>,
}

impl ProgressSink for DownloadBar {
    fn bytes(&self, done: u64, total: Option<u64>) {
        if self.drawn.get().is_none() && self.started.elapsed() < BAR_DELAY {
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
        if self.notes.is_new(&self.model, text) {
            self.bars.suspend(|| eprintln!("  {}  {text}", self.model));
        }
    }
}

impl Drop for DownloadBar {
    fn drop(&mut self) {
        if let Some(bar) = self.drawn.get() {
            bar.finish_and_clear();
        }
    }
}

/// Periodic lines without a terminal.
struct ProgressLines {
    model: String,
    notes: Notes,
    last: Mutex<Instant>,
}

impl ProgressSink for ProgressLines {
    fn bytes(&self, done: u64, total: Option<u64>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() < LINE_INTERVAL {
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
        if self.notes.is_new(&self.model, text) {
            eprintln!("{}: {text}", self.model);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_note_is_printed_once_for_each_model_and_load() {
        let notes = Notes::default();
        assert!(notes.is_new("a", "refused; retrying"));
        assert!(!notes.is_new("a", "refused; retrying"));
        assert!(notes.is_new("b", "refused; retrying"));
        assert!(notes.is_new("a", "reset; retrying"));
        notes.clear("a");
        assert!(notes.is_new("a", "reset; retrying"));
    }
}
