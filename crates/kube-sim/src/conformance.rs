//! The table that was recorded from a real API server: cases, and what of an answer is compared.
//!
//! A case is a list of requests in a namespace of its own. Its recorded answers have names instead of what no two
//! servers share: uids, times, addresses, the numbers (not the order) of resource versions, and words for people.

use super::request::Raw;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A request sequence with its answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// Its requests.
    pub steps: Vec<Step>,
}

/// One request with its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// `METHOD /path?query`; `{ns}` stands for the case's namespace, `${0:/metadata/uid}` for what step 0 answered there.
    pub ask: String,
    /// For patches: `merge`, `json`, `apply` or `strategic`.
    #[serde(default, rename = "as", skip_serializing_if = "String::is_empty")]
    pub patch: String,
    /// `User-Agent`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent: String,
    /// `Accept`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub accept: String,
    /// The body.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    /// What the real API server answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// An answer, with names for what no two servers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// The document, or the documents of a watch.
    pub documents: Vec<Value>,
}

/// A creation that is no step of a case: its namespace, its definitions.
pub fn post(target: &str, body: &Value) -> Raw {
    Raw {
        method: "POST".into(),
        target: target.into(),
        content_type: "application/json".into(),
        accept: "application/json".into(),
        body: body.to_string().into_bytes(),
        ..Raw::default()
    }
}

/// A case under way.
#[derive(Clone, Debug)]
pub struct Run {
    namespace: String,
    raw: Vec<(u16, Vec<Value>)>,
}

impl Run {
    /// Starts in a namespace that is there and empty.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into(), raw: Vec::new() }
    }

    /// The request of a step, with what earlier steps answered filled in.
    pub fn request(&self, step: &Step) -> Raw {
        let ask = self.fill(&step.ask);
        let (method, target) = ask.split_once(' ').unwrap_or(("GET", &ask));
        let content_type = match step.patch.as_str() {
            "merge" => "application/merge-patch+json",
            "json" => "application/json-patch+json",
            "apply" => "application/apply-patch+yaml",
            "strategic" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let body = match &step.body {
            Value::Null => Vec::new(),
            body => self.fill(&body.to_string()).into_bytes(),
        };
        Raw {
            method: method.into(),
            target: target.into(),
            content_type: content_type.into(),
            accept: if step.accept.is_empty() { "application/json".into() } else { step.accept.clone() },
            user_agent: if step.agent.is_empty() { "case/1".into() } else { step.agent.clone() },
            body,
        }
    }

    fn fill(&self, text: &str) -> String {
        let mut text = text.replace("{ns}", &self.namespace);
        while let Some((before, rest)) = text.split_once("${") {
            let Some((name, after)) = rest.split_once('}') else { break };
            let found = name.split_once(':').and_then(|(step, pointer)| {
                let (_, documents) = self.raw.get(step.parse::<usize>().ok()?)?;
                documents.first()?.pointer(pointer)
            });
            let found = match found {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => "missing".into(),
            };
            text = format!("{before}{found}{after}");
        }
        text
    }

    /// Takes an answer.
    pub fn answered(&mut self, code: u16, documents: Vec<Value>) {
        self.raw.push((code, documents));
    }

    /// All answers, comparable.
    pub fn finish(self) -> Vec<Answer> {
        let mut names = Names { namespace: self.namespace, ..Names::default() };
        let mut revisions = BTreeSet::new();
        for document in self.raw.iter().flat_map(|(_, documents)| documents) {
            collect_revisions(document, &mut revisions);
        }
        names.revisions =
            revisions.into_iter().enumerate().map(|(rank, revision)| (revision, rank + 1)).collect();
        let comparable = |(code, documents): (u16, Vec<Value>)| Answer {
            code,
            documents: documents.into_iter().map(|document| names.document(document)).collect(),
        };
        self.raw.into_iter().map(comparable).collect()
    }
}

/// Lists and bookmarks carry the server's revision, which other namespaces move: only objects' are compared.
fn is_collection(document: &Map<String, Value>) -> bool {
    document.contains_key("items") || document.get("type") == Some(&Value::from("BOOKMARK"))
}

fn collect_revisions(value: &Value, found: &mut BTreeSet<u64>) {
    match value {
        Value::Object(map) => {
            if document_is_bookmark(map) {
                return;
            }
            let own: Option<u64> =
                map.get("resourceVersion").and_then(Value::as_str).and_then(|text| text.parse().ok());
            found.extend(own);
            for (name, value) in map {
                if !(is_collection(map) && name == "metadata") {
                    collect_revisions(value, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_revisions(item, found)),
        _ => {}
    }
}

fn document_is_bookmark(map: &Map<String, Value>) -> bool {
    map.get("type") == Some(&Value::from("BOOKMARK"))
}

#[derive(Default)]
struct Names {
    namespace: String,
    revisions: BTreeMap<u64, usize>,
    uids: BTreeMap<String, usize>,
}

impl Names {
    fn document(&mut self, mut document: Value) -> Value {
        let is_status = document.get("kind") == Some(&Value::from("Status"));
        let is_error = document.get("type") == Some(&Value::from("ERROR"));
        if is_status || is_error {
            drop_words(&mut document);
        }
        let prefix = document.pointer("/metadata/generateName").and_then(Value::as_str).map(str::to_owned);
        if let (Some(prefix), Some(metadata)) =
            (prefix, document.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert("name".into(), format!("{prefix}*").into());
        }
        self.value("", &mut document);
        document
    }

    fn value(&mut self, name: &str, value: &mut Value) {
        match value {
            Value::Object(map) => self.object(map),
            Value::Array(items) => {
                for item in items.iter_mut() {
                    self.value(name, item);
                }
                if name == "managedFields" || name == "causes" {
                    items.dedup();
                    items.sort_by_key(|item| {
                        (item.get("operation").map(ToString::to_string), item.to_string())
                    });
                }
            }
            Value::String(text) => {
                if let Some(name) = self.text(name, text) {
                    *text = name;
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>) {
        let collection = is_collection(map);
        let names: Vec<String> = map.keys().cloned().collect();
        for name in names {
            // The uid among an owner reference's keys is inside a text of its own.
            let plain =
                if name.starts_with("k:{\"uid\"") { "k:{\"uid\":\"*\"}".to_owned() } else { name.clone() };
            let Some(mut value) = map.remove(&name) else { continue };
            if collection && (name == "metadata" || name == "object") {
                for pointer in ["/resourceVersion", "/metadata/resourceVersion", "/continue"] {
                    if let Some(value) = value.pointer_mut(pointer) {
                        *value = "*".into();
                    }
                }
            }
            self.value(&plain, &mut value);
            map.insert(plain, value);
        }
    }

    fn text(&mut self, name: &str, text: &str) -> Option<String> {
        match name {
            "uid" => {
                let next = self.uids.len() + 1;
                let number = self.uids.entry(text.to_owned()).or_insert(next);
                Some(format!("uid {number}"))
            }
            "resourceVersion" => {
                let rank = self.revisions.get(&text.parse().ok()?)?;
                Some(format!("version {rank}"))
            }
            "creationTimestamp" | "deletionTimestamp" | "time" => Some("time".into()),
            "clusterIP" | "clusterIPs" if text != "None" => Some("address".into()),
            _ => {
                let mut shown = text.replace(&self.namespace, "{ns}");
                for (uid, number) in &self.uids {
                    shown = shown.replace(uid, &format!("uid {number}"));
                }
                (shown != text).then_some(shown)
            }
        }
    }
}

fn drop_words(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("message");
            map.values_mut().for_each(drop_words);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_words),
        _ => {}
    }
}
