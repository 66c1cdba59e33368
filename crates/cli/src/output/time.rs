//! Human-readable timestamps, ages and byte counts.

use super::PLACEHOLDER;
use crate::duration;
use jiff::Timestamp;
use std::time::Duration;

fn timestamp(at: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    let at = at.filter(|t| t.seconds > 0)?;
    Timestamp::new(at.seconds, at.nanos).ok()
}

/// RFC 3339 with milliseconds.
pub(crate) fn rfc3339(at: Option<prost_types::Timestamp>) -> Option<String> {
    timestamp(at).map(|t| format!("{t:.3}"))
}

/// The age in its largest unit, such as `3m ago`.
pub(crate) fn ago(at: Option<prost_types::Timestamp>) -> String {
    let Some(at) = timestamp(at) else { return PLACEHOLDER.to_owned() };
    let seconds = Timestamp::now().as_second().saturating_sub(at.as_second());
    let seconds = u64::try_from(seconds).unwrap_or(0);

    let rounded = match seconds {
        0..120 => seconds,
        120..7_200 => seconds / 60 * 60,
        7_200..172_800 => seconds / 3600 * 3600,
        _ => seconds / 86_400 * 86_400,
    };
    format!("{} ago", duration::format(Duration::from_secs(rounded)))
}

/// Such as `4.2 GB`.
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
