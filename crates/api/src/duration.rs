//! Durations of specs: `500ms`, `30s`, `1h30m`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{borrow::Cow, fmt};

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// 30 days.
const MAX_MILLIS: u64 = 30 * 86_400_000;

/// Milliseconds, written with units and at most 30 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpecDuration(u64);

impl SpecDuration {
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis > MAX_MILLIS { MAX_MILLIS } else { millis })
    }

    pub const fn millis(self) -> u64 {
        self.0
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = || text.chars().take(40).collect::<String>().escape_debug().to_string();
        let millis = sum(text)
            .ok_or_else(|| format!("\"{}\" is not a duration: write 500ms, 30s, 10m or 1h30m", shown()))?;
        if millis > MAX_MILLIS {
            return Err(format!("\"{}\" is longer than 30d: shorten it", shown()));
        }
        Ok(Self(millis))
    }
}

/// Milliseconds of a text; `None` if it is not a duration.
fn sum(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        // A number that does not fit is longer than any limit.
        let count: u64 = if number.is_empty() { return None } else { number.parse().unwrap_or(u64::MAX) };
        total = total.saturating_add(count.saturating_mul(*millis));
        rest = next;
    }
    Some(total)
}

impl fmt::Display for SpecDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, millis) in UNITS {
            if rest >= millis {
                write!(f, "{}{unit}", rest / millis)?;
                rest %= millis;
            }
        }
        Ok(())
    }
}

impl Serialize for SpecDuration {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SpecDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(de::Error::custom)
    }
}

impl JsonSchema for SpecDuration {
    fn schema_name() -> Cow<'static, str> {
        "SpecDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "format": "spec-duration", "maxLength": 40, "pattern": "^([0-9]+(d|h|m|s|ms))+$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_units_and_rejects_other_text() {
        for (text, expected) in [
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("1h30m", Some(5_400_000)),
            ("1m500ms", Some(60_500)),
            ("30d", Some(2_592_000_000)),
            ("31d", None),
            ("99999999999999999999999h", None),
            ("", None),
            ("30", None),
            ("s", None),
            ("1m30", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 m", None),
            ("5µs", None),
        ] {
            assert_eq!(SpecDuration::parse(text).ok().map(SpecDuration::millis), expected, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn display_round_trips(millis in 0..=MAX_MILLIS) {
            let duration = SpecDuration::from_millis(millis);
            proptest::prop_assert_eq!(SpecDuration::parse(&duration.to_string()), Ok(duration));
        }
    }
}
