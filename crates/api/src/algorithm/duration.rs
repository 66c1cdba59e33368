//! Durations such as `30s`, `1m30s` and `500ms`.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];

/// Whole numbers with units; the error is the rest of a sentence.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("\"{}\" is not a duration: write for example 30s or 1m30s", text.escape_debug());
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let (unit, factor) =
            UNITS.into_iter().find(|(unit, _)| after.starts_with(unit)).ok_or_else(invalid)?;
        total = number.checked_mul(factor).and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        rest = after.get(unit.len()..).unwrap_or_default();
    }
    if text.is_empty() { Err(invalid()) } else { Ok(Duration::from_millis(total)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_table() {
        for (text, expected) in [
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("2h", Some(7_200_000)),
            ("", None),
            ("30", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("99999999999999999999h", None),
            ("5d", None),
        ] {
            assert_eq!(parse(text).ok().map(|d| d.as_millis()), expected, "{text}");
        }
    }
}
