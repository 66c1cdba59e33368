//! Format detection by the first bytes.

use crate::error::ParseError;

/// A supported model file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// What XGBoost's `save_model("model.json")` writes.
    XgboostJson,
    /// What XGBoost's `save_model("model.ubj")` writes.
    XgboostUbjson,
    /// What LightGBM's `save_model("model.txt")` writes.
    LightgbmText,
}

const XGBOOST_ADVICE: &str = "load it with the library that wrote it and save it again with \
                              `booster.save_model(\"model.json\")`";
const PICKLE_ADVICE: &str = "model files are parsed, never executed: save an XGBoost model with \
                             `booster.save_model(\"model.json\")`, a LightGBM model with \
                             `booster.save_model(\"model.txt\")`, and convert a scikit-learn model with skl2onnx";

impl Format {
    /// Recognises a file by its content; unsupported formats are rejected with the way to convert them.
    pub fn sniff(bytes: &[u8]) -> Result<Self, ParseError> {
        let refuse = |found: &str, advice: &str| {
            Err(ParseError::Unsupported { found: found.into(), advice: advice.into() })
        };
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
        if bytes.is_empty() {
            return refuse("an empty file", XGBOOST_ADVICE);
        }
        if text.starts_with(b"tree") && matches!(text.get(4), Some(b'\n' | b'\r') | None) {
            return Ok(Self::LightgbmText);
        }
        if let Some(rest) = text.strip_prefix(b"{") {
            return match rest.trim_ascii_start().first() {
                Some(b'"' | b'}') => Ok(Self::XgboostJson),
                _ => Ok(Self::XgboostUbjson),
            };
        }
        if bytes.starts_with(b"binf") || bytes.starts_with(b"bs64") {
            return refuse("XGBoost's deprecated binary format", XGBOOST_ADVICE);
        }
        match bytes {
            [0x80, 2..=5, ..] => return refuse("a Python pickle", PICKLE_ADVICE),
            [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] | [0x1f, 0x8b, ..] => {
                return refuse("a compressed file, perhaps of joblib", PICKLE_ADVICE);
            }
            [b'P', b'K', 3, 4, ..] => return refuse("a zip archive", PICKLE_ADVICE),
            [b'[', ..] => return refuse("a JSON list, perhaps of XGBoost's `dump_model`", XGBOOST_ADVICE),
            [b'b', b'o', b'o', b's', b't', b'e', b'r', ..] => {
                return refuse("the text that XGBoost's `dump_model` writes", XGBOOST_ADVICE);
            }
            _ => {}
        }
        // The deprecated format starts with the base score and a feature count as bare numbers.
        if is_bare_xgboost(bytes) {
            return refuse("XGBoost's deprecated binary format", XGBOOST_ADVICE);
        }
        refuse("a file of an unknown format", PICKLE_ADVICE)
    }
}

/// The parameter block of the deprecated format: a plausible base score, features and classes in little endian.
fn is_bare_xgboost(bytes: &[u8]) -> bool {
    let Some((score, rest)) = bytes.split_first_chunk::<4>() else { return false };
    let Some((features, rest)) = rest.split_first_chunk::<4>() else { return false };
    let Some((classes, rest)) = rest.split_first_chunk::<4>() else { return false };
    let score = f32::from_le_bytes(*score);
    rest.len() > 100
        && score.is_finite()
        && score.abs() < 1e6
        && u32::from_le_bytes(*features) < 1_000_000
        && u32::from_le_bytes(*classes) < 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_formats_are_recognised() {
        assert_eq!(Format::sniff(b"tree\nversion=v4\n"), Ok(Format::LightgbmText));
        assert_eq!(Format::sniff(b"tree\r\nversion=v3\r\n"), Ok(Format::LightgbmText));
        assert_eq!(Format::sniff(b" {\n \"learner\": {}}"), Ok(Format::XgboostJson));
        assert_eq!(Format::sniff(b"{L\0\0\0\0\0\0\0\x07learner{"), Ok(Format::XgboostUbjson));
    }

    #[test]
    fn unsupported_formats_are_rejected_with_advice() {
        let mut deprecated = vec![0, 0, 0, 0x3f, 30, 0, 0, 0, 0, 0, 0, 0];
        deprecated.resize(200, 0);
        let table: [(&[u8], &str, &str); 9] = [
            (b"", "empty file", "save_model"),
            (b"\x80\x04\x95\x00", "Python pickle", "never executed"),
            (b"\x78\x9c\x01", "joblib", "skl2onnx"),
            (b"\x1f\x8b\x08", "joblib", "skl2onnx"),
            (b"PK\x03\x04", "zip", "skl2onnx"),
            (b"binf\0\0", "deprecated binary", "save_model(\"model.json\")"),
            (b"booster[0]:\n0:[f0<1]", "dump_model", "save_model(\"model.json\")"),
            (b"[{\"nodeid\": 0}]", "dump_model", "save_model(\"model.json\")"),
            (&deprecated, "deprecated binary", "save_model(\"model.json\")"),
        ];
        for (bytes, found, advice) in table {
            let message = Format::sniff(bytes).unwrap_err().to_string();
            assert!(message.contains(found) && message.contains(advice), "{message}");
        }
        assert!(Format::sniff(b"hello").unwrap_err().to_string().contains("unknown format"));
    }
}
