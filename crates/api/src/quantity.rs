//! Kubernetes quantities: `100Ki`, `1.5G`, `2e9`, `1024`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::{borrow::Cow, fmt};

/// Whether a text is an amount of any resource that is not negative: `500m`, `1`, `2Gi`, `1e3`.
pub fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 14] = ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let text = text.strip_prefix('+').unwrap_or(text);
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_number =
        number.starts_with(|c: char| c.is_ascii_digit() || c == '.') && number.parse::<f64>().is_ok();
    is_number && text.get(number.len()..).is_some_and(|suffix| SUFFIXES.contains(&suffix))
}

/// An amount of memory in bytes; serialized as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    text: String,
    bytes: u64,
}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = gantry_core::quantity::bytes(text)?;
        Ok(Self { text: text.to_owned(), bytes })
    }

    pub fn from_bytes(bytes: u64) -> Self {
        Self { text: bytes.to_string(), bytes }
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
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
                return Err(de::Error::custom("must be a quantity such as 100Ki, 2Gi or a number of bytes"));
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
    fn amounts_of_resources_are_quantities() {
        for text in ["0", "1", "0.5", ".5", "500m", "2Gi", "1e3", "+1", "1E", "100k"] {
            assert!(is_quantity(text), "{text}");
        }
        for text in
            ["", "eight", "-1", "1 Gi", "1gi", "Gi", "1Gib", "inf", "NaN", "1,5", "0x1", "1e", "\u{661}"]
        {
            assert!(!is_quantity(text), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn from_bytes_round_trips(bytes in 0..=u64::MAX - 2048) {
            proptest::prop_assert_eq!(Quantity::parse(&Quantity::from_bytes(bytes).to_string()).unwrap().bytes(), bytes);
        }
    }
}
