//! One event, one line: the time, the level, the part, the nouns as keys, the sentence last.

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::broadcast;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// Lines that are kept in memory for `gantry logs`.
const KEPT: usize = 5000;

/// What is logged, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// What is worth a line: error, warn, info, debug, or a filter such as `scheduler=debug,warn`.
    #[arg(long, env = "GANTRY_LOG", default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: String,

    /// How lines are written.
    #[arg(long, env = "GANTRY_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: Format,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// An object on each line.
    Json,
}

/// The lines of late, and a way to get those to come.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    kept: Arc<Mutex<VecDeque<Arc<str>>>>,
    coming: broadcast::Sender<Arc<str>>,
}

impl Lines {
    fn new() -> Self {
        Self { kept: Arc::default(), coming: broadcast::channel(256).0 }
    }

    fn add(&self, line: &str) {
        let line: Arc<str> = line.into();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(line.clone());
        drop(kept);
        // Nobody may be listening.
        let _ = self.coming.send(line);
    }

    /// The last lines, and those to come. A reader that is too slow misses some and is told how many.
    pub(crate) fn tail(&self, lines: usize) -> (Vec<Arc<str>>, broadcast::Receiver<Arc<str>>) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let coming = self.coming.subscribe();
        (kept.iter().skip(kept.len().saturating_sub(lines)).cloned().collect(), coming)
    }
}

/// Starts logging: everything that is worth a line to memory and to a file, and to standard error what a person
/// should see at once.
pub(crate) fn start(args: &LogArgs, file: Option<&Path>, to_stderr: Option<Level>) -> Result<Lines, String> {
    let filter = EnvFilter::try_new(&args.log_level).map_err(|e| {
        format!(
            "--log-level \"{}\" is not a level or a filter: {e}; try info, or scheduler=debug,warn",
            args.log_level
        )
    })?;
    let lines = Lines::new();
    let file = match file {
        None => None,
        Some(path) => Some(
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| format!("{}: {e}", path.display()))?,
        ),
    };
    let sink = Sink { lines: lines.clone(), file: file.map(|f| Arc::new(Mutex::new(f))) };
    let format = args.log_format;
    let kept =
        tracing_subscriber::fmt::layer().event_format(Line(format)).with_writer(sink).with_filter(filter);
    let shown = to_stderr.map(|level| {
        let writer = io::stderr as fn() -> io::Stderr;
        tracing_subscriber::fmt::layer()
            .event_format(Line(format))
            .with_writer(writer)
            .with_filter(tracing_subscriber::filter::LevelFilter::from_level(level))
    });
    tracing_subscriber::registry()
        .with(kept)
        .with(shown)
        .try_init()
        .map_err(|e| format!("logging cannot be started: {e}"))?;
    Ok(lines)
}

#[derive(Clone)]
struct Sink {
    lines: Lines,
    file: Option<Arc<Mutex<File>>>,
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lines.add(String::from_utf8_lossy(bytes).trim_end());
        if let Some(file) = &self.file {
            // A full disk must not stop the program from working.
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Line(Format);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = jiff::Timestamp::now();
        let level = event.metadata().level();
        // `gantry_scheduler::engine` is "scheduler" to the reader.
        let target = event.metadata().target();
        let part = target.split("::").next().unwrap_or(target);
        let part = part.strip_prefix("gantry_").unwrap_or(part);
        match self.0 {
            Format::Text => {
                write!(writer, "{now:.3} {level} {part}")?;
                for (name, value) in &fields.nouns {
                    write!(writer, " {name}={value}")?;
                }
                writeln!(writer, " {}", fields.sentence.replace('\n', " "))
            }
            Format::Json => {
                let mut object = serde_json::Map::new();
                object.insert("time".into(), format!("{now:.3}").into());
                object.insert("level".into(), level.as_str().into());
                object.insert("part".into(), part.into());
                for (name, value) in fields.nouns {
                    object.insert(name.into(), value.into());
                }
                object.insert("message".into(), fields.sentence.into());
                writeln!(writer, "{}", serde_json::Value::Object(object))
            }
        }
    }
}

#[derive(Default)]
struct Fields {
    nouns: Vec<(&'static str, String)>,
    sentence: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.sentence = text } else { self.nouns.push((field.name(), text)) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.sentence);
        } else {
            let quoted =
                if value.contains([' ', '"', '\n']) { format!("{value:?}") } else { value.to_owned() };
            self.nouns.push((field.name(), quoted));
        }
    }
}
