//! A point between two writes of a record, for tests that end the process there. Only with the feature `failpoints`.

use crate::{headers, record::Produced};
use std::sync::OnceLock;

static FAILPOINT: OnceLock<Failpoint> = OnceLock::new();

/// Reached when so many results of a request are in the log, and no more were sent.
#[derive(Debug)]
pub struct Failpoint {
    pub pipeline: String,
    pub request_id: String,
    pub writes: usize,
    pub reached: fn(),
}

/// For the whole process; only the first call has an effect.
pub fn set(failpoint: Failpoint) {
    let _ = FAILPOINT.set(failpoint);
}

/// How many results of the failpoint's request one write has sent.
#[derive(Default)]
pub(super) struct Progress(usize);

impl Progress {
    /// Whether all that was sent before has to be acknowledged before this record is sent.
    pub(super) fn is_next(record: &Produced) -> bool {
        let is = |name, value: &String| headers::get(&record.headers, name) == Some(value);
        FAILPOINT.get().is_some_and(|point| {
            is(headers::PIPELINE, &point.pipeline) && is(headers::REQUEST_ID, &point.request_id)
        })
    }

    /// All that was sent is acknowledged; one more record follows.
    pub(super) fn before_next(&mut self) {
        self.reach();
        self.0 += 1;
    }

    /// Everything is acknowledged.
    pub(super) fn end(&self) {
        if self.0 > 0 {
            self.reach();
        }
    }

    fn reach(&self) {
        if let Some(point) = FAILPOINT.get().filter(|point| point.writes == self.0) {
            (point.reached)();
        }
    }
}
