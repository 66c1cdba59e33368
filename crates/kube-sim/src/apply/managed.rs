//! `metadata.managedFields`: field ownership.

use super::fields::{FieldSet, Step};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    /// Any write other than server-side apply.
    Update,
}

/// Each operation and subresource of a manager is a separate owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    /// Empty for the main resource.
    pub subresource: String,
    /// `apiVersion` of an update; empty for apply, which has one entry per manager.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub fields: FieldSet,
    /// `apiVersion` of the paths.
    pub version: String,
    /// Time of the last change.
    pub time: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed(pub BTreeMap<Manager, Entry>);

impl Managed {
    /// Skips malformed entries.
    pub fn of(object: &Value) -> Self {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        Self(entries.into_iter().flatten().filter_map(decode).collect())
    }

    /// A list with one empty entry resets the ownership.
    pub fn is_reset(object: &Value) -> bool {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        entries.is_some_and(|entries| matches!(entries.as_slice(), [one] if one.as_object().is_some_and(serde_json::Map::is_empty)))
    }

    /// In the order of the API server: apply before update, then by time, then by name.
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

    /// Removes owners without fields.
    pub fn tidy(&mut self) {
        self.0.retain(|_, entry| !entry.fields.is_empty());
    }

    /// Removes a path from all owners.
    pub fn disown(&mut self, path: &[Step]) {
        let mut removed = FieldSet::default();
        removed.insert(path);
        for entry in self.0.values_mut() {
            entry.fields = entry.fields.difference(&removed);
        }
        self.tidy();
    }

    /// The union of all owned fields.
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
