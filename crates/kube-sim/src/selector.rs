//! Label and field selectors.

use super::{failure::Failure, object::text, request::Request};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<(String, bool, String)>,
}

impl Selector {
    pub(super) fn read(request: &Request) -> Result<Self, Failure> {
        let labels = read_labels(request.option("labelSelector"))?;
        let mut fields = Vec::new();
        for term in request.option("fieldSelector").split(',').filter(|term| !term.is_empty()) {
            let (name, value, equal) = if let Some((name, value)) = term.split_once("!=") {
                (name, value, false)
            } else if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (name, value, true)
            } else {
                return Err(Failure::bad_request(format!("fieldSelector: \"{term}\" is not name=value")));
            };
            if !selectable(&request.kind.kind, name) {
                let said =
                    format!("fieldSelector: \"{name}\" is not a selectable field of {}", request.kind.id());
                return Err(Failure::bad_request(said));
            }
            fields.push((name.to_owned(), equal, value.to_owned()));
        }
        Ok(Self { labels, fields })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn shows(&self, object: &Value) -> bool {
        let label = |name: &str| {
            object.pointer("/metadata/labels").and_then(|labels| labels.get(name)).and_then(Value::as_str)
        };
        let labels = self.labels.iter().all(|(name, test)| match (test, label(name)) {
            (Test::In(values), Some(value)) => values.iter().any(|one| one == value),
            (Test::NotIn(values), Some(value)) => values.iter().all(|one| one != value),
            (Test::NotIn(_) | Test::Absent, None) | (Test::Exists, Some(_)) => true,
            (Test::In(_) | Test::Exists, None) | (Test::Absent, Some(_)) => false,
        });
        let fields = self.fields.iter().all(|(name, equal, value)| {
            let pointer = format!("/{}", name.replace('.', "/"));
            (text(object, &pointer) == value) == *equal
        });
        labels && fields
    }
}

fn selectable(kind: &str, field: &str) -> bool {
    let own: &[&str] = match kind {
        "Pod" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
        "Event" => &["involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"],
        "Secret" => &["type"],
        "Namespace" => &["status.phase"],
        "ReplicaSet" => &["status.replicas"],
        _ => &[],
    };
    ["metadata.name", "metadata.namespace"].contains(&field) || own.contains(&field)
}

/// Splits at commas outside parentheses.
fn read_labels(selector: &str) -> Result<Vec<(String, Test)>, Failure> {
    let mut terms = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (index, letter) in selector.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(selector.get(start..index).unwrap_or_default());
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(selector.get(start..).unwrap_or_default());
    terms.into_iter().map(str::trim).filter(|term| !term.is_empty()).map(read_term).collect()
}

fn read_term(term: &str) -> Result<(String, Test), Failure> {
    let one = |name: &str, value: &str, test: fn(Vec<String>) -> Test| {
        (name.trim().to_owned(), test(vec![value.trim().to_owned()]))
    };
    if let Some(rest) = term.strip_suffix(')') {
        let (head, values) = rest.split_once('(').ok_or_else(|| unreadable(term))?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok((name.to_owned(), Test::In(values))),
            (Some(name), Some("notin"), None) => Ok((name.to_owned(), Test::NotIn(values))),
            _ => Err(unreadable(term)),
        };
    }
    if let Some((name, value)) = term.split_once("!=") {
        return Ok(one(name, value, Test::NotIn));
    }
    if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(one(name, value, Test::In));
    }
    match term.strip_prefix('!') {
        Some(name) => Ok((name.trim().to_owned(), Test::Absent)),
        None if term.contains(char::is_whitespace) => Err(unreadable(term)),
        None => Ok((term.to_owned(), Test::Exists)),
    }
}

fn unreadable(term: &str) -> Failure {
    Failure::bad_request(format!(
        "labelSelector: \"{term}\" is not a requirement such as name=value or name in (a,b)"
    ))
}
