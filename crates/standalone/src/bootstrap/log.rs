//! Logging: one event per line, as time, level, component, fields, message.

use crate::error::CommandError;
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
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::LevelFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// Lines buffered for `gantry logs`.
const BUFFERED_LINES: usize = 5000;

#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Log level (error, warn, info, debug) or a filter such as gantry_scheduler=debug,warn.
    #[arg(long, env = "GANTRY_LOG", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,

    /// Log format.
    #[arg(long, env = "GANTRY_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: Format,

    /// Serve the dashboard, /logs and runs of pipelines on the admin port to other machines, too; by default only to this one (kubectl port-forward included).
    #[arg(long, env = "GANTRY_REMOTE_LOGS")]
    pub remote_logs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One readable line per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// The last log lines, and a subscription to new ones.
#[derive(Clone, Debug)]
pub struct LogBuffer {
    /// Whether other machines may read it.
    pub(super) remote: bool,
    lines: Arc<Mutex<VecDeque<Arc<str>>>>,
    subscribers: broadcast::Sender<Arc<str>>,
}

impl LogBuffer {
    pub(super) fn new(remote: bool) -> Self {
        Self { remote, lines: Arc::default(), subscribers: broadcast::channel(256).0 }
    }

    fn add(&self, line: &str) {
        let line: Arc<str> = line.into();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= BUFFERED_LINES {
            lines.pop_front();
        }
        lines.push_back(line.clone());
        drop(lines);
        // Fails without subscribers.
        let _ = self.subscribers.send(line);
    }

    /// The buffered lines and all later ones. A lagging subscriber learns how many lines it missed.
    pub fn subscribe(&self) -> (Vec<Arc<str>>, broadcast::Receiver<Arc<str>>) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        (lines.iter().cloned().collect(), self.subscribers.subscribe())
    }
}

/// Starts logging to the buffer, and to the file, or to stderr if there is none.
pub fn start(args: &LogArgs, file: Option<&Path>) -> Result<LogBuffer, CommandError> {
    let filter = EnvFilter::try_new(&args.log_level).map_err(|e| {
        CommandError::usage(format!(
            "--log-level \"{}\" is not a level or a filter: {e}; try info, or gantry_scheduler=debug,warn",
            args.log_level
        ))
    })?;
    let file = match file {
        None => None,
        Some(path) => {
            let opened = File::options().create(true).append(true).open(path);
            Some(opened.map_err(|e| CommandError::usage(format!("{}: {e}", path.display())))?)
        }
    };
    let format = args.log_format;
    let to_stderr = file.is_none().then(|| {
        let writer = io::stderr as fn() -> io::Stderr;
        tracing_subscriber::fmt::layer()
            .event_format(Line(format))
            .with_writer(writer)
            .with_filter(LevelFilter::INFO)
    });
    let buffer = LogBuffer::new(args.remote_logs);
    let sink = Sink { buffer: buffer.clone(), file: file.map(|f| Arc::new(Mutex::new(f))) };
    let to_sink =
        tracing_subscriber::fmt::layer().event_format(Line(format)).with_writer(sink).with_filter(filter);
    tracing_subscriber::registry()
        .with(to_sink)
        .with(to_stderr)
        .try_init()
        .map_err(|e| CommandError::usage(format!("failed to start logging: {e}")))?;
    Ok(buffer)
}

#[derive(Clone)]
struct Sink {
    buffer: LogBuffer,
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
        self.buffer.add(String::from_utf8_lossy(bytes).trim_end());
        if let Some(file) = &self.file {
            // A full disk must not stop the process.
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
        // `gantry_scheduler::engine` is shown as "scheduler".
        let target = event.metadata().target();
        let part = target.split("::").next().unwrap_or(target);
        let part = part.strip_prefix("gantry_").unwrap_or(part);
        match self.0 {
            Format::Text => {
                write!(writer, "{now:.3} {level} {part}")?;
                for (name, value) in &fields.pairs {
                    write!(writer, " {name}={value}")?;
                }
                writeln!(writer, " {}", fields.message.replace('\n', " "))
            }
            Format::Json => {
                let mut object = serde_json::Map::new();
                object.insert("time".into(), format!("{now:.3}").into());
                object.insert("level".into(), level.as_str().into());
                object.insert("part".into(), part.into());
                for (name, value) in fields.pairs {
                    object.insert(name.into(), value.into());
                }
                object.insert("message".into(), fields.message.into());
                writeln!(writer, "{}", serde_json::Value::Object(object))
            }
        }
    }
}

#[derive(Default)]
struct Fields {
    pairs: Vec<(&'static str, String)>,
    message: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = text } else { self.pairs.push((field.name(), text)) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            let quoted =
                if value.contains([' ', '"', '\n']) { format!("{value:?}") } else { value.to_owned() };
            self.pairs.push((field.name(), quoted));
        }
    }
}
