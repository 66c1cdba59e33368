//! `metadata.managedFields`: who owns which paths, since when.

use super::fields::{FieldSet, Step};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How a manager came to own its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

/// One owner. The same name is another owner for another operation or subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// The field manager's name.
    pub name: String,
    /// Apply or update.
    pub operation: Operation,
    /// Empty for the main resource.
    pub subresource: String,
    /// The version an update spoke; empty for apply, where one manager has one entry.
    pub version: String,
}

/// What an owner owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The paths.
    pub fields: FieldSet,
    /// The version they are in.
    pub version: String,
    /// When the owner last took something.
    pub time: String,
}

/// All owners of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed(pub BTreeMap<Manager, Entry>);

impl Managed {
    /// Reads an object's entries; those that are no entries are left out.
    pub fn of(object: &Value) -> Self {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        Self(entries.into_iter().flatten().filter_map(decode).collect())
    }

    /// The object asks to forget who owns what: a list with one empty entry.
    pub fn is_reset(object: &Value) -> bool {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        entries.is_some_and(|entries| matches!(entries.as_slice(), [one] if one.as_object().is_some_and(serde_json::Map::is_empty)))
    }

    /// The entries in the order of the API server: apply before update, then by time, then by name.
    pub fn encode(&self) -> Value {
        let mut entries: Vec<(&Manager, &Entry)> = self.0.iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            (a.operation, &x.time, &a.name, &x.version, &a.subresource).cmp(&(
                b.operation,
                &y.time,
                &b.name,
                &y.version,
                &b.subresource,
            ))
        });
        entries.into_iter().map(|(manager, entry)| encode(manager, entry)).collect()
    }

    /// Drops owners that own nothing.
    pub fn tidy(&mut self) {
        self.0.retain(|_, entry| !entry.fields.is_empty());
    }

    /// Nobody owns a path any more.
    pub fn disown(&mut self, path: &[Step]) {
        let mut nobodys = FieldSet::default();
        nobodys.insert(path);
        for entry in self.0.values_mut() {
            entry.fields = entry.fields.difference(&nobodys);
        }
        self.tidy();
    }

    /// Everything that anybody owns.
    pub fn union(&self) -> FieldSet {
        self.0.values().fold(FieldSet::default(), |all, entry| all.union(&entry.fields))
    }
}

fn decode(entry: &Value) -> Option<(Manager, Entry)> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let operation = match entry.get("operation")?.as_str()? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return None,
    };
    let version = if operation == Operation::Update { text("apiVersion") } else { String::new() };
    let manager = Manager { name: text("manager"), operation, subresource: text("subresource"), version };
    let fields = FieldSet::from_fields_v1(entry.get("fieldsV1")?)?;
    Some((manager, Entry { fields, version: text("apiVersion"), time: text("time") }))
}

fn encode(manager: &Manager, entry: &Entry) -> Value {
    let mut encoded = json!({
        "manager": manager.name,
        "operation": match manager.operation { Operation::Apply => "Apply", Operation::Update => "Update" },
        "apiVersion": entry.version,
        "fieldsType": "FieldsV1",
        "fieldsV1": entry.fields.to_fields_v1(),
    });
    for (name, text) in [("time", &entry.time), ("subresource", &manager.subresource)] {
        if let (false, Some(map)) = (text.is_empty(), encoded.as_object_mut()) {
            map.insert(name.into(), text.clone().into());
        }
    }
    encoded
}
