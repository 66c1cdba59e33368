//! Amounts as Kubernetes writes them: `100Ki`, `1.5G`, `2e9`, `1024`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{borrow::Cow, fmt};

/// An amount of memory, in bytes, that remembers how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    bytes: u64,
}

impl Quantity {
    /// Parses an amount; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number_end = text
            .char_indices()
            .find(|(i, c)| !(c.is_ascii_digit() || *c == '.' || (*c == '-' || *c == '+') && *i == 0))
            .map_or(text.len(), |(i, _)| i);
        let (number, suffix) = text.split_at(number_end);
        let scale: f64 = match suffix {
            "" => 1.0,
            "n" => 1e-9,
            "u" => 1e-6,
            "m" => 1e-3,
            "k" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            "T" => 1e12,
            "P" => 1e15,
            "E" => 1e18,
            "Ki" => 1024.0,
            "Mi" => 1024f64.powi(2),
            "Gi" => 1024f64.powi(3),
            "Ti" => 1024f64.powi(4),
            "Pi" => 1024f64.powi(5),
            "Ei" => 1024f64.powi(6),
            other => exponent(other).ok_or_else(|| {
                format!(
                    "\"{}\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
                    text.escape_debug()
                )
            })?,
        };
        let value: f64 = number.parse().map_err(|_| {
            format!(
                "\"{}\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
                text.escape_debug()
            )
        })?;
        let bytes = (value * scale).ceil();
        if bytes < 0.0 {
            return Err(format!("\"{text}\" is negative: memory is at least 0"));
        }
        if bytes >= u64::MAX as f64 {
            return Err(format!("\"{text}\" is larger than any memory: at most 15Ei"));
        }
        // Whole numbers of bytes must not lose digits on the way through a float.
        let bytes = if suffix.is_empty() { number.parse().unwrap_or(bytes as u64) } else { bytes as u64 };
        Ok(Self { text: text.to_owned(), bytes })
    }

    /// An amount of bytes.
    pub fn from_bytes(bytes: u64) -> Self {
        Self { text: bytes.to_string(), bytes }
    }

    /// The amount in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn exponent(suffix: &str) -> Option<f64> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = digits.parse().ok()?;
    (power.abs() <= 18).then(|| 10f64.powi(power))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = match serde_json::Value::deserialize(d)? {
            serde_json::Value::String(text) => text,
            serde_json::Value::Number(number) => number.to_string(),
            _ => {
                return Err(de::Error::custom("must be an amount such as 100Ki, 2Gi or a number of bytes"));
            }
        };
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "format": "quantity" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("100Ki", 102_400),
            ("1.5Gi", 1_610_612_736),
            ("2G", 2_000_000_000),
            ("2e9", 2_000_000_000),
            ("500m", 1),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(Quantity::parse(text).map(|q| q.bytes()), Ok(bytes), "{text}");
        }
        for bad in ["", "abc", "1Gib", "1 Gi", "-1", "1e99", "99Ei", "1.2.3", "e3", "0x10"] {
            assert!(Quantity::parse(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_gets_an_answer(text in ".{0,20}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn bytes_survive(bytes in 0..=u64::MAX - 2048) {
            proptest::prop_assert_eq!(Quantity::parse(&Quantity::from_bytes(bytes).to_string()).unwrap().bytes(), bytes);
        }
    }
}
