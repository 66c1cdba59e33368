//! Conformance cases recorded from a real API server.
//!
//! A case is a list of requests in its own namespace. Recorded responses have placeholders for values that differ between
//! servers: UIDs, times, addresses, resource versions (not their order) and messages.

use super::request::HttpRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// `METHOD /path?query`; `{ns}` is the namespace, `${0:/metadata/uid}` a value of the response to step 0.
    #[serde(rename = "ask")]
    pub request: String,
    /// For patches: `merge`, `json`, `apply` or `strategic`.
    #[serde(default, rename = "as", skip_serializing_if = "String::is_empty")]
    pub patch: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub accept: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    /// Response of the real API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// A response with placeholders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub code: u16,
    /// One document, or those of a watch.
    pub documents: Vec<Value>,
}

/// Creates a prerequisite of a case, such as its namespace.
pub fn post(target: &str, body: &Value) -> HttpRequest {
    HttpRequest {
        method: "POST".into(),
        target: target.into(),
        content_type: "application/json".into(),
        accept: "application/json".into(),
        body: body.to_string().into_bytes(),
        ..HttpRequest::default()
    }
}

/// A running case.
#[derive(Clone, Debug)]
pub struct Run {
    namespace: String,
    raw: Vec<(u16, Vec<Value>)>,
}

impl Run {
    /// The namespace exists and is empty.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into(), raw: Vec::new() }
    }

    /// The request of a step, with values of earlier responses.
    pub fn request(&self, step: &Step) -> HttpRequest {
        let request = self.fill(&step.request);
        let (method, target) = request.split_once(' ').unwrap_or(("GET", &request));
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
        HttpRequest {
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

    pub fn answered(&mut self, code: u16, documents: Vec<Value>) {
        self.raw.push((code, documents));
    }

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

/// The resource versions of lists and bookmarks depend on other namespaces: only those of objects are compared.
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
            // The UID of an owner reference key is inside a nested JSON string.
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
