//! The API server's question and our answer, as they go over the wire.

use serde::Deserialize;
use serde_json::{Value, json};

/// The only version that is asked in.
const API_VERSION: &str = "admission.k8s.io/v1";
/// kubectl shows warnings whole up to here; the API server cuts longer ones.
const LONGEST: usize = 250;
/// Warnings to one object. The API server drops all of them when they are too long together.
const MOST: usize = 8;

/// What somebody is about to do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Names the question; the answer names it again.
    pub uid: String,
    /// What is asked about, as it stands in a path.
    #[serde(default)]
    pub resource: Resource,
    /// Such as `status`; empty for the object itself.
    #[serde(default, deserialize_with = "or_nothing")]
    pub sub_resource: String,
    /// The object's name; empty while the API server is still to make one up.
    #[serde(default, deserialize_with = "or_nothing")]
    pub name: String,
    /// Its namespace.
    #[serde(default, deserialize_with = "or_nothing")]
    pub namespace: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    #[serde(default)]
    pub operation: String,
    /// The object as it is to be; null when it is deleted.
    #[serde(default)]
    pub object: Value,
    /// The object as it is; null when it is new.
    #[serde(default)]
    pub old_object: Value,
}

/// A kind of objects, as it stands in a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Resource {
    /// Its group.
    #[serde(default)]
    pub group: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its plural.
    #[serde(default, rename = "resource")]
    pub plural: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    request: Value,
}

fn or_nothing<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Option::<String>::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Request {
    /// Reads a body; the error says what is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let review: Review =
            serde_json::from_slice(body).map_err(|e| format!("the body is no AdmissionReview: {e}"))?;
        if review.kind != "AdmissionReview" || review.api_version != API_VERSION {
            let (kind, version) = (shown(&review.kind), shown(&review.api_version));
            return Err(format!("the body is {kind} of {version}; send an AdmissionReview of {API_VERSION}"));
        }
        let request: Self =
            serde_json::from_value(review.request).map_err(|e| format!("request cannot be read: {e}"))?;
        if request.uid.is_empty() {
            return Err("request.uid is empty: an answer could not be told from another".into());
        }
        Ok(request)
    }
}

fn shown(word: &str) -> String {
    if word.is_empty() {
        "nothing".into()
    } else {
        format!("\"{}\"", word.chars().take(100).collect::<String>().escape_debug())
    }
}

/// What comes of a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is refused; `None` when it is allowed.
    pub refusal: Option<String>,
    /// What whoever asks is told all the same.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// A word for metrics.
    pub fn word(&self) -> &'static str {
        match (&self.refusal, self.warnings.is_empty()) {
            (Some(_), _) => "refused",
            (None, false) => "warned",
            (None, true) => "allowed",
        }
    }

    /// The answer's body.
    pub fn body(&self, uid: &str) -> Value {
        let mut response = json!({ "uid": uid, "allowed": self.refusal.is_none() });
        if let Some(fields) = response.as_object_mut() {
            if let Some(message) = &self.refusal {
                let status = json!({ "code": 422, "reason": "Invalid", "message": message });
                fields.insert("status".into(), status);
            }
            if !self.warnings.is_empty() {
                let few: Vec<String> = self.warnings.iter().take(MOST).map(|w| short(w)).collect();
                fields.insert("warnings".into(), few.into());
            }
        }
        json!({ "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response })
    }
}

/// Not longer than the API server lets through, and on one line: it goes into an HTTP header.
fn short(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= LONGEST {
        return line;
    }
    let mut short = String::new();
    for letter in line.chars() {
        if short.len() + letter.len_utf8() + '…'.len_utf8() > LONGEST {
            break;
        }
        short.push(letter);
    }
    short.push('…');
    short
}
