//! Series of events: repetitions of an event update the first one.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A repetition after this time is a new event.
const SERIES_WINDOW: Duration = Duration::from_mins(10);
/// The count of a series is written at most this often.
const WRITE_INTERVAL: Duration = Duration::from_mins(1);
const MAX_SERIES: usize = 1024;

/// What makes two events the same: UID of the object, reason and message.
pub(super) type SeriesKey = (String, &'static str, String);

/// In memory: a new leader starts new series.
#[derive(Debug, Default)]
pub(super) struct EventSeries(Mutex<BTreeMap<SeriesKey, Series>>);

#[derive(Debug)]
struct Series {
    /// Name of the first event.
    name: String,
    count: i32,
    last: Instant,
    written: Instant,
}

/// What to write for one occurrence of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Emission {
    /// A new event of this name.
    Create(String),
    /// The series of the event of this name.
    Update { name: String, count: i32 },
    /// Nothing: the count was written a moment ago.
    Skip,
}

impl EventSeries {
    /// Counts an occurrence. `name` is that of the event if it is a new one.
    pub(super) fn count(&self, key: SeriesKey, name: String) -> Emission {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(series) = all.get_mut(&key).filter(|series| series.last + SERIES_WINDOW > now) {
            series.count = series.count.saturating_add(1);
            series.last = now;
            if series.written + WRITE_INTERVAL > now {
                return Emission::Skip;
            }
            series.written = now;
            return Emission::Update { name: series.name.clone(), count: series.count };
        }
        if all.len() >= MAX_SERIES {
            all.retain(|_, series| series.last + SERIES_WINDOW > now);
        }
        if all.len() >= MAX_SERIES
            && let Some(oldest) = all.iter().min_by_key(|(_, series)| series.last).map(|(key, _)| key.clone())
        {
            all.remove(&oldest);
        }
        all.insert(key, Series { name: name.clone(), count: 1, last: now, written: now });
        Emission::Create(name)
    }

    /// Ends a series, because its event does not exist.
    pub(super) fn forget(&self, key: &SeriesKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn key(message: &str) -> SeriesKey {
        ("uid".into(), "ScalingRefused", message.into())
    }

    #[tokio::test(start_paused = true)]
    async fn repetitions_are_counted_and_written_once_a_minute() {
        let series = EventSeries::default();
        assert_eq!(series.count(key("a"), "first".into()), Emission::Create("first".into()));
        for _ in 0..5 {
            advance(Duration::from_secs(10)).await;
            assert_eq!(series.count(key("a"), "other".into()), Emission::Skip);
        }
        advance(Duration::from_secs(10)).await;
        let update = |count| Emission::Update { name: "first".into(), count };
        assert_eq!(series.count(key("a"), "other".into()), update(7));
        assert_eq!(series.count(key("b"), "second".into()), Emission::Create("second".into()));
        advance(Duration::from_mins(9)).await;
        assert_eq!(
            series.count(key("a"), "other".into()),
            update(8),
            "the window is from the last occurrence"
        );
        advance(Duration::from_mins(11)).await;
        assert_eq!(series.count(key("a"), "third".into()), Emission::Create("third".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_series_is_bounded() {
        let series = EventSeries::default();
        for number in 0..=MAX_SERIES {
            series.count(key(&number.to_string()), "name".into());
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(series.0.lock().unwrap().len(), MAX_SERIES);
        assert_eq!(
            series.count(key("0"), "name".into()),
            Emission::Create("name".into()),
            "the oldest is gone"
        );
    }
}
