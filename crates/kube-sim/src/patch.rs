//! Merge patches and JSON patches.

use super::failure::Failure;
use serde_json::{Map, Value};

pub(super) fn patched(document: &Value, patch: &Value, content_type: &str) -> Result<Value, Failure> {
    if content_type != "application/json-patch+json" {
        if !patch.is_object() {
            return Err(Failure::bad_request("a merge patch is an object"));
        }
        return Ok(merge(document, patch));
    }
    let steps =
        patch.as_array().ok_or_else(|| Failure::bad_request("a JSON patch is a list of operations"))?;
    let mut document = document.clone();
    for (index, step) in steps.iter().enumerate() {
        operate(&mut document, step).map_err(|problem| problem.at(index))?;
    }
    Ok(document)
}

pub(super) fn merge(document: &Value, patch: &Value) -> Value {
    let Some(patch) = patch.as_object() else { return patch.clone() };
    let mut merged = document.as_object().cloned().unwrap_or_default();
    for (name, value) in patch {
        if value.is_null() {
            merged.remove(name);
        } else {
            let old = merged.get(name).cloned().unwrap_or(Value::Null);
            merged.insert(name.clone(), merge(&old, value));
        }
    }
    Value::Object(merged)
}

enum Problem {
    Malformed(String),
    Unfit(String),
}

impl Problem {
    fn at(self, index: usize) -> Failure {
        match self {
            Self::Malformed(what) => {
                Failure::bad_request(format!("operation {index} of the JSON patch: {what}"))
            }
            Self::Unfit(what) => {
                Failure::new(422, "Invalid", format!("operation {index} of the JSON patch: {what}"))
                    .with_empty_details()
            }
        }
    }
}

fn operate(document: &mut Value, step: &Value) -> Result<(), Problem> {
    let word = |name: &str| {
        let text = step.get(name).and_then(Value::as_str);
        text.ok_or_else(|| Problem::Malformed(format!("\"{name}\" is missing")))
    };
    let value =
        || step.get("value").cloned().ok_or_else(|| Problem::Malformed("\"value\" is missing".into()));
    let path = word("path")?;
    match word("op")? {
        "add" => add(document, path, value()?),
        "remove" => remove(document, path).map(|_| ()),
        "replace" => {
            let value = value()?;
            match document.pointer_mut(path) {
                Some(old) => *old = value,
                // The API server's library treats this as an addition.
                None => add(document, path, value)?,
            }
            Ok(())
        }
        "move" => {
            let moved = remove(document, word("from")?)?;
            add(document, path, moved)
        }
        "copy" => {
            let from = word("from")?;
            let copied = document.pointer(from).cloned().ok_or_else(|| unfit(from))?;
            add(document, path, copied)
        }
        "test" => {
            let wanted = value()?;
            match document.pointer(path).unwrap_or(&Value::Null) {
                found if *found == wanted => Ok(()),
                found => Err(Problem::Unfit(format!("{path} is {found}, not {wanted}"))),
            }
        }
        other => Err(Problem::Unfit(format!("\"{other}\" is not an operation"))),
    }
}

fn unfit(path: &str) -> Problem {
    Problem::Unfit(format!("{path} does not exist"))
}

/// The parent of a path, and its last element.
fn parent<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), Problem> {
    let (way, last) =
        path.rsplit_once('/').ok_or_else(|| Problem::Malformed(format!("{path} is not a JSON pointer")))?;
    let parent = document.pointer_mut(way).ok_or_else(|| unfit(path))?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), Problem> {
    if path.is_empty() {
        *document = value;
        return Ok(());
    }
    match parent(document, path)? {
        (Value::Object(map), name) => {
            map.insert(name, value);
            Ok(())
        }
        (Value::Array(items), index) => {
            let at = if index == "-" { Some(items.len()) } else { index.parse().ok() };
            let at = at.filter(|at| *at <= items.len()).ok_or_else(|| unfit(path))?;
            items.insert(at, value);
            Ok(())
        }
        _ => Err(unfit(path)),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, Problem> {
    if path.is_empty() {
        return Ok(std::mem::replace(document, Value::Object(Map::new())));
    }
    match parent(document, path)? {
        (Value::Object(map), name) => map.remove(&name).ok_or_else(|| unfit(path)),
        (Value::Array(items), index) => {
            let at = index.parse().ok().filter(|at: &usize| *at < items.len()).ok_or_else(|| unfit(path))?;
            Ok(items.remove(at))
        }
        _ => Err(unfit(path)),
    }
}
