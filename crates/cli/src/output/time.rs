//! Points in time and amounts of memory, for people.

use super::NOTHING;
use crate::duration;
use jiff::Timestamp;
use std::time::Duration;

fn point(at: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    let at = at.filter(|t| t.seconds > 0)?;
    Timestamp::new(at.seconds, at.nanos).ok()
}

/// A point in time as RFC 3339, to the millisecond.
pub(crate) fn stamp(at: Option<prost_types::Timestamp>) -> Option<String> {
    point(at).map(|t| format!("{t:.3}"))
}

/// How long ago something was: `3m ago`.
pub(crate) fn ago(at: Option<prost_types::Timestamp>) -> String {
    let Some(at) = point(at) else { return NOTHING.to_owned() };
    let seconds = Timestamp::now().as_second().saturating_sub(at.as_second());
    let seconds = u64::try_from(seconds).unwrap_or(0);
    // One unit is enough: nobody asks for the seconds of a day-old change.
    let rounded = match seconds {
        0..120 => seconds,
        120..7_200 => seconds / 60 * 60,
        7_200..172_800 => seconds / 3600 * 3600,
        _ => seconds / 86_400 * 86_400,
    };
    format!("{} ago", duration::words(Duration::from_secs(rounded)))
}

/// An amount of memory: `4.2 GB`.
pub(crate) fn bytes(amount: u64) -> String {
    let value = amount as f64;
    match amount {
        0..1_000 => format!("{amount} B"),
        1_000..1_000_000 => format!("{:.1} KB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.1} GB", value / 1e9),
        _ => format!("{:.1} TB", value / 1e12),
    }
}
