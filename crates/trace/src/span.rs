//! Spans: begun where work begins, told when they are dropped.

use crate::{
    Context, Settings, SettingsError,
    context::{TRACEPARENT, TRACESTATE},
    export::{self, Exporter},
    ids::Ids,
    sampler::Share,
};
use http::HeaderMap;
use prometheus_client::registry::Registry;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Longest `tracestate` that is told; the standard asks for as much.
const LONGEST_STATE: usize = 512;

/// Makes spans, or nothing at all when it is off. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<On>>);

struct On {
    service: Arc<str>,
    share: Share,
    ids: Arc<Ids>,
    exporter: Exporter,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("service", &self.0.as_ref().map(|on| &on.service)).finish()
    }
}

/// Which end of a call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work within a process.
    Internal = 1,
    /// Who is called.
    Server = 2,
    /// Who calls.
    Client = 3,
}

/// What can be said about a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Words.
    Text(String),
    /// A number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl Tracer {
    /// A tracer that records nothing.
    pub const fn off() -> Self {
        Self(None)
    }

    /// Starts telling a collector; needs a tokio runtime. `service` names the part.
    pub fn start(settings: Settings, service: &str) -> Result<Self, SettingsError> {
        let service = settings.service.clone().unwrap_or_else(|| service.to_owned());
        let share = Share::new(settings.ratio);
        let exporter = export::start(settings)?;
        let ids = Arc::new(Ids::new());
        Ok(Self(Some(Arc::new(On { service: service.into(), share, ids, exporter }))))
    }

    /// The same collector, for another part of this process.
    #[must_use]
    pub fn of_part(&self, service: &str) -> Self {
        Self(self.0.as_ref().map(|on| {
            let service = on.exporter.fixed_service().unwrap_or_else(|| service.into());
            Arc::new(On { service, share: on.share, ids: on.ids.clone(), exporter: on.exporter.clone() })
        }))
    }

    /// Whether anything can be recorded.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counters of spans that were told and dropped.
    pub fn register_metrics(&self, registry: &mut Registry) {
        if let Some(on) = &self.0 {
            on.exporter.register_metrics(registry);
        }
    }

    /// A request has come in: goes on with its trace, or begins one.
    pub fn server(&self, headers: &HeaderMap, name: impl FnOnce() -> String) -> Span {
        let Some(on) = &self.0 else { return Span(State::Off) };
        let parent = Context::of(headers);
        let mut span = begin(on, parent, Kind::Server, name);
        if let State::Recording(active) = &mut span.0
            && parent.is_some()
            && let Some(state) = headers.get(TRACESTATE).and_then(|s| s.to_str().ok())
            && state.len() <= LONGEST_STATE
        {
            state.clone_into(&mut active.finished.state);
        }
        span
    }

    /// Somebody else is asked on behalf of `parent`; without one there is nothing to tell.
    pub fn client(&self, parent: Option<Context>, name: impl FnOnce() -> String) -> Span {
        match (&self.0, parent) {
            (Some(on), Some(parent)) => begin(on, Some(parent), Kind::Client, name),
            _ => Span(State::Off),
        }
    }

    /// Where a request stands in its trace; nothing when the tracer is off.
    pub fn context(&self, headers: &HeaderMap) -> Option<Context> {
        self.0.as_ref().and_then(|_| Context::of(headers))
    }

    /// Tells what is left, for as long as that may take.
    pub async fn close(&self, limit: Duration) {
        if let Some(on) = &self.0 {
            let _ = tokio::time::timeout(limit, on.exporter.flush()).await;
        }
    }
}

fn begin(on: &Arc<On>, parent: Option<Context>, kind: Kind, name: impl FnOnce() -> String) -> Span {
    let trace = parent.map_or_else(|| on.ids.next_trace(), |p| p.trace);
    let sampled = parent.map_or_else(|| on.share.takes(trace), |p| p.sampled);
    if !sampled {
        // Those who come after must know that nothing is recorded, or they would begin traces of their own.
        let span = parent.map_or_else(|| on.ids.next(), |p| p.span);
        return Span(State::Unsampled(Context { trace, span, sampled }));
    }
    let context = Context { trace, span: on.ids.next(), sampled };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Span(State::Recording(Box::new(Active {
        on: on.clone(),
        began: Instant::now(),
        finished: Finished {
            service: on.service.clone(),
            context,
            parent: parent.map(|p| p.span),
            state: String::new(),
            name: name(),
            kind,
            start: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
            end: 0,
            attributes: Vec::new(),
            error: None,
        },
    })))
}

/// A piece of work of a trace; it ends when it is dropped.
#[derive(Default)]
pub struct Span(State);

#[derive(Default)]
enum State {
    #[default]
    Off,
    Unsampled(Context),
    Recording(Box<Active>),
}

struct Active {
    on: Arc<On>,
    began: Instant,
    finished: Finished,
}

/// A span that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) service: Arc<str>,
    pub(crate) context: Context,
    pub(crate) parent: Option<u64>,
    pub(crate) state: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) error: Option<String>,
}

impl Span {
    /// Whether what is said about it is kept: worth a look before something is put together to be said.
    pub const fn is_recording(&self) -> bool {
        matches!(self.0, State::Recording(_))
    }

    /// Says something about it.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let State::Recording(active) = &mut self.0 {
            active.finished.attributes.push((key, value.into()));
        }
    }

    /// It went wrong.
    pub fn fail(&mut self, why: &str) {
        if let State::Recording(active) = &mut self.0 {
            active.finished.error = Some(why.to_owned());
        }
    }

    /// Where the next hop goes on.
    pub fn context(&self) -> Option<Context> {
        match &self.0 {
            State::Off => None,
            State::Unsampled(context) => Some(*context),
            State::Recording(active) => Some(active.finished.context),
        }
    }

    /// Makes the headers of a request those of the next hop.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(value) = self.context().and_then(Context::header) {
            headers.insert(TRACEPARENT, value);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context()).finish()
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        // The clock may be set while a span lasts: its length comes from one that is not.
        let took = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let service = self.finished.service.clone();
        let empty = Finished {
            service,
            name: String::new(),
            attributes: Vec::new(),
            error: None,
            state: String::new(),
            ..self.finished
        };
        let mut finished = std::mem::replace(&mut self.finished, empty);
        finished.end = finished.start.saturating_add(took);
        self.on.exporter.take(finished);
    }
}
