//! New objects, by create or apply.

use super::{
    apply::{self, managed::Managed},
    failure::{Cause, Failure},
    object::{self, set, text, unset},
    read::shown,
    registry::{Generation, Kind},
    request::{Request, Subresource},
    rules,
    state::{Key, Reply, State},
    write::{author_of, check_body, check_known, normalise, normalise_applied, reset_trees, set_type},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Alphabet of generated names, as in Kubernetes.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

impl State {
    pub(super) fn create(&mut self, request: &Request, now: Timestamp) -> Result<Reply, Failure> {
        if request.subresource != Subresource::Main {
            return Err(Failure::new(405, "MethodNotAllowed", "only whole objects are created"));
        }
        let mut object = check_body(request)?.clone();
        set_type(&request.kind, &mut object);
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(Failure::unexpected("metadata.resourceVersion must not be set on a new object"));
        }
        self.name(&request.kind, &mut object)?;
        let (time, version) = (object::time(now), request.kind.api_version());
        let author = author_of(request, &version, &time);
        normalise(&request.kind, &mut object);
        let managed = if Managed::is_reset(&object) {
            Managed::default()
        } else {
            let empty = rules::empty(&request.kind);
            let claimed = Managed::of(&object);
            let plain = object::without_managers(&object);
            apply::track(&empty, &plain, claimed, &author, &request.kind.merge_schema, &reset_trees(request))
        };
        let stored = self.insert(request, object, &managed, now)?;
        Ok(Reply::json(201, shown(&stored, request.metadata_only)))
    }

    /// Applies to an absent object.
    pub(super) fn apply_new(
        &mut self,
        request: &Request,
        config: &Value,
        now: Timestamp,
    ) -> Result<Reply, Failure> {
        let key = Key::new(&request.kind, &request.namespace, &request.name);
        if !text(config, "/metadata/uid").is_empty() {
            let said = "the object does not exist: its UID cannot match";
            return Err(Failure::conflict(&request.kind, &key.name, said));
        }
        check_known(request, config)?;
        let (time, version) = (object::time(now), request.kind.api_version());
        let author = author_of(request, &version, &time);
        let empty = rules::empty(&request.kind);
        let (merge_schema, reset) = (&request.kind.merge_schema, reset_trees(request));
        let applied = apply::apply(&empty, config, Managed::default(), &author, true, merge_schema, &reset);
        let (mut object, managed) = applied.map_err(|conflicts| Failure::apply_conflict(&conflicts))?;
        normalise_applied(&request.kind, &mut object);
        let stored = self.insert(request, object, &managed, now)?;
        Ok(Reply::json(201, shown(&stored, request.metadata_only)))
    }

    /// Inserts an object without owners and validation.
    pub fn seed_object(&mut self, object: &Value, now: Timestamp) {
        let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
        let Some(kind) = self.registry.by_object(version, kind) else { return };
        let mut object = object.clone();
        normalise(&kind, &mut object);
        let key = Key::new(&kind, text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        self.birth(&kind, &mut object, now);
        self.put(key, object);
    }

    /// Imports an object of another server with its UID, age and field ownership. `false` for an
    /// unknown kind.
    pub fn restore_object(&mut self, object: &Value) -> bool {
        let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
        let Some(kind) = self.registry.by_object(version, kind) else { return false };
        let key = Key::new(&kind, text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        self.put(key, object.clone());
        true
    }

    fn name(&mut self, kind: &Kind, object: &mut Value) -> Result<(), Failure> {
        let prefix = text(object, "/metadata/generateName").to_owned();
        if text(object, "/metadata/name").is_empty() {
            if prefix.is_empty() {
                let cause =
                    Cause::new("FieldValueRequired", "metadata.name", "name or generateName is required");
                return Err(Failure::invalid(kind, "", &[cause]));
            }
            let mut number = self.draw();
            let mut name = prefix;
            for _ in 0..5 {
                let letter = LETTERS.get((number % LETTERS.len() as u64) as usize).copied().unwrap_or(b'x');
                name.push(char::from(letter));
                number /= LETTERS.len() as u64;
            }
            set(object, &["metadata", "name"], name);
        }
        Ok(())
    }

    fn insert(
        &mut self,
        request: &Request,
        mut object: Value,
        managed: &Managed,
        now: Timestamp,
    ) -> Result<Arc<Value>, Failure> {
        let kind = &request.kind;
        let name = text(&object, "/metadata/name").to_owned();
        let key = Key::new(kind, &request.namespace, &name);
        self.check_namespace(kind, &key)?;
        if self.objects.contains_key(&key) {
            return Err(Failure::already_exists(kind, &name));
        }
        if kind.status {
            rules::reset_status(kind, &mut object);
        }
        if kind.namespaced {
            set(&mut object, &["metadata", "namespace"], request.namespace.clone());
        }
        let problems = rules::problems(kind, None, &object);
        if !problems.is_empty() {
            return Err(Failure::invalid(kind, &name, &problems));
        }
        self.birth(kind, &mut object, now);
        set_managed(&mut object, managed);
        if request.dry_run() {
            return Ok(Arc::new(object));
        }
        let stored = self.put(key, object);
        if kind.kind == "CustomResourceDefinition" {
            self.define(&stored);
        }
        Ok(stored)
    }

    /// Registers the kind of a CRD; an incomplete CRD is stored only.
    fn define(&mut self, crd: &Value) {
        if let Err(why) = self.registry.add_crd(crd) {
            tracing::warn!("invalid CustomResourceDefinition: {why}");
        }
    }

    /// Sets the fields that the server owns.
    fn birth(&mut self, kind: &Kind, object: &mut Value, now: Timestamp) {
        for name in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            unset(object, &["metadata", name]);
        }
        rules::give(kind, object, self.draw());
        set(object, &["metadata", "uid"], self.uid().to_string());
        set(object, &["metadata", "creationTimestamp"], object::time(now));
        if kind.generation != Generation::None {
            set(object, &["metadata", "generation"], 1);
        }
    }

    fn check_namespace(&self, kind: &Kind, key: &Key) -> Result<(), Failure> {
        if !kind.namespaced || !self.switches.namespaces {
            return Ok(());
        }
        match (self.namespace_phase(&key.namespace), self.registry.by_id("namespaces")) {
            (None, Some(namespaces)) => Err(Failure::not_found(&namespaces, &key.namespace)),
            (Some("Terminating"), _) => {
                let said = format!("namespace {} is being terminated", key.namespace);
                let cause = Cause::new("NamespaceTerminating", "metadata.namespace", &said);
                Err(Failure::forbidden(kind, &key.name, "its namespace is being terminated", &[cause]))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn set_managed(object: &mut Value, managed: &Managed) {
    match managed.encode() {
        Value::Array(entries) if entries.is_empty() => {
            unset(object, &["metadata", "managedFields"]);
        }
        entries => set(object, &["metadata", "managedFields"], entries),
    }
}

/// The response to a completed deletion.
pub(super) fn success(kind: &Kind, object: &Value) -> Value {
    let mut details = json!({
        "name": text(object, "/metadata/name"), "kind": kind.plural, "uid": text(object, "/metadata/uid"),
    });
    if let (false, Some(map)) = (kind.group.is_empty(), details.as_object_mut()) {
        map.insert("group".into(), kind.group.clone().into());
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
