//! Writes log events into the trace; a logged error violates an invariant.

use crate::trace::Trace;
use std::fmt::{Debug, Write as _};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Records warnings and errors of Gantry's crates.
pub(crate) struct Log {
    trace: Trace,
    /// Disk faults cause errors.
    disk_may_fail: bool,
}

impl Log {
    pub(crate) const fn new(trace: Trace, disk_may_fail: bool) -> Self {
        Self { trace, disk_may_fail }
    }
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("gantry")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = *event.metadata().level();
        self.trace.note(event.metadata().target(), format_args!("{level}{}", line.0));
        if level == Level::ERROR && !self.disk_may_fail {
            self.trace.violate("no_errors_are_logged", line.0.trim().to_owned());
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
