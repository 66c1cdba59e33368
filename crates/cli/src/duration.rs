//! Durations on the command line: `500ms`, `30s`, `1m30s`, `2h`, or a number of seconds.

use std::time::Duration;

/// One year, so that adding it to any clock value cannot overflow.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{}\" is not a duration: write 500ms, 30s, 2m or 1m30s", text.escape_debug());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let scale = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            // A bare number means seconds; "1m30" is ambiguous and rejected.
            "" if end == text.trim().len() => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(wrong()),
        };
        seconds += number.parse::<f64>().map_err(|_| wrong())? * scale;
        rest = next;
    }
    if seconds > MAX_SECONDS {
        return Err(format!("\"{text}\" is longer than a year"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The two most significant units, such as `1m30s`.
pub(crate) fn format(time: Duration) -> String {
    let millis = time.as_millis();
    match (millis, time.as_secs()) {
        (0, _) => "0s".to_owned(),
        (1..1000, _) => format!("{millis}ms"),
        (_, s @ ..60) if !millis.is_multiple_of(1000) => format!("{}.{}s", s, millis % 1000 / 100),
        (_, s @ ..60) => format!("{s}s"),
        (_, s @ ..3600) => join(s / 60, "m", s % 60, "s"),
        (_, s @ ..86_400) => join(s / 3600, "h", s % 3600 / 60, "m"),
        (_, s) => join(s / 86_400, "d", s % 86_400 / 3600, "h"),
    }
}

fn join(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_units_and_rejects_other_text() {
        for (text, expected) in [
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("2h", Some(7_200_000)),
            ("1.5s", Some(1500)),
            ("60", Some(60_000)),
            ("0", Some(0)),
            (" 5s ", Some(5000)),
            ("", None),
            ("s", None),
            ("5x", None),
            ("1m30", None),
            ("-1s", None),
            ("1e9s", None),
            ("99999999999999999999d", None),
            ("..s", None),
        ] {
            let got = parse(text).ok().map(|d| d.as_millis());
            assert_eq!(got, expected, "{text:?}");
        }
    }

    #[test]
    fn format_uses_the_two_largest_units() {
        for (millis, expected) in [
            (0, "0s"),
            (20, "20ms"),
            (1500, "1.5s"),
            (30_000, "30s"),
            (90_000, "1m30s"),
            (7_200_000, "2h"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(format(Duration::from_millis(millis)), expected);
        }
    }
}
